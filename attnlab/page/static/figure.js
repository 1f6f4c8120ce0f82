// Figures that stand on their own: an SVG with its title, legend and names of axes inside, and with
// every colour and font written out, so that it looks the same without this page.

import {css} from "./colours.js";
import {drawn} from "./make.js";
import {formulas, ticked} from "./words.js";

const FONT = "system-ui, 'Segoe UI', Roboto, 'Noto Sans', 'Helvetica Neue', sans-serif";
const EDGE = 14; // pixels around everything
const STYLED = [
  "fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray",
  "stroke-linejoin", "font-family", "font-size",
];

const tone = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** `parts` stand below each other: {element, width, height}. */
export function figure(parts) {
  const shown = parts.filter(Boolean);
  const width = Math.ceil(Math.max(...shown.map((part) => part.width)) + 2 * EDGE);
  let top = EDGE;
  const placed = shown.map((part) => {
    const left = part.middle ? (width - part.width) / 2 : EDGE;
    const one = drawn("g", {transform: `translate(${left} ${top})`}, part.element);
    top += part.height;
    return one;
  });
  const height = Math.ceil(top + EDGE);
  return drawn(
    "svg",
    {width, height, viewBox: `0 0 ${width} ${height}`, "font-family": FONT},
    drawn("rect", {width, height, fill: tone("--page")}),
    placed,
  );
}

/** An element of the page with what its style sheet says of it written into it. */
export function inlined(svg, width, height) {
  const copy = svg.cloneNode(true);
  const copies = copy.querySelectorAll("*");
  svg.querySelectorAll("*").forEach((one, at) => {
    const style = getComputedStyle(one);
    for (const name of STYLED) {
      const value = style.getPropertyValue(name);
      const kept = one.tagName === "text" || !name.startsWith("font");
      if (value && kept) copies[at].setAttribute(name, value);
    }
    copies[at].removeAttribute("class");
  });
  copy.querySelectorAll("[data-cursor]").forEach((one) => one.remove());
  const viewBox = `0 0 ${width} ${height}`;
  const kept = drawn("svg", {width, height, viewBox, overflow: "visible"});
  kept.append(...copy.childNodes);
  return {element: kept, width, height};
}

/** Words in lines no wider than `room`. */
export function paragraph(text, room, {size = 12, bold = false, middle = false} = {}) {
  if (!text) return null;
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = `${bold ? "600 " : ""}${size}px ${FONT}`;
  const lines = [""];
  for (const word of text.split(/\s+/).filter(Boolean)) {
    const longer = lines.at(-1) ? `${lines.at(-1)} ${word}` : word;
    if (lines.at(-1) && pen.measureText(longer).width > room) lines.push(word);
    else lines[lines.length - 1] = longer;
  }
  const width = Math.max(...lines.map((line) => pen.measureText(line).width));
  const leading = Math.round(size * 1.4);
  const element = drawn(
    "text",
    {
      "font-size": size,
      "font-weight": bold ? 600 : null,
      fill: tone(bold ? "--ink" : "--soft"),
      "text-anchor": middle ? "middle" : null,
    },
    lines.map((line, number) => lettered(line, middle ? width / 2 : 0, size + leading * number)),
  );
  return {element, width, height: leading * lines.length + 6, middle};
}

/** A line with its lowered and raised letters; SVG has no sub and sup. */
function lettered(line, x, y) {
  let back = 0;
  const letters = formulas(line).map((part) => {
    const moved = {SUB: 3, SUP: -5}[part.tagName] ?? 0;
    const text = typeof part === "string" ? part : part.textContent;
    const size = moved ? "0.75em" : null;
    const one = drawn("tspan", {dy: moved - back || null, "font-size": size}, text);
    back = moved;
    return text ? one : null;
  });
  return drawn("tspan", {x, y}, letters);
}

/** The legend: a swatch and a name in each line. */
export function legend(items, room) {
  if (!items.length) return null;
  const rows = items.map(({swatch, name}) => ({swatch, words: paragraph(name, room - 30)}));
  let top = 0;
  const placed = rows.map(({swatch, words}) => {
    const one = drawn(
      "g",
      {transform: `translate(0 ${top})`},
      drawn("g", {transform: "translate(0 2)"}, swatch),
      drawn("g", {transform: "translate(28 0)"}, words?.element),
    );
    top += words?.height ?? 16;
    return one;
  });
  const width = 28 + Math.max(...rows.map(({words}) => words?.width ?? 0));
  return {element: drawn("g", {}, placed), width, height: top + 4};
}

/** Cells of a matrix, all of one colour in one path; `colourOf` gives null for an empty one. */
export function cellPaths(rows, colourOf) {
  const paths = new Map();
  rows.forEach((row, i) => row.forEach((value, j) => {
    const colour = colourOf(value);
    if (colour) paths.set(`${css(colour)}`, `${paths.get(css(colour)) ?? ""}M${j} ${i}h1v1h-1z`);
  }));
  return [...paths].map(([fill, d]) => drawn("path", {fill, d, "shape-rendering": "crispEdges"}));
}

export function hatched(width, height, id) {
  return [
    drawn(
      "pattern",
      {id, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)"},
      drawn("rect", {width: 1.5, height: 6, fill: tone("--hatch")}),
    ),
    drawn("rect", {width, height, fill: `url(#${id})`}),
  ];
}

/** The colours of a map from its lowest to its highest value. */
export function colourBar({along, colour}, width) {
  const steps = 64;
  const strip = Array.from({length: steps}, (_, step) => drawn("rect", {
    x: (width * step) / steps,
    width: width / steps + 0.5,
    height: 9,
    fill: css(colour(along.value((step + 0.5) / steps))),
  }));
  const ticks = along.ticks(4).map((value) => drawn(
    "text",
    {
      x: width * along.at(value),
      y: 23,
      "text-anchor": "middle",
      "font-size": 11,
      fill: tone("--soft"),
    },
    ticked(value),
  ));
  const element = drawn("g", {transform: "translate(10 8)"}, strip, ticks);
  return {element, width: width + 20, height: 34};
}
