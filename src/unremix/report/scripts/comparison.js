// The page of a comparison: the same anchors' negatives under each run.

import { make, percent, readData } from "./data.js";
import { showNodeTypes } from "./galleries.js";
import { Items } from "./items.js";
import { setUpPage, setUpScheme } from "./page.js";
import { Picker } from "./picker.js";

class SideBySide {
  constructor(root, data, items) {
    this.data = data;
    this.items = items;
    this.rows = root.querySelector('[data-part="rows"]');
    const total = data.batch.map((_, i) => data.runs.reduce((sum, run) => sum + run.false[i], 0));
    this.picker = new Picker(root, data, items, { badness: () => total, chosen: (i) => this.show(i) });
    this.picker.chooseWorst();
  }

  show(i) {
    const { data, items } = this;
    this.rows.replaceChildren(
      ...data.runs.map((run) =>
        make(
          "section",
          { class: "run-row", "data-run": run.name, style: "margin: 0" },
          make(
            "header",
            {},
            make("h3", { dir: "auto" }, run.name),
            run.note ? make("p", { class: "note" }, run.note) : null,
            make("p", { class: "note" }, make("b", {}, percent(run.false[i])), ` of the weight on ${data.labels ? "its own class" : "suspects"}`),
          ),
          make(
            "ol",
            {},
            ...run.top[i].map((j, k) =>
              make(
                "li",
                { class: run.suspects[i][k] ? "suspect" : null, "data-item": data.batch[j], title: items.describe(data.batch[j]) },
                items.show(data.batch[j]),
                make("small", {}, run.weights[i][k].toFixed(2), run.suspects[i][k] ? " ≈" : ""),
              ),
            ),
          ),
        ),
      ),
    );
  }
}

async function start() {
  setUpPage();
  setUpScheme(() => {});
  const data = readData();
  if (data !== null) {
    const items = await new Items(data).ready();
    Object.assign(window, { unremix: { comparison: new SideBySide(document.getElementById("explorer"), data, items) } });
    for (const place of document.querySelectorAll(".node-types")) showNodeTypes(place, data);
  }
  document.documentElement.dataset.ready = "true";
}

start();
