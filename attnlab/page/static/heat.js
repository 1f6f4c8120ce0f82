// A matrix as a heat map, row 0 at the top. Cells are the pixels of a small canvas, scaled up;
// over it lies an SVG with names, ticks and the cursor. A cell that is null stays empty (hatched).

import {colourMap, css} from "./colours.js";
import {drawn, make, refill, unique} from "./make.js";
import {extent} from "./scales.js";
import {formatted, formulas, ticked} from "./words.js";

const LETTER = 6.9;
const READABLE = 11; // pixels a cell needs for a name beside it
const ENDLESS = 1e99; // stands for what is no longer a number, and would make all else look alike
const LARGEST = 480; // pixels of the longer side

/**
 * `said(row, column, value)` puts a cell into words; `moved(row, column)` hears of the cursor,
 * which may be null.
 */
export function heatMap({title, said, moved = () => {}, largest = LARGEST}) {
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
  const element = make("div", {class: "heat"}, above, board, below, bar, readout);
  let shown = null;
  let frame = null;
  let cursor = null;

  new ResizeObserver(() => draw()).observe(element);

  /**
   * rows of numbers or null; optional are names of rows and columns, `ends`, `log` and `way` of
   * the colours, or one `colour` for all.
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
      if (value === null || (shown.log && value <= 0)) return;
      const [red, green, blue] = shown.map.colour(value);
      image.data.set([red, green, blue, 255], 4 * (i * width + j));
    }));
    canvas.getContext("2d").putImageData(image, 0, 0);
  }

  function draw() {
    const room = element.clientWidth;
    if (!shown || !room) return;
    const [height, width] = [shown.rows.length, shown.rows[0].length];
    const names = (list, side) => (list && side >= READABLE ? list : null);
    let cell = Math.min(largest, room - 40) / width;
    const rowWords = names(shown.rowNames, cell);
    const left = rowWords
      ? 8 + LETTER * Math.max(...rowWords.map((word) => Math.min(8, word.length)))
      : 34;
    cell = Math.min(largest, room - left - 4) / width;
    const square = height / width <= 3 && width / height <= 3;
    const tall = square ? cell : Math.max(3, Math.min(220, largest) / height);
    const top = 4;
    const columnWords = names(shown.columnNames, cell);
    const turned = columnWords?.some((word) => word.length * LETTER > cell);
    const bottom = columnWords && turned
      ? 12 + LETTER * Math.max(...columnWords.map((word) => Math.min(8, word.length)))
      : 22;
    frame = {left, top, cell, tall, width, height};
    Object.assign(
      canvas.style,
      {left: `${left}px`, top: `${top}px`},
      {width: `${cell * width}px`, height: `${tall * height}px`},
    );
    const size = [left + cell * width + 4, top + tall * height + bottom];
    board.style.height = `${size[1]}px`;
    board.style.width = `${size[0]}px`;
    svg.setAttribute("viewBox", `0 0 ${size[0]} ${size[1]}`);
    refill(svg,
      side(
        rowWords,
        height,
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
      side(columnWords, width, (at, word) => {
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
      frame.mark = drawn("g", {class: "at"}));
    point(cursor);
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
    move([Math.min(frame.height - 1, Math.max(0, i)), Math.min(frame.width - 1, Math.max(0, j))]);
  });
  return {element, show, point};
}

/** Names where there is room, numbers at round places where not. */
function side(words, count, label) {
  if (words) {
    return words.map((word, at) => label(at, word.length > 8 ? `${word.slice(0, 7)}…` : word));
  }
  const step = [1, 2, 5, 10, 20, 50, 100, 200, 500].find((one) => count / one <= 8) ?? 1000;
  return Array.from(
    {length: Math.ceil(count / step)},
    (_, place) => label(place * step, `${place * step}`),
  );
}
