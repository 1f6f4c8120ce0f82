// A matrix as a heat map, row 0 at the top. Cells are the pixels of a small canvas, scaled up;
// over it lies an SVG with names, ticks and the cursor. A cell that is null stays empty (hatched).

import {colourMap, css} from "./colours.js";
import {exportBar} from "./export.js";
import * as figures from "./figure.js";
import {drawn, make, refill, unique} from "./make.js";
import {extent} from "./scales.js";
import {formatted, formulas, ticked} from "./words.js";

const LETTER = 6.3;
const READABLE = 12; // pixels that a name needs; where cells are smaller, some names are left out
const ENLARGED = 15; // pixels of a cell in a map that is scrolled
const ENDLESS = 1e99; // stands for what is no longer a number, and would make all else look alike
const LARGEST = 480; // pixels of the longer side

/**
 * `said(row, column, value)` puts a cell into words; `moved(row, column)` hears of the cursor,
 * which may be null; `link()` gives the part after "#" (export.js).
 */
export function heatMap({title, said, moved = () => {}, largest = LARGEST, link}) {
  const canvas = make("canvas", {class: "cells", "aria-hidden": "true"});
  const svg = drawn("svg", {class: "over", "aria-hidden": "true"});
  const readout = make("p", {class: "readout", "aria-live": "polite", id: unique("readout")});
  const board = make("div", {
    class: "board",
    tabindex: "0",
    role: "application",
    "aria-roledescription": "heat map",
    "aria-describedby": readout.id,
  }, canvas, svg);
  const above = make("p", {class: "axis-name"});
  const below = make("p", {class: "axis-name below"});
  const bar = make("div", {class: "colour-bar", "aria-hidden": "true"});
  const frameBox = make("div", {class: "board-box"}, board);
  const take = exportBar({
    figure,
    link,
    numbers: () => tabled(shown),
    name: () => shown.name ?? title ?? shown.title,
  });
  const element = make("div", {class: "heat"}, above, frameBox, below, bar, readout, take);
  let enlarged = false;
  let shown = null;
  let frame = null;
  let cursor = null;

  new ResizeObserver(() => draw()).observe(element);

  /**
   * rows of numbers or null; optional are names of rows and columns, `ends`, `log` and `way` of
   * the colours, or one `colour` for all; `name` is what a figure of it is called.
   */
  function show(picture) {
    shown = picture;
    const [height, width] = [picture.rows.length, picture.rows[0].length];
    if (cursor && (cursor[0] >= height || cursor[1] >= width)) cursor = null;
    const sizes = picture.rows.flat().filter(
      (value) => value === null || Math.abs(value) < ENDLESS,
    );
    const found = extent(sizes, picture.log) ?? [0, 1];
    // ten decades below the largest is nothing to the eye
    const low = picture.log ? Math.max(found[0], found[1] * 1e-10) : found[0];
    shown.map = picture.colour
      ? {colour: () => picture.colour}
      : colourMap(picture.ends ?? [low, found[1]], picture.log || picture.way);
    board.setAttribute(
      "aria-label",
      `${title ?? picture.title}: ${height} rows by ${width} columns, `
        + `from ${formatted(found[0])} to ${formatted(found[1])}. Arrow keys read cells.`,
    );
    refill(above, formulas(picture.y ?? ""));
    refill(below, formulas(picture.x ?? ""));
    paint();
    draw();
    legend();
  }

  function paint() {
    const [height, width] = [shown.rows.length, shown.rows[0].length];
    Object.assign(canvas, {width, height});
    const image = new ImageData(width, height);
    shown.rows.forEach((row, i) => row.forEach((value, j) => {
      if (isEmpty(value)) return;
      const [red, green, blue] = shown.map.colour(value);
      image.data.set([red, green, blue, 255], 4 * (i * width + j));
    }));
    canvas.getContext("2d").putImageData(image, 0, 0);
  }

  function draw() {
    const room = element.clientWidth;
    if (!shown || !room) return;
    const [height, width] = [shown.rows.length, shown.rows[0].length];
    const fit = (side) => Math.max(enlarged ? ENLARGED : 0, side);
    const left = shown.rowNames ? 10 + LETTER * longest(shown.rowNames) : 34;
    const cell = fit(Math.min(largest, room - left - 4) / width);
    const square = height / width <= 3 && width / height <= 3;
    const tall = square ? cell : fit(Math.max(3, Math.min(220, largest) / height));
    const top = 4;
    const [rowWords, columnWords] = [shown.rowNames, shown.columnNames];
    const every = [tall, cell].map((size) => Math.ceil(READABLE / size));
    const turned = columnWords?.some((word) => word.length * LETTER > cell * every[1] - 2);
    const bottom = columnWords && turned ? 14 + LETTER * longest(columnWords) : 22;
    frame = {left, top, cell, tall, width, height};
    Object.assign(
      canvas.style,
      {left: `${left}px`, top: `${top}px`},
      {width: `${cell * width}px`, height: `${tall * height}px`},
    );
    const size = [left + cell * width + 4, top + tall * height + bottom];
    frame.size = size;
    board.style.height = `${size[1]}px`;
    board.style.width = `${size[0]}px`;
    svg.setAttribute("viewBox", `0 0 ${size[0]} ${size[1]}`);
    refill(svg,
      side(
        rowWords,
        height,
        every[0],
        (at, word) => drawn(
          "text",
          {
            x: left - 6,
            y: top + tall * (at + 0.5) + 4,
            "text-anchor": "end",
            class: rowWords ? "token" : null,
          },
          word,
        ),
      ),
      side(columnWords, width, every[1], (at, word) => {
        const [x, y] = [left + cell * (at + 0.5), top + tall * height + 15];
        return turned
          ? drawn(
            "text",
            {
              x,
              y: y - 6,
              "text-anchor": "end",
              transform: `rotate(-90 ${x + 4} ${y - 6})`,
              class: "token",
            },
            word,
          )
          : drawn(
            "text",
            {x, y, "text-anchor": "middle", class: columnWords ? "token" : null},
            word,
          );
      }),
      frame.mark = drawn("g", {class: "at", "data-cursor": ""}));
    point(cursor);
  }

  function figure() {
    const {left, top, cell, tall, width, height, size} = frame;
    const cells = drawn(
      "g",
      {transform: `translate(${left} ${top})`},
      figures.hatched(cell * width, tall * height, unique("hidden")),
      drawn(
        "g",
        {transform: `scale(${cell} ${tall})`},
        figures.cellPaths(shown.rows, (value) => (isEmpty(value) ? null : shown.map.colour(value))),
      ),
    );
    const over = figures.inlined(svg, ...size);
    over.element.prepend(cells);
    const room = Math.max(size[0], 260);
    return figures.figure([
      figures.paragraph(shown.name ?? shown.title ?? title ?? "", room, {size: 14, bold: true}),
      figures.paragraph(shown.y ?? "", room),
      over,
      figures.paragraph(shown.x ?? "", room, {middle: true}),
      shown.colour ? null : figures.colourBar(shown.map, 240),
    ]);
  }

  const isEmpty = (value) => value === null || Boolean(shown.log && value <= 0);

  /** Cells so large that each has its name; the map is scrolled then. */
  function enlarge(on) {
    enlarged = on;
    frameBox.classList.toggle("enlarged", on);
    draw();
  }

  function legend() {
    bar.hidden = Boolean(shown.colour);
    if (bar.hidden) return;
    const {along, colour} = shown.map;
    const stops = Array.from({length: 33}, (_, step) => css(colour(along.value(step / 32))));
    const strip = make("span", {class: "strip"});
    strip.style.backgroundImage = `linear-gradient(to right, ${stops.join(", ")})`;
    const labels = along.ticks(4).map((value) => {
      const label = make("span", {class: "at-tick"}, ticked(value));
      label.style.left = `${100 * along.at(value)}%`;
      return label;
    });
    refill(bar, strip, labels);
  }

  /** Puts the cursor at [row, column], or takes it away, without telling anybody. */
  function point(place) {
    cursor = place;
    if (!frame) return;
    frame.mark.replaceChildren();
    readout.textContent = "";
    if (!place) return;
    const [i, j] = place;
    const {left, top, cell, tall, width, height} = frame;
    const [wide, high] = [Math.max(cell, 5), Math.max(tall, 5)];
    const [x, y] = [left + cell * (j + 0.5), top + tall * (i + 0.5)];
    frame.mark.append(
      drawn(
        "path",
        {
          d: `M${left} ${y}h${cell * width}M${x} ${top}v${tall * height}`,
          class: "cross",
        },
      ),
      drawn("rect", {x: x - wide / 2, y: y - high / 2, width: wide, height: high, class: "box"}));
    readout.textContent = said(i, j, shown.rows[i][j]);
  }

  function move(place) {
    point(place);
    moved(place);
  }

  /** Scrolls an enlarged map to a cell that the keyboard has gone to. */
  function reveal([i, j]) {
    if (!enlarged) return;
    const {left, top, cell, tall} = frame;
    const [x, y] = [left + cell * j, top + tall * i];
    const {scrollLeft, scrollTop, clientWidth, clientHeight} = frameBox;
    frameBox.scrollTo({
      left: x < scrollLeft + left ? x - left : Math.max(scrollLeft, x + 3 * cell - clientWidth),
      top: y < scrollTop ? y : Math.max(scrollTop, y + 3 * tall - clientHeight),
    });
  }

  function under(event) {
    if (!frame) return null;
    const box = board.getBoundingClientRect();
    const i = Math.floor((event.clientY - box.top - frame.top) / frame.tall);
    const j = Math.floor((event.clientX - box.left - frame.left) / frame.cell);
    return i >= 0 && j >= 0 && i < frame.height && j < frame.width ? [i, j] : null;
  }

  for (const event of ["pointermove", "pointerdown"]) board.addEventListener(
    event,
    (one) => move(under(one) ?? cursor),
  );
  board.addEventListener("keydown", (event) => {
    const moves = {
      ArrowUp: [-1, 0],
      ArrowDown: [1, 0],
      ArrowLeft: [0, -1],
      ArrowRight: [0, 1],
      Home: [0, -1e6],
      End: [0, 1e6],
    };
    if (!(event.key in moves) || !frame) return;
    event.preventDefault();
    const [i, j] = cursor ? cursor.map((at, axis) => at + moves[event.key][axis]) : [0, 0];
    const bounded = (value, count) => Math.min(count - 1, Math.max(0, value));
    const to = [bounded(i, frame.height), bounded(j, frame.width)];
    move(to);
    reveal(to);
  });
  return {element, show, point, enlarge};
}

const LONGEST_NAME = 8;
const longest = (words) => Math.max(...words.map((word) => Math.min(LONGEST_NAME, word.length)));

/** All numbers, for a file: a row for each row, behind its name. */
function tabled({rows, rowNames, columnNames, x, y}) {
  const called = (names, at) => (names ? `${at} ${names[at]}` : `${at}`);
  return {
    columns: [
      `${y || "row"} \\ ${x || "column"}`,
      ...rows[0].map((_, at) => called(columnNames, at)),
    ],
    rows: rows.map((row, at) => [called(rowNames, at), ...row]),
  };
}

/** A name at every `every`th place, or numbers at round places. */
function side(words, count, every, label) {
  if (words) {
    const short = (word) => (
      word.length > LONGEST_NAME ? `${word.slice(0, LONGEST_NAME - 1)}…` : word
    );
    return words.map((word, at) => (at % every ? null : label(at, short(word))));
  }
  const step = [1, 2, 5, 10, 20, 50, 100, 200, 500].find((one) => count / one <= 8) ?? 1000;
  return Array.from(
    {length: Math.ceil(count / step)},
    (_, place) => label(place * step, `${place * step}`),
  );
}
