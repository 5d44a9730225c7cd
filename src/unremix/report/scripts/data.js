// The data of the page, and elements made of text that is never read as markup.

const bytesOf = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

export function floats(text) {
  return new Float32Array(bytesOf(text).buffer);
}

export function wholes(text) {
  return new Uint32Array(bytesOf(text).buffer);
}

export function bytes(text) {
  return bytesOf(text);
}

export function readData(id = "data") {
  const holder = document.getElementById(id);
  return holder === null ? null : JSON.parse(holder.textContent);
}

// An element; attributes of null or false are left out, and text stays text.
export function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "style") made.style.cssText = value;
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export function makeSvg(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) made.setAttribute(name, String(value));
  }
  made.append(...children);
  return made;
}

// A number as text; what is not finite has none.
export function fixed(value, digits) {
  return Number.isFinite(value) ? value.toFixed(digits) : "–";
}

// A difference with its sign; one that is shown as 0 has none.
export function signed(value, digits = 1) {
  const text = fixed(Math.abs(value), digits);
  return Number(text) > 0 ? `${value < 0 ? "−" : "+"}${text}` : text;
}

export function percent(share, digits = 1) {
  return Number.isFinite(share) ? `${(100 * share).toFixed(digits)} %` : "–";
}

// One line of CSV; cells with commas, quotes or line breaks are quoted, and a cell that a
// spreadsheet would run as a formula is kept as text.
export function csvLine(cells) {
  return cells
    .map((cell) => {
      let text = String(cell ?? "");
      const number = /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i.test(text);
      if (!number && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
      return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    })
    .join(",");
}
