// A line chart as inline SVG; colors, dashes and markers come from the style sheet.

import { make, makeSvg } from "./data.js";
import { shapePath } from "./items.js";

const HEIGHT = 280;
const LEFT = 46;
const BOTTOM = 40;
const TOP = 26;
const RIGHT = 14;

function niceTop(value) {
  const power = 10 ** Math.floor(Math.log10(value || 1));
  for (const step of [1, 2, 4, 6, 8, 10]) if (value <= step * power) return step * power;
  return value;
}

// series: [{name, className, shape, values}], values from 0 to 1 at 1 … n; width: in pixels of the
// page, so that letters have their size
export function lineChart({ title, series, xLabel, yLabel, width }) {
  const WIDTH = Math.max(280, width);
  const all = series.flatMap(({ values }) => values).filter(Number.isFinite);
  const top = Math.min(1, niceTop(1.04 * Math.max(0.01, ...all)));
  const count = Math.max(...series.map(({ values }) => values.length));
  const x = (place) => LEFT + ((WIDTH - LEFT - RIGHT) * place) / (count - 1);
  const y = (value) => HEIGHT - BOTTOM - ((HEIGHT - BOTTOM - TOP) * value) / top;
  const svg = makeSvg("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": title });
  for (let tick = 0; tick <= 4; tick++) {
    const value = (top * tick) / 4;
    svg.append(
      makeSvg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }),
      makeSvg("text", { class: "tick", x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, `${+(100 * value).toFixed(1)}`),
    );
  }
  for (let place = 0; place < count; place++) {
    svg.append(makeSvg("text", { class: "tick", x: x(place), y: HEIGHT - BOTTOM + 18, "text-anchor": "middle" }, `${place + 1}`));
  }
  svg.append(
    makeSvg("text", { class: "axis", x: WIDTH / 2, y: HEIGHT - 4, "text-anchor": "middle" }, xLabel),
    makeSvg("text", { class: "axis", x: 0, y: 11, "text-anchor": "start" }, yLabel),
  );
  for (const { className, shape, values } of series) {
    let path = "";
    values.forEach((value, place) => {
      if (Number.isFinite(value)) path += `${path ? "L" : "M"}${x(place).toFixed(1)} ${y(value).toFixed(1)}`;
    });
    svg.append(makeSvg("path", { class: `line ${className}`, d: path }));
    if (shape === null || shape === undefined) continue;
    let marks = "";
    values.forEach((value, place) => {
      if (Number.isFinite(value)) marks += shapePath(shape, +x(place).toFixed(1), +y(value).toFixed(1), 3.2);
    });
    svg.append(makeSvg("path", { class: `marks ${className}`, d: marks }));
  }
  return svg;
}

export function legend(series) {
  return make(
    "ul",
    { class: "legend" },
    ...series.map(({ name, className, shape }) => {
      const sign = makeSvg("svg", { viewBox: "0 0 30 12", class: "sign", "aria-hidden": "true" });
      sign.append(makeSvg("path", { class: `line ${className}`, d: "M1 6H29" }));
      if (shape !== null && shape !== undefined) {
        sign.append(makeSvg("path", { class: `marks ${className}`, d: shapePath(shape, 15, 6, 3.4) }));
      }
      return make("li", {}, sign, name);
    }),
  );
}
