// The negatives of an anchor under several weightings, side by side, ranked anew as controls move.

import { audit, matchedRates } from "./audits.js";
import { legend, lineChart } from "./charts.js";
import { bytes, csvLine, fixed, floats, make, percent, signed } from "./data.js";
import { copyText } from "./page.js";
import { Picker } from "./picker.js";
import { COMPONENTS, MAGNITUDE, ranked, scale, weigh, weightings } from "./weights.js";

const SHOWN = 6;
const AUDITED = 10;
const PAUSE = 100; // milliseconds without a change, before all anchors are looked at again
const LETTERS = { uncertainty: "u", similarity: "s", representativeness: "r" };
const REASONS = { 1: "same class", 2: "near-duplicate", 3: "shared neighbors" };
export const TITLES = {
  uniform: ["Uniform", "every negative alike"],
  hcl: ["HCL", "by similarity, exponentially"],
  uncertainty: ["Uncertainty", "u alone"],
  similarity: ["Similarity", "s alone"],
  representativeness: ["Representativeness", "r alone"],
  unremix: ["UnReMix", "the mix you set"],
};
const SHAPES = { uniform: null, hcl: 3, uncertainty: 2, similarity: 1, representativeness: 0, unremix: 0 };

export class Explorer {
  constructor(root, data, items) {
    this.root = root;
    this.data = data;
    this.items = items;
    this.size = data.batch.length;
    const scores = Object.fromEntries(COMPONENTS.map((name) => [name, floats(data.scores[name])]));
    const negatives = bytes(data.negatives);
    const suspects = bytes(data.suspects);
    const row = (values, i) => values.subarray(i * this.size, (i + 1) * this.size);
    this.rows = data.batch.map((item, i) => ({
      scores: Object.fromEntries(COMPONENTS.map((name) => [name, row(scores[name], i)])),
      negatives: row(negatives, i),
      suspects: row(suspects, i),
    }));
    this.labels = data.labels ? data.batch.map((item) => data.labels[item]) : null;
    for (const one of this.rows) one.expected = matchedRates({ ...one, similarity: one.scores.similarity });
    const start = data.weighting;
    this.start = {
      mix: [...start.mix],
      scaling: start.scaling,
      mass: start.mass,
      hardness: start.hardness,
      temperature: start.temperature,
      overTemperature: start.over_temperature,
    };
    this.controls = { ...this.start, mix: [...this.start.mix] };
    this.compared = "unremix"; // whose negatives of equal similarity the chart shows
    this.find = (name) => root.querySelector(`[data-part="${name}"]`);
    this.addControls();
    this.picker = new Picker(root, data, items, { badness: () => this.falseShares(), chosen: () => this.rank() });
    this.find("copy").addEventListener("click", (event) => copyText(this.csv(), event.currentTarget));
    this.find("copy-deciles").addEventListener("click", (event) => copyText(this.decilesAsCsv(), event.currentTarget));
    this.picker.chooseWorst(); // an anchor with false negatives shows more than one without
    this.examine();
  }

  // The share of UnReMix's weight on false negatives, of every anchor.
  falseShares() {
    const { how } = weightings(this.controls).find(({ name }) => name === "unremix");
    return this.rows.map(({ scores, negatives }, i) => this.falseShare(i, weigh(scores, negatives, how)) || 0);
  }

  falseShare(i, weights) {
    const { suspects, negatives } = this.rows[i];
    let total = 0;
    let on = 0;
    for (let j = 0; j < this.size; j++) {
      if (!negatives[j]) continue;
      total += weights[j];
      on += suspects[j] ? weights[j] : 0;
    }
    return total <= 0 ? 0 : on / total;
  }

  addControls() {
    const place = this.find("controls");
    const slider = (name, label, most, step, get, set) => {
      const id = `control-${name}`;
      const shown = make("output", { for: id });
      const input = make("input", { type: "range", id, min: 0, max: most, step, value: get() });
      const say = () => (shown.textContent = Number(input.value).toFixed(2));
      input.addEventListener("input", () => {
        set(Number(input.value));
        say();
        this.changed();
      });
      say();
      this.inputs.push(() => {
        input.value = get();
        say();
      });
      const letter = LETTERS[name] ? make("b", { class: `letter ${name}`, "aria-hidden": "true" }, LETTERS[name]) : null;
      return make("div", { class: "control" }, make("label", { for: id }, letter, label), input, shown);
    };
    const choice = (name, label, options, get, set) => {
      const id = `control-${name}`;
      const input = make(
        "select",
        { id },
        ...options.map(([value, text]) => make("option", { value }, text)),
      );
      input.value = get();
      input.addEventListener("change", () => {
        set(input.value);
        this.changed();
      });
      this.inputs.push(() => (input.value = get()));
      return make("div", { class: "control" }, make("label", { for: id }, label), input);
    };
    this.inputs = [];
    const { controls } = this;
    COMPONENTS.forEach((name, k) =>
      place.append(
        slider(name, `λ ${name}`, Math.max(1, ...this.start.mix), 0.01, () => this.controls.mix[k], (value) => (this.controls.mix[k] = value)),
      ),
    );
    place.append(
      slider("hardness", "Hardness β, of HCL and z-scores", Math.max(10, controls.hardness), 0.05, () => this.controls.hardness, (value) => (this.controls.hardness = value)),
      choice(
        "scaling",
        "Scaling",
        [["minmax", "minmax"], ["zscore-exp", "zscore-exp"], ["none", "none"]],
        () => this.controls.scaling,
        (value) => (this.controls.scaling = value),
      ),
      choice("mass", "Mass", [["mean", "mean: average 1"], ["none", "none"]], () => this.controls.mass, (value) => (this.controls.mass = value)),
      make(
        "button",
        {
          type: "button",
          class: "quiet",
          onclick: () => {
            this.controls = { ...this.start, mix: [...this.start.mix] };
            this.inputs.forEach((reset) => reset());
            this.changed();
          },
        },
        this.data.weighting.kind === "unremix" ? "As in this run" : "As at first",
      ),
    );
  }

  // Several changes between two frames are computed once.
  changed() {
    this.picker.worst = null;
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.rank();
      clearTimeout(this.pause);
      this.pause = setTimeout(() => this.examine(), PAUSE);
    });
  }

  // Whether the weighting of the run's own kind is at its positions.
  asInRun() {
    const { controls, start } = this;
    const { kind } = this.data.weighting;
    const same = (name) => String(controls[name]) === String(start[name]);
    if (kind === "hcl") return same("hardness");
    if (kind !== "unremix") return true;
    return same("mix") && same("scaling") && same("mass") && (controls.scaling !== "zscore-exp" || same("hardness"));
  }

  rank() {
    const i = this.picker.anchor;
    const { scores, negatives, suspects } = this.rows[i];
    const list = weightings(this.controls);
    // Bars need a range: from 0 to 1, whatever the scaling.
    const scaled = COMPONENTS.map((name) => scale(scores[name], negatives, "minmax", MAGNITUDE[name]));
    const own = this.data.weighting.kind;
    const badge = this.asInRun() ? "this run" : "changed";
    this.find("columns").replaceChildren(
      ...list.map(({ name, how }) => {
        const weights = weigh(scores, negatives, how);
        const all = ranked(weights, negatives);
        const order = all.slice(0, SHOWN);
        const most = Math.max(...order.map((j) => weights[j]), 1e-12);
        const [title, usual] = TITLES[name];
        const alike = all.length > SHOWN && weights[all[0]] === weights[all.at(-1)];
        const subtitle = alike ? `any ${SHOWN} of ${all.length}: all weigh the same` : usual;
        const share = this.falseShare(i, weights);
        const suspicion = this.data.labels ? "on its own class" : "on suspects";
        return make(
          "section",
          { class: `column ${name}`, "data-weighting": name, "aria-label": `${title}: ${subtitle}` },
          make(
            "header",
            {},
            make("h4", {}, title.replace("Represent", "Represent\u00ad"), own === name ? make("span", { class: "badge" }, badge) : null),
            make("p", {}, subtitle),
            make("p", { class: "figure" }, make("b", {}, percent(share)), ` of the weight ${suspicion}`),
          ),
          make(
            "ol",
            {},
            ...order.map((j) => this.card(j, weights[j], weights[j] / most, scaled.map((values) => values[j]), suspects[j])),
          ),
        );
      }),
    );
  }

  card(j, weight, share, bars, suspect) {
    const item = this.data.batch[j];
    const reason = suspect ? REASONS[suspect] : null;
    const spoken = COMPONENTS.map((name, k) => `${name} ${bars[k].toFixed(2)}`).join(", ");
    return make(
      "li",
      { class: suspect ? "negative suspect" : "negative", "data-item": item, "data-weight": weight },
      make("div", { class: "shown", title: this.items.describe(item) }, this.items.show(item)),
      make(
        "div",
        { class: "facts" },
        make("span", { class: "weight", title: "weight" }, Number.isFinite(weight) ? weight.toFixed(weight >= 100 ? 0 : 2) : "not finite"),
        make("span", { class: "bar total", "aria-hidden": "true" }, make("i", { style: `width: ${(100 * (share || 0)).toFixed(1)}%` })),
        make(
          "span",
          { class: "bars", role: "img", "aria-label": spoken, title: spoken },
          ...COMPONENTS.map((name, k) =>
            make("span", { class: `bar ${name}` }, make("i", { style: `width: ${(100 * Math.min(1, Math.max(0, bars[k]))).toFixed(1)}%` })),
          ),
        ),
      ),
      reason ? make("span", { class: "reason" }, reason) : null,
    );
  }

  // All negatives of the anchor, under every weighting.
  csv() {
    const { scores, negatives, suspects } = this.rows[this.picker.anchor];
    const list = weightings(this.controls);
    const all = list.map(({ how }) => weigh(scores, negatives, how));
    const lines = [csvLine(["name", "label", "suspected", ...COMPONENTS, ...list.map(({ name }) => `weight_${name}`)])];
    for (let j = 0; j < this.size; j++) {
      if (!negatives[j]) continue;
      const item = this.data.batch[j];
      lines.push(
        csvLine([
          this.items.name(item),
          this.data.labels ? this.items.label(item) : "",
          suspects[j] ? REASONS[suspects[j]] : "",
          ...COMPONENTS.map((name) => scores[name][j]),
          ...all.map((weights) => weights[j]),
        ]),
      );
    }
    return `${lines.join("\n")}\n`;
  }

  // The rate of false negatives in each tenth, and among those of equal similarity.
  decilesAsCsv() {
    const columns = this.audits.flatMap(({ name, found }) => [
      [name, found.deciles],
      [`${name}, equal similarity`, found.matchedDeciles],
    ]);
    const lines = [csvLine(["tenth", ...columns.map(([name]) => name)])];
    for (let tenth = 0; tenth < 10; tenth++) {
      lines.push(csvLine([tenth + 1, ...columns.map(([, values]) => (Number.isFinite(values[tenth]) ? values[tenth] : ""))]));
    }
    return `${lines.join("\n")}\n`;
  }

  examine() {
    const list = weightings(this.controls);
    this.audits = list.map(({ name, how }) => ({
      name,
      found: audit(
        this.rows.map(({ scores, negatives, suspects, expected }) => ({
          weights: weigh(scores, negatives, how),
          negatives,
          suspects,
          expected,
          labels: this.labels,
        })),
        AUDITED,
      ),
    }));
    this.showAudits();
  }

  showAudits() {
    const { compared } = this;
    const of = (name) => this.audits.find((one) => one.name === name).found;
    const series = this.audits
      .filter(({ name }) => name !== "uniform")
      .map(({ name, found }) => ({ name: TITLES[name][0], className: name, shape: SHAPES[name], values: found.deciles }));
    series.push(
      { name: `of equal similarity to those of ${TITLES[compared][0]}`, className: "matched", shape: null, values: of(compared).matchedDeciles },
      { name: "all negatives", className: "base", shape: null, values: new Array(10).fill(of("unremix").base) },
    );
    const what = this.data.labels ? "False negatives" : "Suspected false negatives";
    const place = this.find("deciles");
    place.replaceChildren(
      lineChart({
        title: `${what} by tenth of the weight`,
        series,
        xLabel: "tenth of the negatives, least to most weighted",
        yLabel: `${what}, %`,
        width: place.clientWidth,
      }),
      legend(series),
    );
    const negatives = Math.max(...this.rows.map((row) => row.negatives.reduce((sum, one) => sum + one, 0)));
    const looked = Math.min(AUDITED, negatives);
    const heaviest = looked === 1 ? "heaviest" : `${looked} heaviest`;
    const headings = [
      ["Weighting", "weighting"],
      [`Among the ${heaviest}`, `${what.toLowerCase()} among the ${heaviest}`],
      ["Equal similarity", "among negatives of equal similarity"],
      ["Difference", "difference"],
      ["Effective negatives", "effective negatives"],
    ];
    if (this.labels) headings.push(["Distinct classes", `distinct classes among the ${heaviest}`]);
    const said = `${what}, and what else is among the ${heaviest}`;
    const body = this.audits.map(({ name, found }) => {
      const gap = found.top - found.matched;
      const cells = [
        [found.top, percent(found.top)],
        [found.matched, percent(found.matched)],
        [gap, signed(100 * gap)],
        [found.effective, fixed(found.effective, 1)],
      ];
      if (this.labels) cells.push([found.distinct, percent(found.distinct, 0)]);
      const choose = make(
        "button",
        {
          type: "button",
          class: "plain",
          "aria-pressed": String(name === compared),
          onclick: () => {
            this.compared = name;
            this.showAudits();
            this.find("audit-table").querySelector("[aria-pressed='true']").focus();
          },
        },
        TITLES[name][0],
      );
      return make("tr", {}, make("th", { scope: "row" }, choose), ...cells.map(([value, text]) => make("td", { "data-value": value }, text)));
    });
    this.find("audit-table").replaceChildren(
      make("caption", {}, said),
      make("thead", {}, make("tr", {}, ...headings.map(([text, whole]) => make("th", { scope: "col", title: whole, "data-value": whole }, text)))),
      make("tbody", {}, ...body),
    );
    const own = of("unremix");
    const gap = 100 * (own.top - own.matched);
    const beside = "than negatives of equal similarity hold (as many just above as just below)";
    let verdict = "";
    if (Math.abs(gap) < 0.5) verdict = `, no more and no fewer ${beside}`;
    else if (Number.isFinite(gap)) verdict = `, ${Math.abs(gap).toFixed(1)} points ${gap < 0 ? "fewer" : "more"} ${beside}`;
    const subject = looked === 1 ? "the negative" : `the ${looked} negatives`;
    this.find("audit-says").textContent =
      `Of ${subject} that UnReMix weights most at these settings, ${percent(own.top)} ` +
      `${this.data.labels ? "are of the anchor’s own class" : "are suspected to show the same as the anchor"}${verdict}. ` +
      `Among all negatives it is ${percent(own.base)}.`;
  }
}
