// The page of embedded data: search, selections, near-duplicates, clusters, doubtful labels.

import { floats, make, makeSvg, percent, readData, wholes } from "./data.js";
import { Explorer } from "./explorer.js";
import { showNeighbors, showNodeTypes, showOutliers, showPairs, shownItem } from "./galleries.js";
import { classTag, Items } from "./items.js";
import { EmbeddingMap } from "./map.js";
import { setUpPage, setUpScheme } from "./page.js";
import { Selection } from "./selection.js";

const FOUND = 24; // items that a search shows
const GROUPS = 40; // groups of near-duplicates that are shown
const MEMBERS = 8; // items of a group that are shown
const BINS = 40;

const at = (id) => document.getElementById(id);
const counted = (count, what) => `${count.toLocaleString("en")} ${what}${count === 1 ? "" : "s"}`;

// The items of each value, by value.
function byValue(values) {
  const members = new Map();
  values.forEach((value, item) => {
    if (!members.has(value)) members.set(value, []);
    members.get(value).push(item);
  });
  return members;
}

// A group of items with a heading, and a button that selects all of them.
function groupRow(items, heading, note, members, all, selection) {
  return make(
    "section",
    { class: "group-row" },
    make(
      "header",
      {},
      make("h4", {}, heading),
      note ? make("p", { class: "note", dir: "auto" }, note) : null,
      make("button", { type: "button", class: "quiet", "aria-label": `Select ${heading}`, onclick: (event) => selection.set(all(), event.shiftKey) }, "Select"),
    ),
    make("div", { class: "others" }, ...members.map((item) => shownItem(items, item))),
  );
}

// Names and classes that hold the words; the item that is chosen shows its neighbors.
function setUpSearch(data, items, map, selection) {
  const [field, said, place, select] = ["find", "found-count", "found", "select-found"].map(at);
  const texts = data.names.map((_, item) => items.describe(item).toLowerCase());
  let found = [];
  const go = (item) => {
    map.choose(item);
    map.canvas.scrollIntoView({ block: "nearest" });
  };
  field.addEventListener("input", () => {
    const asked = field.value.trim().toLowerCase();
    found = asked ? texts.flatMap((text, item) => (text.includes(asked) ? [item] : [])) : [];
    said.textContent = asked ? `${found.length.toLocaleString("en")} found${found.length > FOUND ? `, ${FOUND} shown` : ""}` : "";
    select.disabled = found.length === 0;
    place.replaceChildren(
      ...found.slice(0, FOUND).map((item) =>
        make("button", { type: "button", class: "pick", title: items.describe(item), "aria-label": items.describe(item), onclick: () => go(item) }, items.show(item)),
      ),
    );
  });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && found.length) go(found[0]);
  });
  select.addEventListener("click", (event) => selection.set(found, event.shiftKey));
}

// Whole classes, clusters and doubtful labels, by a list.
function setUpSets(data, selection) {
  const sets = [];
  const list = at("set");
  const group = (label, values, name) => {
    if (!values) return;
    const members = byValue(values);
    const options = [...members.keys()].sort((a, b) => a - b).map((value) => {
      sets.push(members.get(value));
      return make("option", { value: sets.length - 1 }, `${name(value)} (${members.get(value).length})`);
    });
    list.append(make("optgroup", { label }, ...options));
  };
  group("Classes", data.labels, (value) => classTag(data.classes ? data.classes[value] : value));
  group("Clusters", data.clusters, (value) => `cluster ${value + 1}`);
  at("select-set").addEventListener("click", (event) => selection.set(sets[list.value], event.shiftKey));
  at("add-set").addEventListener("click", () => selection.set(sets[list.value], true));
}

// Groups that a chain of near neighbors connects, largest first.
export function duplicateGroups(neighbors, cosines, count, threshold) {
  const root = Array.from({ length: count }, (_, item) => item);
  const top = (item) => {
    while (root[item] !== item) item = root[item] = root[root[item]];
    return item;
  };
  const perItem = neighbors.length / count;
  for (let at = 0; at < neighbors.length; at++) {
    if (cosines[at] < threshold) continue;
    const [a, b] = [top(Math.floor(at / perItem)), top(neighbors[at])];
    root[Math.max(a, b)] = Math.min(a, b);
  }
  return [...byValue(root.map((_, item) => top(item))).values()].filter((one) => one.length > 1).sort((a, b) => b.length - a.length || a[0] - b[0]);
}

// How similar each item is to its nearest one, and the threshold among these.
function histogram(nearest, threshold) {
  const [low, high] = [Math.min(...nearest), 1];
  const span = Math.max(high - low, 1e-9);
  const counts = new Array(BINS).fill(0);
  for (const one of nearest) counts[Math.min(BINS - 1, Math.max(0, Math.floor(((one - low) / span) * BINS)))] += 1;
  const [width, height, edge] = [600, 130, 24];
  const x = (cosine) => edge + ((width - 2 * edge) * (cosine - low)) / span;
  const most = Math.max(...counts);
  const bars = counts.map((count, k) => {
    const tall = count ? Math.max(2, (count / most) * (height - 34)) : 0;
    const [from, to] = [low + (k * span) / BINS, low + ((k + 1) * span) / BINS];
    return makeSvg("rect", { class: from >= threshold ? "alike" : "apart", x: x(from), y: height - 20 - tall, width: Math.max(1, x(to) - x(from) - 1), height: tall });
  });
  const label = (cosine, anchor) => {
    const text = makeSvg("text", { x: x(cosine), y: height - 4, "text-anchor": anchor });
    text.textContent = cosine.toFixed(2);
    return text;
  };
  return makeSvg(
    "svg",
    { class: "chart histogram", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Cosine of each item and its nearest one, from ${low.toFixed(2)} to 1, with the threshold at ${threshold.toFixed(4)}` },
    ...bars,
    makeSvg("path", { class: "zero", d: `M${edge} ${height - 20}H${width - edge}` }),
    makeSvg("path", { class: "cut", d: `M${x(Math.max(low, threshold))} 4V${height - 20}` }),
    label(low, "start"),
    label(high, "end"),
  );
}

function setUpDuplicates(data, items, selection) {
  const [neighbors, cosines, count] = [wholes(data.neighbors), floats(data.cosines), data.names.length];
  const perItem = neighbors.length / count;
  const nearest = data.names.map((_, item) => cosines[item * perItem]);
  const { threshold } = data.nearest;
  const slider = at("threshold");
  slider.min = Math.min(threshold, Math.min(...nearest)).toFixed(3);
  slider.value = threshold;
  let groups = [];
  const show = () => {
    const cut = Number(slider.value) === Number(threshold.toFixed(3)) ? threshold : Number(slider.value);
    groups = duplicateGroups(neighbors, cosines, count, cut);
    const inside = groups.reduce((sum, one) => sum + one.length, 0);
    at("threshold-shown").textContent = cut.toFixed(3);
    at("duplicate-says").textContent =
      `${counted(groups.length, "group")} with ${counted(inside, "item")} from a cosine of ${cut.toFixed(3)} on.` +
      (groups.length > GROUPS ? ` The ${GROUPS} largest are shown.` : "");
    at("histogram").replaceChildren(histogram(nearest, cut));
    at("select-copies").disabled = groups.length === 0;
    at("duplicate-rows").replaceChildren(
      ...groups.slice(0, GROUPS).map((one, k) =>
        groupRow(items, `Group ${k + 1}`, `${one.length} alike`, one.slice(0, MEMBERS), () => one, selection),
      ),
    );
  };
  slider.addEventListener("input", () => requestAnimationFrame(show));
  at("threshold-reset").addEventListener("click", () => {
    slider.value = threshold;
    show();
  });
  at("select-copies").addEventListener("click", (event) => selection.set(groups.flatMap((one) => one.slice(1)), event.shiftKey));
  show();
}

function setUpClusters(data, items, selection) {
  const members = byValue(data.clusters);
  at("cluster-rows").replaceChildren(
    ...data.groups.map(({ items: central, holds }, cluster) => {
      const all = members.get(cluster) ?? [];
      return groupRow(items, `Cluster ${cluster + 1}`, `${counted(all.length, "item")}${holds ? `: ${holds}` : ""}`, central, () => all, selection);
    }),
  );
}

function setUpSuspicious(data, items, selection) {
  const place = at("suspicious-rows");
  if (!place) return;
  place.replaceChildren(
    ...data.suspicious.map(({ item, taken, share }) =>
      shownItem(items, item, `neighbors: ${classTag(data.classes ? data.classes[taken] : taken)}, ${percent(share, 0)}`, true),
    ),
  );
  at("select-suspicious").addEventListener("click", (event) => selection.set(data.suspicious.map(({ item }) => item), event.shiftKey));
}

// The negatives of one batch, or of another: its part of the page begins anew.
function setUpBatches(data, items) {
  const empty = at("explorer").cloneNode(true);
  const list = at("batch");
  const show = () => {
    const fresh = empty.cloneNode(true);
    at("explorer").replaceWith(fresh);
    window.unremix.explorer = new Explorer(fresh, { ...data, ...data.batches[list?.value ?? 0] }, items);
  };
  list?.addEventListener("change", show);
  show();
}

async function start() {
  setUpPage();
  const data = readData();
  let map = null;
  setUpScheme(() => map?.paint());
  const items = await new Items(data).ready();
  map = new EmbeddingMap(at("map"), data, items);
  const selection = new Selection(at("selection"), data, items, map);
  Object.assign(window, { unremix: { map, selection } });
  map.hooks = {
    drawn: (found, more) => selection.set(found, more),
    toggled: (item) => selection.toggle(item),
    chosen: (item) =>
      make("button", { type: "button", class: "quiet", onclick: () => selection.toggle(item) }, "Add to the selection, or remove"),
  };
  const lasso = at("lasso");
  lasso.addEventListener("click", () => {
    map.drawing = !map.drawing;
    lasso.setAttribute("aria-pressed", String(map.drawing));
    map.canvas.style.touchAction = map.drawing ? "none" : "";
  });
  at("color-by")?.addEventListener("change", (event) => map.colorBy(event.currentTarget.value));
  setUpSearch(data, items, map, selection);
  setUpSets(data, selection);
  setUpDuplicates(data, items, selection);
  setUpClusters(data, items, selection);
  setUpSuspicious(data, items, selection);
  showNeighbors(at("neighbor-rows"), data, items);
  showPairs(at("pair-rows"), data, items);
  showOutliers(at("outlier-rows"), data, items);
  for (const place of document.querySelectorAll(".node-types")) showNodeTypes(place, data);
  setUpBatches(data, items);
  document.documentElement.dataset.ready = "true";
}

start();
