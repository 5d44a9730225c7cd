// How an item is shown: as an image, a drawing, a table of cells, or text.

import { make, makeSvg } from "./data.js";

const SHAPES = 4; // circle, square, triangle, diamond: a second cue beside the color

// The path of a marker around (x, y).
export function shapePath(shape, x, y, r) {
  if (shape === 1) return `M${x - r} ${y - r}h${2 * r}v${2 * r}h${-2 * r}z`;
  if (shape === 2) return `M${x} ${y - 1.2 * r}l${1.2 * r} ${2.1 * r}h${-2.4 * r}z`;
  if (shape === 3) return `M${x} ${y - 1.35 * r}l${1.35 * r} ${1.35 * r}l${-1.35 * r} ${1.35 * r}l${-1.35 * r} ${-1.35 * r}z`;
  return `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`;
}

export function colorOf(number) {
  return `var(--class-${number % 7})`;
}

// Node types beyond the seventh share a quiet color.
function nodeColor(type) {
  return type < 7 ? colorOf(type) : "var(--muted)";
}

// With seven colors, groups one after the other differ in both, and 28 in one of them.
export function shapeOf(number) {
  return number % SHAPES;
}

// What a class is called beside other text: a number alone would say nothing.
export function classTag(name) {
  return /^[-+]?\d+(\.\d+)?$/.test(name) ? `class ${name}` : String(name);
}

export class Items {
  constructor(data) {
    this.data = data;
    this.atlases = {};
    this.large = new Map((data.large ?? []).map((item, place) => [item, place]));
  }

  // The pictures are decoded before anything is shown.
  async ready() {
    for (const [name, atlas] of Object.entries(this.data.atlases ?? {})) {
      const picture = new Image();
      picture.src = `data:${atlas.kind};base64,${atlas.data}`;
      await picture.decode();
      this.atlases[name] = { ...atlas, picture };
      delete atlas.data;
    }
    return this;
  }

  name(item) {
    return this.data.names[item];
  }

  label(item) {
    const { labels, classes, clusters } = this.data;
    if (labels) return classes ? String(classes[labels[item]]) : `class ${labels[item]}`;
    return clusters ? `cluster ${clusters[item] + 1}` : "";
  }

  // The label as it is shown beside an item.
  tag(item) {
    return this.data.labels ? classTag(this.label(item)) : this.label(item);
  }

  describe(item) {
    return this.data.labels ? `${this.name(item)}, ${this.tag(item)}` : this.name(item);
  }

  tile(atlas, place, label) {
    const { tile, columns, picture } = atlas;
    const canvas = make("canvas", {
      class: tile <= 40 ? "thumb coarse" : "thumb",
      width: tile,
      height: tile,
      role: "img",
      "aria-label": label,
    });
    const x = (place % columns) * tile;
    const y = Math.floor(place / columns) * tile;
    canvas.getContext("2d").drawImage(picture, x, y, tile, tile, 0, 0, tile, tile);
    return canvas;
  }

  // The item itself, without its name. The node that is an anchor is circled where the item is one.
  show(item, anchor = false) {
    const { shown_as: shownAs } = this.data;
    if (shownAs === "thumbnail") {
      const place = this.large.get(item);
      if (place !== undefined) return this.tile(this.atlases.large, place, this.describe(item));
      return this.tile(this.atlases.items, item, this.describe(item));
    }
    const drawing = this.data.drawings?.[item];
    if (drawing) return drawGraph(anchor ? drawing : { ...drawing, marked: null }, this.describe(item));
    const cells = this.data.tables?.[item];
    if (cells) return drawTable(cells, this.describe(item));
    return make("span", { class: "sentence", dir: "auto" }, this.name(item));
  }

  // Sentences just before and after it in its document.
  around(item) {
    const { passages, names } = this.data;
    if (!passages) return null;
    const near = (other) => (passages[other] === passages[item] ? names[other] : null);
    return { before: near(item - 1), after: near(item + 1) };
  }
}

// A row of data: the name and value of each cell.
export function drawTable(cells, label) {
  const rows = cells.map(([name, value]) =>
    make("tr", {}, make("th", { scope: "row", dir: "auto", title: name }, name), make("td", { dir: "auto", title: value }, value)),
  );
  return make("table", { class: "cells", "aria-label": label }, make("tbody", {}, ...rows));
}

export function drawGraph(drawing, label) {
  const { points, edges, types, marked, nodes } = drawing;
  const svg = makeSvg("svg", { class: "drawing", viewBox: "0 0 100 100", role: "img" });
  const drawn = types.length < nodes ? `, ${types.length} of ${nodes} nodes drawn` : `, ${nodes} nodes`;
  svg.setAttribute("aria-label", label + drawn);
  let lines = "";
  for (let e = 0; e < edges.length; e += 2) {
    const [a, b] = [2 * edges[e], 2 * edges[e + 1]];
    lines += `M${points[a]} ${points[a + 1]}L${points[b]} ${points[b + 1]}`;
  }
  svg.append(makeSvg("path", { class: "edges", d: lines }));
  const radius = Math.max(1.6, Math.min(4.2, 26 / Math.sqrt(types.length)));
  const paths = new Map();
  types.forEach((type, node) => {
    const at = shapePath(type % SHAPES, points[2 * node], points[2 * node + 1], radius);
    paths.set(type, (paths.get(type) ?? "") + at);
  });
  for (const [type, path] of paths) {
    svg.append(makeSvg("path", { class: "nodes", d: path, style: `fill: ${nodeColor(type)}` }));
  }
  if (marked !== null && marked !== undefined) {
    const [x, y] = [points[2 * marked], points[2 * marked + 1]];
    svg.append(makeSvg("circle", { class: "marked", cx: x, cy: y, r: radius + 3 }));
  }
  return svg;
}

