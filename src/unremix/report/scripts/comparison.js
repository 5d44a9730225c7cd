// The page of a comparison: the same anchors' negatives under each run.

import { make, percent, readData } from "./data.js";
import { showNodeTypes } from "./galleries.js";
import { Items } from "./items.js";
import { setUpPage, setUpScheme } from "./page.js";

class SideBySide {
  constructor(root, data, items) {
    this.data = data;
    this.items = items;
    this.find = (name) => root.querySelector(`[data-part="${name}"]`);
    this.buttons = data.batch.map((item, i) => {
      const button = make(
        "button",
        { type: "button", class: "pick", title: items.describe(item), "aria-pressed": "false", onclick: () => this.choose(i) },
        items.show(item, true),
      );
      this.find("anchors").append(button);
      return button;
    });
    const total = (i) => data.runs.reduce((sum, run) => sum + run.false[i], 0);
    this.order = data.batch.map((_, i) => i).sort((a, b) => total(b) - total(a));
    this.worst = 1; // the page begins with the worst
    this.find("random").addEventListener("click", () => {
      const shown = data.batch.map((_, i) => i).filter((i) => !this.buttons[i].hidden);
      if (shown.length) this.choose(shown[Math.floor(Math.random() * shown.length)]);
    });
    this.find("worst").addEventListener("click", () => this.choose(this.order[this.worst++ % this.order.length]));
    const search = this.find("search");
    search.addEventListener("input", () => {
      const asked = search.value.trim().toLowerCase();
      data.batch.forEach((item, i) => (this.buttons[i].hidden = !items.describe(item).toLowerCase().includes(asked)));
    });
    this.anchor = 0;
    this.choose(this.order[0]);
  }

  choose(i) {
    const { data, items } = this;
    this.buttons[this.anchor].setAttribute("aria-pressed", "false");
    this.buttons[i].setAttribute("aria-pressed", "true");
    this.buttons[i].scrollIntoView({ block: "nearest" });
    this.anchor = i;
    const item = data.batch[i];
    this.find("anchor").replaceChildren(
      make("div", { class: "portrait", style: data.kind === "sentence" ? "" : "max-width: 9rem" }, items.show(item, true)),
      make(
        "figcaption",
        {},
        data.kind === "sentence" ? null : make("strong", { dir: "auto" }, items.name(item)),
        data.labels ? make("span", { class: "tag", dir: "auto" }, items.label(item)) : null,
      ),
    );
    this.find("rows").replaceChildren(
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
