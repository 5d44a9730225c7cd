// Neighbors of some items, the closest pairs, the least typical items, and the views.

import { floats, make, wholes } from "./data.js";
import { drawGraph } from "./items.js";

export function shownItem(items, item, note, marked = false) {
  const { labels } = items.data;
  return make(
    "figure",
    { class: marked ? "item differs" : "item", title: items.describe(item) },
    items.show(item),
    make(
      "figcaption",
      {},
      !labels ? null : make("span", { dir: "auto" }, items.tag(item)),
      note ? make("small", {}, note) : null,
    ),
  );
}

export function showNeighbors(place, data, items) {
  const neighbors = wholes(data.neighbors);
  const cosines = floats(data.cosines);
  const perItem = neighbors.length / data.names.length;
  for (const query of data.queries) {
    const row = make("div", { class: "query" }, shownItem(items, query, "query"));
    const others = make("div", { class: "others" });
    const most = ["text", "table"].includes(data.shown_as) ? 4 : perItem;
    for (let k = 0; k < Math.min(most, perItem); k++) {
      const other = neighbors[query * perItem + k];
      const differs = Boolean(data.labels) && data.labels[other] !== data.labels[query];
      others.append(shownItem(items, other, cosines[query * perItem + k].toFixed(3), differs));
    }
    row.append(others);
    place.append(row);
  }
}

export function showPairs(place, data, items) {
  for (const { items: pair, cosine, duplicate } of data.closest) {
    const differs = Boolean(data.labels) && data.labels[pair[0]] !== data.labels[pair[1]];
    const words = [duplicate ? "near-duplicate" : null, differs ? "different classes" : null].filter(Boolean);
    place.append(
      make(
        "div",
        { class: duplicate ? "pair duplicate" : "pair" },
        make("div", { class: "two" }, shownItem(items, pair[0]), shownItem(items, pair[1])),
        make("small", {}, [`cosine ${cosine.toFixed(4)}`, ...words].join(" · ")),
      ),
    );
  }
}

export function showOutliers(place, data, items) {
  const cosines = floats(data.cosines);
  const perItem = cosines.length / data.names.length;
  for (const item of data.outliers) {
    let total = 0;
    for (let k = 0; k < perItem; k++) total += cosines[item * perItem + k];
    place.append(shownItem(items, item, (total / perItem).toFixed(3)));
  }
}

export function showViews(place, data, items) {
  const pair = (...shown) => place.append(make("div", { class: "views" }, ...shown));
  (data.views ?? []).forEach((item, number) => {
    const view = (which) => items.tile(items.atlases.views, 2 * number + which, `view ${which + 1} of ${items.name(item)}`);
    pair(items.show(item), make("span", { "aria-hidden": "true" }, "→"), view(0), view(1));
  });
  for (const row of data.drawn_views ?? []) {
    const [whole, ...views] = row;
    pair(
      drawGraph(whole, "graph"),
      make("span", { "aria-hidden": "true" }, "→"),
      ...views.map((view, which) => drawGraph(view, `view ${which + 1}`)),
    );
  }
  for (const [text, words] of data.read_as ?? []) {
    pair(
      make("p", { dir: "auto" }, text),
      make("p", { class: "words", dir: "auto" }, ...words.map((word) => make("span", { class: word === "…" ? "unknown" : null }, word))),
    );
  }
}

export function showNodeTypes(place, data) {
  (data.node_types ?? []).forEach((name, number) => {
    const drawing = { points: [50, 50], edges: [], types: [number], nodes: 1 };
    const sign = drawGraph(drawing, "");
    sign.setAttribute("viewBox", "44 44 12 12");
    sign.setAttribute("aria-hidden", "true");
    place.append(make("li", {}, sign, make("span", { dir: "auto" }, name)));
  });
}
