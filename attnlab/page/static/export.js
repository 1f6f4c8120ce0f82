// A result to take along: its link, its figure as SVG and PNG, its numbers as CSV, its text.

import * as address from "./address.js";
import {attempt} from "./api.js";
import {make, refill} from "./make.js";

const SHARP = 2; // pixels of a PNG for each of the page
const BRIEF = 4000; // milliseconds for which a message stands

/**
 * Buttons under a result. Given are functions, asked when somebody clicks:
 *   figure()   an SVG element that stands on its own (figure.js)
 *   numbers()  {columns, rows}
 *   text()     the text itself
 *   link()     the part after "#", if it is another than the one in the address bar; null: no link
 *   name()     of the result, for the names of files
 */
export function exportBar({figure = null, numbers = null, text = null, link, name}) {
  const said = make("span", {class: "said", role: "status"});
  const file = (end) => `${fileName(name?.() ?? "")}.${end}`;
  let clock = null;

  function tell(...words) {
    clearTimeout(clock);
    refill(said, ...words);
    clock = setTimeout(() => refill(said), BRIEF);
  }

  function button(words, spoken, work) {
    const one = make("button", {type: "button", class: "small", "aria-label": spoken}, words);
    one.addEventListener("click", () => attempt(work));
    return one;
  }

  async function copy() {
    const whole = `${location.origin}${location.pathname}${link?.() ?? location.hash}`;
    try {
      await navigator.clipboard.writeText(whole);
      tell("Link copied.");
    } catch { // not every browser lets a page write there
      const field = make("input", {type: "text", readonly: true, value: whole});
      field.setAttribute("aria-label", "The link, to copy by hand");
      clearTimeout(clock);
      refill(said, field);
      field.select();
    }
  }

  const save = (content, kind, end) => {
    download(new Blob([content], {type: kind}), file(end));
    tell(`Saved ${file(end)}.`);
  };
  return make(
    "div",
    {class: "export", role: "group", "aria-label": "Take this along"},
    link === null ? null : button("Copy link", "Copy link to what is shown here", copy),
    figure && button("SVG", "Figure as SVG", () => save(written(figure()), "image/svg+xml", "svg")),
    figure && button(
      "PNG",
      "Figure as PNG",
      async () => save(await painted(figure()), "image/png", "png"),
    ),
    numbers && button("CSV", "Numbers as CSV", () => save(csv(numbers()), "text/csv", "csv")),
    text && button("Text", "Text as a file", () => save(text(), "text/plain", "txt")),
    said,
  );
}

function download(blob, name) {
  const place = URL.createObjectURL(blob);
  make("a", {href: place, download: name}).click();
  setTimeout(() => URL.revokeObjectURL(place), 60_000);
}

function fileName(title) {
  const {view, item} = address.read();
  const words = ["attnlab", view, item, title].join(" ").normalize("NFKD").toLowerCase();
  return words.replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 80).replace(/-$/, "");
}

/** An SVG element as a file; what XML has no place for is replaced. */
function written(svg) {
  const text = new XMLSerializer().serializeToString(svg);
  const fit = text.replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "\ufffd");
  return `<?xml version="1.0" encoding="UTF-8"?>\n${fit.toWellFormed?.() ?? fit}\n`;
}

async function painted(svg) {
  const [width, height] = ["width", "height"].map((side) => Number(svg.getAttribute(side)));
  const picture = new Image(width, height);
  picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(written(svg))}`;
  await picture.decode();
  const canvas = make("canvas", {width: SHARP * width, height: SHARP * height});
  canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve, fail) => {
    const done = (blob) => (blob ? resolve(blob) : fail(new Error("This figure is too large.")));
    canvas.toBlob(done, "image/png");
  });
}

/** Numbers with all their digits; as the reports write them (attnlab/reports/spreadsheet.py). */
export function csv({columns, rows}) {
  return [columns, ...rows].map((row) => `${row.map(field).join(",")}\n`).join("");
}

function field(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "number") return `${value}`;
  let text = `${value}`;
  if (!/^[+-]?\d+(\.\d+)?(e[+-]?\d+)?$/.test(text)) {
    // a spreadsheet would compute what begins like this; after an apostrophe it is text
    text = text.replace(/(;\s*)(?=[=+@-])/g, "$1'").replace(/^(?=\s*[=+\-@＝＋－＠\t\r])/, "'");
  }
  return /[",\n\r]/.test(text) ? `"${text.replaceAll("\"", "\"\"")}"` : text;
}
