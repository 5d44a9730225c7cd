// What the weights pick, over all anchors: what unremix.audit computes, and a baseline beside it.
// Equal weights have no order: where a cut goes through them, their mean counts.

import { ranked } from "./weights.js";

const DECILES = 10;
const WINDOW = 2; // ranks of similarity

// How often negatives of equal similarity are false: as many just above as just below, up to two
// ranks each. The most and the least similar negative, which have none on one side, are their own.
export function matchedRates({ similarity, negatives, suspects }) {
  const order = ranked(similarity, negatives);
  const before = [0];
  order.forEach((j) => before.push(before.at(-1) + (suspects[j] ? 1 : 0)));
  const rates = new Float64Array(negatives.length).fill(NaN);
  order.forEach((j, rank) => {
    const half = Math.min(WINDOW, rank, order.length - 1 - rank);
    const own = suspects[j] ? 1 : 0;
    const within = before[rank + half + 1] - before[rank - half];
    rates[j] = half < 1 ? own : (within - own) / (2 * half);
  });
  return rates;
}

// Where those of equal weight end that begin at a rank.
function endOfTie(order, weights, first) {
  let end = first + 1;
  while (end < order.length && weights[order[end]] === weights[order[first]]) end += 1;
  return end;
}

// How many classes the first k are expected to show, drawn at random among equal weights.
function distinctClasses(order, weights, labels, k) {
  const seen = new Set();
  let expected = 0;
  for (let first = 0, end; first < k; first = end) {
    end = endOfTie(order, weights, first);
    const size = end - first;
    const drawn = Math.min(size, k - first);
    const counts = new Map();
    for (let rank = first; rank < end; rank++) {
      const label = labels[order[rank]];
      counts.set(label, (counts.get(label) ?? 0) + 1);
    }
    for (const [label, count] of counts) {
      if (seen.has(label)) continue;
      let missed = 1;
      for (let d = 0; d < drawn; d++) missed *= Math.max(0, size - count - d) / (size - d);
      expected += 1 - missed;
      seen.add(label); // what follows a tie that is drawn from in part is not among the k
    }
  }
  return expected;
}

// rows: one per anchor, {weights, negatives, suspects, labels, expected}
//   top: the rate among the k heaviest; matched: that among negatives of equal similarity
export function audit(rows, k) {
  const hits = new Float64Array(DECILES);
  const expected = new Float64Array(DECILES);
  const counts = new Float64Array(DECILES);
  const found = { top: [], matched: [], base: [], distinct: [], effective: [] };
  for (const { weights, negatives, suspects, labels, expected: usual } of rows) {
    const order = ranked(weights, negatives);
    const count = order.length;
    if (count === 0) continue;
    const looked = Math.min(k, count);
    let [top, matched, own, total, squares] = [0, 0, 0, 0, 0];
    for (let first = 0, end; first < count; first = end) {
      end = endOfTie(order, weights, first);
      let [falseOnes, rates] = [0, 0];
      for (let rank = first; rank < end; rank++) {
        const j = order[rank];
        total += weights[j];
        squares += weights[j] ** 2;
        falseOnes += suspects[j] ? 1 : 0;
        rates += usual[j];
      }
      const size = end - first;
      for (let rank = first; rank < end; rank++) {
        const decile = Math.floor(((count - 1 - rank) * DECILES) / count);
        counts[decile] += 1;
        hits[decile] += falseOnes / size;
        expected[decile] += rates / size;
      }
      own += falseOnes;
      const share = Math.max(0, Math.min(1, (looked - first) / size));
      top += share * falseOnes;
      matched += share * rates;
    }
    found.top.push(top / looked);
    found.matched.push(matched / looked);
    found.base.push(own / count);
    if (labels) found.distinct.push(distinctClasses(order, weights, labels, looked) / looked);
    found.effective.push(squares <= 0 ? 0 : total ** 2 / squares);
  }
  const shares = (values, among) => Array.from(values, (value, d) => (among[d] > 0 ? value / among[d] : NaN));
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  return {
    deciles: shares(hits, counts),
    matchedDeciles: shares(expected, counts),
    ...Object.fromEntries(Object.entries(found).map(([name, values]) => [name, mean(values)])),
  };
}
