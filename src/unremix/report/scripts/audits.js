// What the weights pick, over all anchors: what unremix.audit computes, and a baseline beside it.

const DECILES = 10;
const WINDOW = 10; // ranks of similarity

// Ascending by weight, equal weights in the order of the batch.
function ascending(weights, negatives) {
  const order = [];
  for (let j = 0; j < negatives.length; j++) if (negatives[j]) order.push(j);
  return order.sort((a, b) => weights[a] - weights[b] || a - b);
}

// How often negatives as similar to the anchor as this one are false: those within ten ranks of
// similarity, without itself. Weights that tell nothing beyond similarity pick at this rate.
export function matchedRates({ similarity, negatives, suspects }) {
  const order = ascending(Float64Array.from(similarity, (value) => -value), negatives);
  const before = [0];
  order.forEach((j) => before.push(before.at(-1) + (suspects[j] ? 1 : 0)));
  const rates = new Float64Array(negatives.length).fill(NaN);
  order.forEach((j, rank) => {
    const first = Math.max(0, rank - WINDOW);
    const last = Math.min(order.length - 1, rank + WINDOW);
    if (last === first) return;
    rates[j] = (before[last + 1] - before[first] - (suspects[j] ? 1 : 0)) / (last - first);
  });
  return rates;
}

// rows: one per anchor, {weights, negatives, suspects, labels, expected}
export function audit(rows, k) {
  const hits = new Float64Array(DECILES);
  const expected = new Float64Array(DECILES);
  const counts = new Float64Array(DECILES);
  let top = 0;
  let matched = 0;
  let base = 0;
  let distinct = 0;
  let effective = 0;
  let usable = 0;
  for (const { weights, negatives, suspects, labels, expected: usual } of rows) {
    const order = ascending(weights, negatives);
    if (order.length === 0) continue;
    usable += 1;
    let own = 0;
    let sum = 0;
    let squares = 0;
    order.forEach((j, rank) => {
      const decile = Math.floor((rank * DECILES) / order.length);
      counts[decile] += 1;
      hits[decile] += suspects[j] ? 1 : 0;
      expected[decile] += usual[j];
      own += suspects[j] ? 1 : 0;
      sum += weights[j];
      squares += weights[j] ** 2;
    });
    const best = [...order].sort((a, b) => weights[b] - weights[a] || a - b).slice(0, k);
    top += best.filter((j) => suspects[j]).length / best.length;
    matched += best.reduce((total, j) => total + usual[j], 0) / best.length;
    base += own / order.length;
    if (labels) distinct += new Set(best.map((j) => labels[j])).size / best.length;
    effective += squares > 0 ? sum ** 2 / squares : 0;
  }
  const share = (values) => Array.from(values, (value, d) => (counts[d] ? value / counts[d] : NaN));
  return {
    deciles: share(hits),
    matchedDeciles: share(expected),
    top: top / usable,
    matched: matched / usable,
    base: base / usable,
    distinct: distinct / usable,
    effective: effective / usable,
  };
}
