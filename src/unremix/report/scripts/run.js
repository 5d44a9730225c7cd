// The page of a run.

import { readData } from "./data.js";
import { Explorer } from "./explorer.js";
import { showNeighbors, showNodeTypes, showOutliers, showPairs, showViews } from "./galleries.js";
import { Items } from "./items.js";
import { EmbeddingMap } from "./map.js";
import { setUpPage, setUpScheme } from "./page.js";

async function start() {
  setUpPage();
  const data = readData();
  let map = null;
  setUpScheme(() => map?.paint());
  if (data !== null) {
    const items = await new Items(data).ready();
    const at = (id) => document.getElementById(id);
    const explorer = new Explorer(at("explorer"), data, items);
    map = new EmbeddingMap(at("map"), data, items);
    showNeighbors(at("neighbor-rows"), data, items);
    showPairs(at("pair-rows"), data, items);
    showOutliers(at("outlier-rows"), data, items);
    if (at("view-rows")) showViews(at("view-rows"), data, items);
    for (const place of document.querySelectorAll(".node-types")) showNodeTypes(place, data);
    Object.assign(window, { unremix: { explorer, map } });
  }
  document.documentElement.dataset.ready = "true";
}

start();
