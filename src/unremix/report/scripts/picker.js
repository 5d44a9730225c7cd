// The choice of an anchor: by a click, a search, the arrow keys, at random, or the worst first.

import { make } from "./data.js";

export class Picker {
  // root holds the parts; badness gives a number for each anchor, the worst the largest;
  // chosen is called with the place of an anchor in the batch.
  constructor(root, data, items, { badness, chosen }) {
    Object.assign(this, { data, items, badness, chosen });
    this.find = (name) => root.querySelector(`[data-part="${name}"]`);
    this.anchor = -1; // none yet
    this.worst = null; // the last that was chosen as the worst
    this.grid = this.find("anchors");
    this.buttons = data.batch.map((item, i) =>
      make(
        "button",
        { type: "button", class: "pick", title: items.describe(item), tabindex: -1, "aria-pressed": "false", onclick: () => this.choose(i) },
        items.show(item, true),
      ),
    );
    this.grid.append(...this.buttons);
    this.grid.addEventListener("keydown", (event) => this.step(event));
    this.find("search").addEventListener("input", (event) => this.search(event.currentTarget.value));
    this.find("random").addEventListener("click", () => {
      const some = this.visible().filter((i) => i !== this.anchor);
      if (some.length) this.choose(some[Math.floor(Math.random() * some.length)]);
    });
    this.find("worst").addEventListener("click", () => this.chooseWorst());
  }

  // The anchors that the search leaves.
  visible() {
    return this.buttons.map((_, i) => i).filter((i) => !this.buttons[i].hidden);
  }

  // The name of a class finds its anchors; anything else, what is part of a name.
  search(text) {
    const { data, items } = this;
    const asked = text.trim().toLowerCase();
    const labels = data.batch.map((item) => (data.labels ? items.label(item).toLowerCase() : null));
    const ofClass = labels.includes(asked);
    data.batch.forEach((item, i) => {
      this.buttons[i].hidden = ofClass ? labels[i] !== asked : !items.describe(item).toLowerCase().includes(asked);
    });
    const shown = `${this.visible().length} of ${data.batch.length}`;
    this.find("found").textContent = asked ? (ofClass ? `${shown}, of this class` : shown) : "";
    this.worst = null;
    this.setTabStop();
  }

  // The worst anchor, then the next; a click always changes something.
  chooseWorst() {
    const bad = this.badness();
    const order = this.visible().sort((a, b) => bad[b] - bad[a] || a - b);
    if (!order.length) return;
    const goesOn = this.worst === this.anchor || order[0] === this.anchor;
    const place = goesOn ? order.indexOf(this.anchor) + 1 : 0;
    this.worst = order[place % order.length];
    this.choose(this.worst);
  }

  // One anchor is reached with Tab, the others from there.
  setTabStop() {
    const shown = this.visible();
    const stop = shown.includes(this.anchor) ? this.anchor : shown[0];
    this.buttons.forEach((button, i) => (button.tabIndex = i === stop ? 0 : -1));
  }

  // Arrow keys, Home and End among the anchors.
  step(event) {
    const shown = this.visible();
    const at = shown.findIndex((i) => this.buttons[i] === document.activeElement);
    if (at < 0) return;
    const top = (i) => this.buttons[i].offsetTop;
    const columns = shown.filter((i) => top(i) === top(shown[0])).length;
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns, Home: -shown.length, End: shown.length };
    if (!(event.key in steps)) return;
    event.preventDefault();
    const next = shown[Math.min(shown.length - 1, Math.max(0, at + steps[event.key]))];
    this.choose(next);
    this.buttons[next].focus({ preventScroll: true });
  }

  choose(i) {
    this.buttons[this.anchor]?.setAttribute("aria-pressed", "false");
    this.anchor = i;
    this.buttons[i].setAttribute("aria-pressed", "true");
    this.setTabStop();
    const { grid } = this;
    const { offsetTop, offsetHeight } = this.buttons[i];
    const above = offsetTop - grid.offsetTop;
    if (above < grid.scrollTop || above + offsetHeight > grid.scrollTop + grid.clientHeight) {
      grid.scrollTop = above - (grid.clientHeight - offsetHeight) / 2;
    }
    this.showAnchor(this.data.batch[i]);
    this.chosen(i);
  }

  // The anchor large: a sentence between those before and after it, anything else with its name.
  showAnchor(item) {
    const { items } = this;
    const around = items.around(item);
    const line = (text, word) => (text ? make("p", { class: "around", dir: "auto" }, make("span", { class: "tag" }, word), text) : "");
    this.find("anchor").replaceChildren(
      around ? line(around.before, "before") : "",
      make("div", { class: "portrait" }, items.show(item, true)),
      around ? line(around.after, "after") : "",
      make(
        "figcaption",
        {},
        around ? null : make("strong", { dir: "auto" }, items.name(item)),
        this.data.labels ? make("span", { class: "tag", dir: "auto" }, items.tag(item)) : null,
      ),
    );
  }
}
