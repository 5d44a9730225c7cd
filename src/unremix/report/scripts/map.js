// The embedding map: every item a point on a canvas; hover shows it, a click its neighbors.

import { floats, make, wholes } from "./data.js";
import { classTag, shapeOf, shapePath } from "./items.js";

const RADIUS = 3.4;
const MANY = 2000; // more items than this get smaller points, so that the map does not fill up
const REACH = 14; // pixels from the pointer
const LOOKS = 28; // seven colors, four shapes
const LEGEND = LOOKS; // classes that are listed
const DRAG = 4; // pixels that the pointer moves in a click at most

export class EmbeddingMap {
  constructor(root, data, items) {
    this.root = root;
    this.data = data;
    this.items = items;
    this.positions = floats(data.positions);
    this.neighbors = wholes(data.neighbors);
    this.cosines = floats(data.cosines);
    this.count = data.names.length;
    this.perItem = this.neighbors.length / this.count;
    this.canvas = root.querySelector("canvas");
    this.side = root.querySelector("[data-part='item']");
    this.zoom = 1;
    this.offset = [0, 0];
    this.hovered = null;
    this.chosen = null;
    this.only = null;
    this.by = data.labels ? "labels" : "clusters"; // what colors show
    this.selected = new Set(); // where there are any, others are faded
    this.lasso = null; // corners of what is drawn around items, in pixels of the canvas
    this.drawing = false; // whether the pointer draws a lasso
    this.hooks = {}; // of a page that selects: chosen(item) makes an element, drawn(items, more)
    this.addLegend();
    this.listen();
    this.paint();
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  get groups() {
    return this.data[this.by];
  }

  // Colors show the classes (labels) or the clusters.
  colorBy(what) {
    this.by = what;
    this.only = null;
    this.addLegend();
    this.paint();
  }

  addLegend() {
    const { classes } = this.data;
    const counts = new Map();
    for (const group of this.groups) counts.set(group, (counts.get(group) ?? 0) + 1);
    const groups = [...counts.keys()].sort((a, b) => a - b);
    // Looks follow the order of the groups that occur.
    this.look = new Map(groups.map((group, number) => [group, number % LOOKS]));
    const place = this.root.querySelector("[data-part='legend']");
    place.replaceChildren();
    for (const group of groups.slice(0, LEGEND)) {
      const number = this.look.get(group);
      const sign = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      sign.setAttribute("viewBox", "0 0 12 12");
      sign.setAttribute("aria-hidden", "true");
      const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
      path.setAttribute("d", shapePath(shapeOf(number), 6, 6, 4));
      path.setAttribute("style", `fill: var(--class-${number % 7})`);
      sign.append(path);
      const name = this.by === "labels" ? classTag(classes ? classes[group] : group) : `cluster ${group + 1}`;
      place.append(
        make(
          "button",
          {
            type: "button",
            class: "key",
            "aria-pressed": "false",
            onclick: (event) => {
              this.only = this.only === group ? null : group;
              for (const key of place.children) key.setAttribute("aria-pressed", "false");
              event.currentTarget.setAttribute("aria-pressed", String(this.only === group));
              this.draw();
            },
          },
          sign,
          make("span", { dir: "auto" }, name),
          make("small", {}, counts.get(group)),
        ),
      );
    }
    if (groups.length > LEGEND) place.append(make("span", { class: "note" }, `and ${groups.length - LEGEND} more`));
  }

  // One small picture for each look of a point, in the colors of the present scheme.
  paint() {
    const style = getComputedStyle(this.root);
    const ratio = window.devicePixelRatio || 1;
    this.ratio = ratio;
    const items = this.positions.length / 2;
    const radius = RADIUS * Math.min(1, (MANY / items) ** 0.25);
    const size = Math.ceil(ratio * (2 * radius + 4));
    // The pixels of a point: where each lies, its color and its opacity.
    const sprite = (number, faint) => {
      const canvas = document.createElement("canvas");
      canvas.width = canvas.height = size;
      const context = canvas.getContext("2d");
      context.fillStyle = style.getPropertyValue(`--class-${number % 7}`).trim();
      context.fill(new Path2D(shapePath(shapeOf(number), size / 2, size / 2, ratio * radius)));
      const { data } = context.getImageData(0, 0, size, size);
      const pixels = [];
      for (let at = 0; at < data.length; at += 4) {
        if (data[at + 3] === 0) continue;
        const [x, y] = [(at / 4) % size, Math.floor(at / 4 / size)];
        pixels.push(x, y, data[at], data[at + 1], data[at + 2], ((faint ? 0.13 : 0.85) * data[at + 3]) / 255);
      }
      return Float32Array.from(pixels);
    };
    this.half = Math.floor(size / 2);
    this.pixels = null;
    const looks = [...new Set(this.look.values())];
    this.sprites = looks.map((number) => sprite(number, false));
    this.faint = looks.map((number) => sprite(number, true));
    this.ink = style.getPropertyValue("--ink").trim();
    this.paper = style.getPropertyValue("--card").trim();
    this.draw();
  }

  place(item) {
    const { width, height } = this.canvas;
    const margin = 14 * this.ratio;
    const x = margin + (width - 2 * margin) * this.positions[2 * item];
    const y = margin + (height - 2 * margin) * this.positions[2 * item + 1];
    return [
      (x - width / 2) * this.zoom + width / 2 + this.offset[0] * this.ratio,
      (y - height / 2) * this.zoom + height / 2 + this.offset[1] * this.ratio,
    ];
  }

  draw() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      this.render();
    });
  }

  render() {
    const { canvas } = this;
    const width = Math.round(canvas.clientWidth * this.ratio);
    const height = Math.round(canvas.clientHeight * this.ratio);
    if (width === 0 || height === 0) return;
    if (canvas.width !== width || canvas.height !== height) {
      canvas.width = width;
      canvas.height = height;
    }
    const context = canvas.getContext("2d");
    context.putImageData(this.points(width, height), 0, 0);
    if (this.chosen !== null) {
      const [x, y] = this.place(this.chosen);
      const places = this.near(this.chosen).map((other) => this.place(other.item));
      context.strokeStyle = this.ink;
      context.lineWidth = 1.2 * this.ratio;
      context.beginPath();
      for (const [a, b] of places) {
        context.moveTo(x, y);
        context.lineTo(a, b);
      }
      context.stroke();
      for (const [a, b] of places) this.ring(context, a, b, 5);
      this.ring(context, x, y, 8);
    }
    if (this.hovered !== null) this.ring(context, ...this.place(this.hovered), 7);
    if (this.lasso) {
      context.beginPath();
      for (const [x, y] of this.lasso) context.lineTo(x, y);
      context.closePath();
      context.lineWidth = 2 * this.ratio;
      context.strokeStyle = this.ink;
      context.setLineDash([6 * this.ratio, 4 * this.ratio]);
      context.stroke();
      context.setLineDash([]);
    }
  }

  // The items within the lasso: a line from a point crosses its edge an odd number of times.
  within(corners) {
    const found = [];
    for (let item = 0; item < this.count; item++) {
      const [x, y] = this.place(item);
      let inside = false;
      corners.forEach(([a, b], k) => {
        const [c, d] = corners[(k + 1) % corners.length];
        if (b > y !== d > y && x < a + ((y - b) / (d - b)) * (c - a)) inside = !inside;
      });
      if (inside) found.push(item);
    }
    return found;
  }

  // Fades all items but these; none fades nothing.
  highlight(items) {
    this.selected = items;
    this.pixels = null;
    this.draw();
  }

  // All points as pixels; a canvas operation for each of 10,000 would take ten times as long. They
  // are kept while only rings and lines over them change.
  points(width, height) {
    const state = [width, height, this.zoom, ...this.offset, this.only, this.by].join(" ");
    if (this.pixels && this.state === state) return this.pixels;
    this.state = state;
    this.pixels = new ImageData(width, height);
    const { data } = this.pixels;
    const { groups, selected } = this;
    const { positions, ratio, zoom, half } = this;
    const margin = 14 * ratio; // as place() has it, without an array for each point
    const shiftX = width / 2 + this.offset[0] * ratio - half;
    const shiftY = height / 2 + this.offset[1] * ratio - half;
    for (let item = 0; item < this.count; item++) {
      const left = Math.round((margin + (width - 2 * margin) * positions[2 * item] - width / 2) * zoom + shiftX);
      const top = Math.round((margin + (height - 2 * margin) * positions[2 * item + 1] - height / 2) * zoom + shiftY);
      if (left < -2 * half || top < -2 * half || left > width || top > height) continue;
      const faded = (this.only !== null && groups[item] !== this.only) || (selected.size > 0 && !selected.has(item));
      const sprite = (faded ? this.faint : this.sprites)[this.look.get(groups[item])];
      for (let p = 0; p < sprite.length; p += 6) {
        const x = left + sprite[p];
        const y = top + sprite[p + 1];
        if (x < 0 || y < 0 || x >= width || y >= height) continue;
        const at = 4 * (y * width + x);
        const over = sprite[p + 5];
        const under = (data[at + 3] / 255) * (1 - over);
        const total = over + under;
        data[at] = (sprite[p + 2] * over + data[at] * under) / total;
        data[at + 1] = (sprite[p + 3] * over + data[at + 1] * under) / total;
        data[at + 2] = (sprite[p + 4] * over + data[at + 2] * under) / total;
        data[at + 3] = 255 * total;
      }
    }
    return this.pixels;
  }

  ring(context, x, y, radius) {
    context.beginPath();
    context.arc(x, y, radius * this.ratio, 0, 2 * Math.PI);
    context.lineWidth = 4 * this.ratio;
    context.strokeStyle = this.paper;
    context.stroke();
    context.lineWidth = 2 * this.ratio;
    context.strokeStyle = this.ink;
    context.stroke();
  }

  near(item) {
    const found = [];
    for (let k = 0; k < this.perItem; k++) {
      const at = item * this.perItem + k;
      found.push({ item: this.neighbors[at], cosine: this.cosines[at] });
    }
    return found;
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = (event.clientX - box.left) * this.ratio;
    const y = (event.clientY - box.top) * this.ratio;
    let best = null;
    let least = (REACH * this.ratio) ** 2;
    for (let item = 0; item < this.count; item++) {
      const [a, b] = this.place(item);
      const distance = (a - x) ** 2 + (b - y) ** 2;
      if (distance < least) {
        least = distance;
        best = item;
      }
    }
    return best;
  }

  listen() {
    const { canvas } = this;
    let dragged = null;
    const corner = (event) => {
      const box = canvas.getBoundingClientRect();
      return [(event.clientX - box.left) * this.ratio, (event.clientY - box.top) * this.ratio];
    };
    canvas.addEventListener("pointermove", (event) => {
      if (this.lasso) {
        this.lasso.push(corner(event));
        this.draw();
        return;
      }
      if (dragged) {
        const [dx, dy] = [event.clientX - dragged.x, event.clientY - dragged.y];
        dragged.moved ||= Math.hypot(dx, dy) > DRAG;
        if (!dragged.moved) return;
        this.offset = [dragged.offset[0] + dx, dragged.offset[1] + dy];
        this.draw();
        return;
      }
      const found = this.at(event);
      if (found === this.hovered) return;
      this.hovered = found;
      if (this.chosen === null || found !== null) this.describe(found ?? this.chosen, this.chosen === found);
      this.draw();
    });
    canvas.addEventListener("pointerdown", (event) => {
      if (this.drawing) {
        this.lasso = [corner(event)];
        canvas.setPointerCapture(event.pointerId);
        return;
      }
      dragged = { x: event.clientX, y: event.clientY, offset: this.offset, moved: false };
    });
    const released = (event) => {
      setTimeout(() => (dragged = null)); // after the click that follows
      if (!this.lasso) return;
      const found = event.type === "pointerup" && this.lasso.length > 2 ? this.within(this.lasso) : null;
      this.lasso = null;
      this.draw();
      if (found) this.hooks.drawn?.(found, event.shiftKey);
    };
    window.addEventListener("pointerup", released);
    window.addEventListener("pointercancel", released);
    canvas.addEventListener("pointerleave", () => {
      this.hovered = null;
      this.describe(this.chosen, true);
      this.draw();
    });
    canvas.addEventListener("click", (event) => {
      if (dragged?.moved || this.drawing) return;
      this.choose(this.at(event));
    });
    canvas.addEventListener(
      "wheel",
      (event) => {
        if (!event.ctrlKey && !event.shiftKey) return;
        event.preventDefault();
        const box = canvas.getBoundingClientRect();
        const turned = event.deltaY || event.deltaX; // with Shift, some systems turn it sideways
        this.zoomBy(Math.exp(-turned / 400), [
          event.clientX - box.left - box.width / 2,
          event.clientY - box.top - box.height / 2,
        ]);
      },
      { passive: false },
    );
    canvas.addEventListener("keydown", (event) => {
      const ways = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
      if (ways[event.key]) {
        event.preventDefault();
        this.choose(this.towards(ways[event.key]));
      } else if (event.key === " " && this.hooks.toggled && this.chosen !== null) {
        event.preventDefault();
        this.hooks.toggled(this.chosen);
      } else if (event.key === "Escape") this.choose(null);
      else if (event.key === "+" || event.key === "=") this.zoomBy(1.4);
      else if (event.key === "-") this.zoomBy(1 / 1.4);
    });
    for (const [name, factor] of [["in", 1.5], ["out", 1 / 1.5]]) {
      this.root.querySelector(`[data-part='zoom-${name}']`).addEventListener("click", () => this.zoomBy(factor));
    }
    this.root.querySelector("[data-part='zoom-reset']").addEventListener("click", () => {
      this.zoom = 1;
      this.offset = [0, 0];
      this.draw();
    });
  }

  // Around a place, in pixels from the middle, that stays where it is.
  zoomBy(factor, around = [0, 0]) {
    const zoom = Math.min(40, Math.max(1, this.zoom * factor));
    this.offset = this.offset.map((part, k) => around[k] + ((part - around[k]) * zoom) / this.zoom);
    this.zoom = zoom;
    this.draw();
  }

  // The nearest point in a direction, for the arrow keys.
  towards([dx, dy]) {
    if (this.chosen === null) return 0;
    const [x, y] = this.place(this.chosen);
    let best = this.chosen;
    let least = Infinity;
    for (let item = 0; item < this.count; item++) {
      const [a, b] = this.place(item);
      const along = (a - x) * dx + (b - y) * dy;
      const across = Math.abs((a - x) * dy) + Math.abs((b - y) * dx);
      if (item === this.chosen || along <= 0.5 || across > 2 * along) continue;
      const cost = along + 2 * across;
      if (cost < least) {
        least = cost;
        best = item;
      }
    }
    return best;
  }

  choose(item) {
    this.chosen = item;
    this.describe(item, true);
    this.draw();
  }

  describe(item, withNeighbors) {
    if (item === null) {
      this.side.replaceChildren(make("p", { class: "note" }, "Point at the map to see an item. Click, or use the arrow keys, to see its nearest neighbors."));
      return;
    }
    const label = this.items.tag(item);
    const parts = [
      make("div", { class: "portrait" }, this.items.show(item)),
      this.data.shown_as === "text" ? null : make("strong", { dir: "auto", class: "name" }, this.items.name(item)),
      label ? make("span", { class: "tag", dir: "auto" }, label) : null,
    ];
    if (withNeighbors && this.chosen === item) {
      if (this.hooks.chosen) parts.push(this.hooks.chosen(item));
      parts.push(
        make("h4", {}, "Nearest neighbors, with cosines"),
        make(
          "ol",
          { class: ["text", "table"].includes(this.data.shown_as) ? "near of-wide" : "near" },
          ...this.near(item).map(({ item: other, cosine }) =>
            make(
              "li",
              { class: this.data.labels && this.data.labels[other] !== this.data.labels[item] ? "other-class" : null, title: this.items.describe(other) },
              make("button", { type: "button", class: "pick", "aria-label": `Go to ${this.items.describe(other)}`, onclick: () => this.choose(other) }, this.items.show(other)),
              make("small", {}, cosine.toFixed(3)),
            ),
          ),
        ),
      );
    }
    this.side.replaceChildren(...parts.filter(Boolean));
  }
}
