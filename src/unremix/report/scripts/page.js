// The scheme, and what copies: tables as CSV, commands as text.

import { csvLine } from "./data.js";

export async function copyText(text, button) {
  const before = button.textContent;
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
  button.textContent = worked ? "Copied" : "Not allowed";
  setTimeout(() => (button.textContent = before), 1400);
}

export function tableAsCsv(table) {
  return `${[...table.rows].map((row) => csvLine([...row.cells].map((cell) => cell.textContent.trim()))).join("\n")}\n`;
}

export function setUpPage() {
  for (const button of document.querySelectorAll("[data-copy-table]")) {
    button.addEventListener("click", () => copyText(tableAsCsv(document.getElementById(button.dataset.copyTable)), button));
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
