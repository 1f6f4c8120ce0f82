// All heads of a model as small pictures, a row for each layer: one of them is chosen. And in words
// what the chosen one does, with the scores that say so.

import {colourMap} from "./colours.js";
import {exportBar} from "./export.js";
import * as figures from "./figure.js";
import {drawn, make, refill, table} from "./make.js";
import {percent} from "./words.js";

const NONE = "not clear";
const MOVES = {
  ArrowLeft: [0, -1],
  ArrowRight: [0, 1],
  ArrowUp: [-1, 0],
  ArrowDown: [1, 0],
  PageUp: [-1, 0],
  PageDown: [1, 0],
  Home: [0, -Infinity],
  End: [0, Infinity],
};
const colours = colourMap([0, 1], "root");

/** `chosen(layer, head)` hears of a choice. */
export function headGrid(chosen) {
  const box = make("div", {
    class: "heads",
    role: "radiogroup",
    "aria-label": "All heads: a row for each layer. Arrow keys choose.",
  });
  const note = make("p", {class: "note"});
  const take = exportBar({
    figure,
    numbers,
    name: () => "heads",
  });
  const element = make(
    "section",
    {class: "all-heads", hidden: true},
    make("h2", {}, "All heads"),
    make("div", {class: "heads-box"}, box),
    note,
    take,
  );
  let found = null;
  let buttons = [];
  let now = [0, 0];

  function show(overview) {
    found = overview;
    element.hidden = !found.pictures.length;
    note.textContent = [
      found.note,
      "A small picture shows for each part of the text the largest weight there, as the map below.",
    ].filter(Boolean).join(" ");
    buttons = found.pictures.map((one) => button(one));
    const row = (layer) => make(
      "div",
      {class: "heads-row", role: "presentation"},
      make("span", {class: "heads-name", "aria-hidden": "true"}, `layer ${layer}`),
      buttons.slice(layer * found.heads, (layer + 1) * found.heads),
    );
    const had = box.contains(document.activeElement);
    box.style.setProperty("--heads", found.heads);
    box.classList.toggle("many", found.heads > 8);
    refill(box, Array.from({length: found.layers}, (_, layer) => row(layer)));
    mark(...now);
    if (had) at(now)?.focus();
  }

  const at = ([layer, head]) => buttons[layer * found.heads + head];

  function button(one) {
    const {layer, head, does} = one;
    const sure = does === NONE ? null : one.scores.find((score) => does.startsWith(score.pattern));
    const told = sure ? `${does}, ${percent(sure.weight)}` : does;
    const picture = make("canvas", {
      width: found.side,
      height: found.side,
      "aria-hidden": "true",
    });
    paint(picture, matrix(one));
    return make(
      "button",
      {
        type: "button",
        role: "radio",
        "aria-label": `Layer ${layer}, head ${head}: ${told}`,
        "data-head": `${layer}-${head}`,
        on: {click: () => chosen(layer, head)},
      },
      picture,
      make("span", {class: sure ? "does" : "does unclear"}, sure ? does : `head ${head}`),
    );
  }

  /** Rows of weights from 0 to 1, null where the mask hides a cell. */
  function matrix(one) {
    const bytes = atob(one.cells);
    const value = (at) => (bytes.charCodeAt(at) ? (bytes.charCodeAt(at) - 1) / 254 : null);
    return Array.from({length: found.side}, (_, i) =>
      Array.from({length: found.side}, (_, j) => value(i * found.side + j)));
  }

  function paint(canvas, rows) {
    const image = new ImageData(found.side, found.side);
    rows.forEach((row, i) => row.forEach((value, j) => {
      if (value !== null) image.data.set([...colours.colour(value), 255], 4 * (i * found.side + j));
    }));
    canvas.getContext("2d").putImageData(image, 0, 0);
  }

  /** Shows which head is chosen; the choice is somebody else's. */
  function mark(layer, head) {
    now = [layer, head];
    buttons.forEach((one, place) => {
      const on = found && place === layer * found.heads + head;
      one.setAttribute("aria-checked", `${on}`);
      one.tabIndex = on ? 0 : -1;
    });
  }

  box.addEventListener("keydown", (event) => {
    if (!(event.key in MOVES) || !found || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    const bounded = (value, count) => Math.min(count - 1, Math.max(0, value));
    const [down, across] = MOVES[event.key];
    const to = [bounded(now[0] + down, found.layers), bounded(now[1] + across, found.heads)];
    at(to).focus();
    chosen(...to);
  });

  function figure() {
    const [size, gap, left] = [64, 8, 54];
    const words = (x, y, text, anchor = "start") => drawn(
      "text",
      {x, y, "font-size": 11, "text-anchor": anchor, fill: getComputedStyle(note).color},
      text,
    );
    const placed = found.pictures.map((one) => {
      const [x, y] = [left + one.head * (size + gap + 24), one.layer * (size + 26)];
      return drawn(
        "g",
        {transform: `translate(${x} ${y})`},
        drawn(
          "g",
          {transform: `scale(${size / found.side})`},
          figures.cellPaths(matrix(one), (value) => value === null ? null : colours.colour(value)),
        ),
        words(0, size + 13, one.does === NONE ? `head ${one.head}` : one.does),
      );
    });
    const names = Array.from({length: found.layers}, (_, layer) =>
      words(0, layer * (size + 26) + size / 2, `layer ${layer}`));
    const part = {
      element: drawn("g", {}, names, placed),
      width: left + found.heads * (size + gap + 24),
      height: found.layers * (size + 26),
    };
    return figures.figure([
      figures.paragraph("Attention of all heads", 400, {size: 14, bold: true}),
      part,
      figures.colourBar(colours, 240),
    ]);
  }

  function numbers() {
    const columns = [
      "layer", "head", "does", "pattern", "score", "even attention", "queries", "clear", "reason",
    ];
    const rows = found.pictures.flatMap(({layer, head, does, scores}) => scores.map((one) => [
      layer, head, does, one.pattern, one.weight, one.even, one.queries, one.clear, one.reason,
    ]));
    return {columns, rows};
  }

  /** What is known of a head, or null. */
  function about(layer, head) {
    const one = found?.pictures[layer * found.heads + head];
    return one ? {...one, definitions: found.definitions, rule: found.rule} : null;
  }

  return {element, show, mark, about};
}

/** What a head does: the sentence, and below it how that is measured. */
export function description(one, opened) {
  const clear = one.scores.filter((score) => score.clear).sort((a, b) => b.weight - a.weight);
  const sentence = clear.length
    ? clear.map((score) => `${score.pattern}: ${percent(score.weight)} of its attention is on `
      + `${one.definitions[score.pattern]} (evenly spread: ${percent(score.even)}).`)
    : [`Not clear${best(one.scores)}.`];
  const rows = one.scores.map((score) => [
    score.pattern,
    one.definitions[score.pattern],
    score.weight === null ? "–" : percent(score.weight),
    score.even === null ? "–" : percent(score.even),
    `${score.queries}`,
    make(
      "span",
      {class: `mark ${score.clear ? "good" : "none"}`},
      score.clear ? "✓" : "–",
      make("span", {}, score.clear ? " clear" : ` ${score.reason}`),
    ),
  ]);
  return [
    sentence.map((words) => make("p", {class: "does-words"}, capital(words))),
    make(
      "details",
      {class: "how", open: opened},
      make("summary", {}, "How this is measured"),
      make("p", {class: "note"}, one.rule),
      table({
        columns: ["pattern", "attention on", "score", "even", "queries", ""],
        rows,
        numeric: [2, 3, 4],
        long: [1, 5],
        stacks: true,
      }),
    ),
  ];
}

function best(scores) {
  const known = scores.filter((score) => score.weight !== null);
  if (!known.length) return ": this text has too few tokens to tell";
  const most = known.reduce((one, other) => (other.weight > one.weight ? other : one));
  return `. The highest score: ${most.pattern}, ${percent(most.weight)} (${most.reason})`;
}

const capital = (words) => `${words[0].toUpperCase()}${words.slice(1)}`;
