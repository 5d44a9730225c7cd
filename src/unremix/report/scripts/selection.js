// Items that were selected, and the lists of them that a page gives.

import { csvLine, make } from "./data.js";
import { copyText } from "./page.js";

const SHOWN = 60; // items of the selection that are shown

export class Selection {
  constructor(root, data, items, map) {
    Object.assign(this, { data, items, map });
    this.chosen = new Set();
    this.find = (name) => root.querySelector(`[data-part="${name}"]`);
    this.find("copy-list").addEventListener("click", (event) => copyText(this.text(), event.currentTarget));
    this.find("copy-csv").addEventListener("click", (event) => copyText(this.csv(), event.currentTarget));
    this.find("save-list").addEventListener("click", () => this.save("selection.txt", this.text()));
    this.find("save-csv").addEventListener("click", () => this.save("selection.csv", this.csv()));
    this.find("clear").addEventListener("click", () => this.set([]));
    this.find("invert").addEventListener("click", () =>
      this.set(data.names.map((_, item) => item).filter((item) => !this.chosen.has(item))),
    );
    this.show();
  }

  // Select these, in place of the others or beside them.
  set(items, more = false) {
    this.chosen = new Set(more ? [...this.chosen, ...items] : items);
    this.map.highlight(this.chosen);
    this.show();
  }

  toggle(item) {
    const chosen = new Set(this.chosen);
    if (!chosen.delete(item)) chosen.add(item);
    this.set(chosen);
  }

  sorted() {
    return [...this.chosen].sort((a, b) => a - b);
  }

  // Its whole name, of which the page may show the beginning.
  name(item) {
    return this.data.whole[item] ?? this.data.names[item];
  }

  // A name on each line; a line break within one is a space.
  text() {
    return this.sorted().map((item) => `${this.name(item).replace(/[\r\n]+/g, " ")}\n`).join("");
  }

  csv() {
    const { labels, clusters } = this.data;
    const columns = ["name", ...(labels ? ["label"] : []), "cluster"];
    const row = (item) => [this.name(item), ...(labels ? [this.items.label(item)] : []), clusters[item] + 1];
    return [columns, ...this.sorted().map(row)].map((cells) => `${csvLine(cells)}\n`).join("");
  }

  save(name, text) {
    const url = URL.createObjectURL(new Blob([text], { type: "text/plain;charset=utf-8" }));
    make("a", { href: url, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  }

  show() {
    const { items } = this;
    const all = this.sorted();
    this.find("selected").textContent = `${all.length.toLocaleString("en")} of ${this.data.names.length.toLocaleString("en")} selected`;
    for (const name of ["copy-list", "copy-csv", "save-list", "save-csv", "clear"]) this.find(name).disabled = all.length === 0;
    this.find("picked").replaceChildren(
      ...all.slice(0, SHOWN).map((item) =>
        make("button", { type: "button", class: "pick", title: items.describe(item), "aria-label": `Remove ${items.describe(item)}`, onclick: () => this.toggle(item) }, items.show(item)),
      ),
      all.length > SHOWN ? make("span", { class: "note" }, `and ${(all.length - SHOWN).toLocaleString("en")} more`) : "",
    );
  }
}
