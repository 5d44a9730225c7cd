// The scheme, and what copies: tables as CSV, commands as text.

import { csvLine } from "./data.js";

const labels = new WeakMap(); // of buttons, while they say what happened

export async function copyText(text, button) {
  let worked = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // A page opened from disk may be refused: copy from a text area instead.
    const area = document.createElement("textarea");
    area.value = text;
    area.setAttribute("aria-hidden", "true");
    area.style.position = "fixed";
    area.style.opacity = "0";
    document.body.append(area);
    area.select();
    worked = document.execCommand("copy");
    area.remove();
    button.focus();
  }
  const { label, timer } = labels.get(button) ?? { label: button.textContent };
  clearTimeout(timer);
  const status = document.getElementById("said");
  button.textContent = status.textContent = worked ? "Copied" : "Not allowed";
  const restore = () => {
    button.textContent = label;
    status.textContent = "";
    labels.delete(button);
  };
  labels.set(button, { label, timer: setTimeout(restore, 1400) });
}

// Numbers as they are, where a cell has them; some cells are for the eye alone.
export function tableAsCsv(table) {
  const line = (row) =>
    csvLine(
      [...row.cells]
        .filter((cell) => !("noCsv" in cell.dataset))
        .map((cell) => cell.dataset.value ?? cell.textContent.trim()),
    );
  return `${[...table.rows].map(line).join("\n")}\n`;
}

export function setUpPage() {
  // What is folded is printed too, and folded again afterwards.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    for (const one of folded) one.open = true;
  });
  addEventListener("afterprint", () => folded.forEach((one) => (one.open = false)));
  for (const button of document.querySelectorAll("[data-copy-table]")) {
    button.addEventListener("click", () => copyText(tableAsCsv(document.getElementById(button.dataset.copyTable)), button));
  }
  for (const button of document.querySelectorAll("[data-copy-value]")) {
    button.addEventListener("click", () => copyText(button.dataset.copyValue, button));
  }
  for (const button of document.querySelectorAll("[data-copy-text]")) {
    button.addEventListener("click", () => copyText(document.getElementById(button.dataset.copyText).textContent, button));
  }
}

// Light, dark or as the system has it; the page remembers nothing.
export function setUpScheme(changed) {
  const button = document.getElementById("scheme");
  const dark = () =>
    document.documentElement.dataset.scheme
      ? document.documentElement.dataset.scheme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
  const say = () => (button.textContent = dark() ? "Light" : "Dark");
  button.addEventListener("click", () => {
    document.documentElement.dataset.scheme = dark() ? "light" : "dark";
    say();
    changed();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    say();
    changed();
  });
  say();
}
