// From scores to weights, for one anchor: what unremix.core.weights computes, step by step.

export const COMPONENTS = ["uncertainty", "similarity", "representativeness"];

// Size of the terms that a score sums up; null: the size of the row's own largest value.
export const MAGNITUDE = { uncertainty: null, similarity: 1, representativeness: 1 };
const NOISE = 64 * 2 ** -23; // of float32, in which the scores were computed

// Scale a score over an anchor's negatives: minmax, zscore or none.
export function scale(score, negatives, scaling, magnitude) {
  if (scaling === "none") return Float64Array.from(score);
  let low = Infinity;
  let high = -Infinity;
  let count = 0;
  for (let j = 0; j < score.length; j++) {
    if (!negatives[j]) continue;
    low = Math.min(low, score[j]);
    high = Math.max(high, score[j]);
    count += 1;
  }
  const size = Math.max(Math.abs(high), Math.abs(low), magnitude ?? 0);
  let constant = count === 0 || (high - low <= NOISE * size && Number.isFinite(size));
  const scaled = new Float64Array(score.length);
  if (scaling === "minmax") {
    const span = high - low;
    for (let j = 0; j < score.length; j++) scaled[j] = constant ? 1 : (score[j] - low) / span;
    return scaled;
  }
  let total = 0;
  for (let j = 0; j < score.length; j++) if (negatives[j]) total += score[j];
  const mean = total / Math.max(count, 1);
  let squares = 0;
  for (let j = 0; j < score.length; j++) if (negatives[j]) squares += (score[j] - mean) ** 2;
  const variance = squares / Math.max(count, 1);
  constant ||= variance === 0;
  const deviation = Math.sqrt(variance);
  for (let j = 0; j < score.length; j++) scaled[j] = constant ? 0 : (score[j] - mean) / deviation;
  return scaled;
}

// The weights of an anchor's negatives.
//   scores: {uncertainty, similarity, representativeness}, each an array over the candidates
//   negatives: which candidates are negatives
//   how: {components, mix, scaling, sharpness, mass, overTemperature, temperature}
export function weigh(scores, negatives, how) {
  const length = negatives.length;
  const weights = new Float64Array(length);
  let count = 0;
  for (let j = 0; j < length; j++) count += negatives[j] ? 1 : 0;
  if (how.components.length === 0) {
    for (let j = 0; j < length; j++) weights[j] = negatives[j] ? 1 : 0;
    return weights;
  }
  const mixed = new Float64Array(length);
  how.components.forEach((name, k) => {
    const scaled = scale(scores[name], negatives, how.scaling, MAGNITUDE[name]);
    for (let j = 0; j < length; j++) mixed[j] += how.mix[k] * scaled[j];
  });
  if (how.sharpness === null) {
    for (let j = 0; j < length; j++) weights[j] = negatives[j] ? Math.max(0, mixed[j]) : 0;
  } else {
    const factor = how.sharpness / (how.overTemperature ? how.temperature : 1);
    let highest = -Infinity;
    for (let j = 0; j < length; j++) if (negatives[j]) highest = Math.max(highest, factor * mixed[j]);
    const shift = how.mass === "mean" && highest > -Infinity ? highest : 0;
    for (let j = 0; j < length; j++) weights[j] = negatives[j] ? Math.exp(factor * mixed[j] - shift) : 0;
  }
  if (how.mass === "none") return weights;
  let total = 0;
  for (let j = 0; j < length; j++) total += weights[j];
  for (let j = 0; j < length; j++) {
    if (total <= 0) weights[j] = negatives[j] ? 1 : 0;
    else weights[j] = Number.isFinite(total) ? (weights[j] * count) / total : NaN;
  }
  return weights;
}

// Candidates that are negatives, the most weighted first; equal weights in the order of the batch.
export function ranked(weights, negatives) {
  const order = [];
  for (let j = 0; j < negatives.length; j++) if (negatives[j]) order.push(j);
  return order.sort((a, b) => weights[b] - weights[a] || a - b);
}

// The weightings that are shown side by side, for the positions of the controls.
export function weightings(controls) {
  const exponential = controls.scaling === "zscore-exp";
  const mixed = {
    scaling: exponential ? "zscore" : controls.scaling,
    sharpness: exponential ? controls.hardness : null,
    mass: controls.mass,
    overTemperature: false,
    temperature: controls.temperature,
  };
  const alone = (name) => ({ name, how: { ...mixed, components: [name], mix: [1] } });
  const hcl = {
    components: ["similarity"],
    mix: [1],
    scaling: "none",
    sharpness: controls.hardness,
    mass: "mean",
    overTemperature: controls.overTemperature,
    temperature: controls.temperature,
  };
  return [
    { name: "uniform", how: { ...mixed, components: [], mix: [] } },
    { name: "hcl", how: hcl },
    alone("uncertainty"),
    alone("similarity"),
    alone("representativeness"),
    { name: "unremix", how: { ...mixed, components: COMPONENTS, mix: controls.mix } },
  ];
}
