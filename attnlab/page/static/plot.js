// A plot of series as SVG, drawn to the width there is. Pointer and arrow keys read its values;
// with `zoomed` given, dragging across chooses a part of the x axis. `link` is as in export.js.

import {exportBar} from "./export.js";
import * as figures from "./figure.js";
import {layout} from "./layout.js";
import {drawn, make, refill, table, unique} from "./make.js";
import * as marks from "./marks.js";
import {formatted, formulas} from "./words.js";

export function plotter({zoomed = null, link} = {}) {
  const svg = drawn("svg", {class: "plot", tabindex: "0", role: "application"});
  const legend = make("div", {class: "legend", "aria-hidden": "true"});
  const above = make("p", {class: "axis-name"});
  const below = make("p", {class: "axis-name below"});
  const readout = make("p", {class: "readout", "aria-live": "polite", id: unique("readout")});
  const numbers = make("details", {class: "numbers"}, make("summary", {}, "Numbers"));
  const bar = exportBar({figure, link, numbers: () => tabled(shown), name: () => shown.title});
  const element = make("div", {class: "plotter"}, legend, above, svg, below, readout, numbers, bar);
  svg.setAttribute("aria-describedby", readout.id);
  let shown = null;
  let frame = null; // what the last drawing put where
  let place = null; // of the cursor, among the columns

  numbers.addEventListener("toggle", () => listNumbers());
  new ResizeObserver(() => draw()).observe(element);

  function show(plot) {
    if (shown?.title !== plot.title || shown?.series.length !== plot.series.length) place = null;
    shown = plot;
    svg.setAttribute(
      "aria-label",
      `${plot.title || plot.y}; ${plot.x} from left to right. Arrow keys read values.`,
    );
    refill(legend, plot.series.filter((one) => one.name.trim()).map((one) => {
      const number = plot.series.indexOf(one);
      return make(
        "span",
        {},
        marks.swatch(plot.kind, one.colour ?? number, marks.isFew(one)),
        make("span", {}, formulas(one.name)),
      );
    }));
    legend.hidden = !legend.children.length;
    draw();
    listNumbers();
  }

  function draw() {
    const width = Math.round(element.clientWidth);
    if (!shown || !width) return;
    frame = layout(shown, width);
    refill(above, formulas(frame.down ? shown.x : shown.y));
    refill(below, formulas(frame.down ? shown.y : shown.x));
    svg.setAttribute("viewBox", `0 0 ${width} ${frame.height}`);
    svg.setAttribute("height", frame.height);
    refill(svg, frame.parts, frame.cursor);
    point(place);
  }

  function figure() {
    const width = Math.round(element.clientWidth);
    const [up, along] = frame.down ? [shown.x, shown.y] : [shown.y, shown.x];
    const items = shown.series
      .map((one, number) => ({
        name: one.name.trim(),
        swatch: marks.swatch(shown.kind, one.colour ?? number, marks.isFew(one)),
      }))
      .filter(({name}) => name);
    return figures.figure([
      figures.paragraph(shown.title ?? "", width, {size: 14, bold: true}),
      figures.legend(items, width),
      figures.paragraph(up ?? "", width),
      figures.inlined(svg, width, frame.height),
      figures.paragraph(along ?? "", width, {middle: true}),
    ]);
  }

  function listNumbers() {
    if (numbers.open && shown) refill(numbers, numbers.firstChild, numbersOf(shown));
  }

  /** Puts the cursor at a column and says what is there. */
  function point(column) {
    const columns = frame?.columns ?? [];
    place = column === null || !columns.length
      ? null
      : Math.min(columns.length - 1, Math.max(0, column));
    if (place === null) {
      frame?.cursor.replaceChildren();
      readout.textContent = zoomed ? "Drag across to look closer." : "";
      return;
    }
    const {at, x, found} = columns[place];
    const {top, bottom, left, right, down} = frame;
    const across = down ? `M${left} ${at}H${right}` : `M${at} ${top}V${bottom}`;
    refill(frame.cursor,
      drawn("path", {d: across, class: "cursor"}),
      found.map(({number, pixel}) => drawn("circle", {
        cx: marks.round(down ? pixel : at), cy: marks.round(
          down ? at : pixel,
        ), r: 4.5, fill: marks.colour(number), class: "dot",
      })));
    const said = found.map(({series, index}) => {
      const low = series.low?.[index] ?? null;
      const room = low === null ? "" : ` (${formatted(low)} to ${formatted(series.high[index])})`;
      return `${series.name.trim() ? `${series.name} ` : ""}${formatted(series.y[index])}${room}`;
    });
    const where = typeof x === "string" ? x : `${shown.x} ${formatted(x)}`;
    refill(readout, formulas(`${where}: ${said.join(" · ")}`));
  }

  function nearest(event) {
    const box = svg.getBoundingClientRect();
    const pixel = frame.down ? event.clientY - box.top : event.clientX - box.left;
    let best = null;
    frame.columns.forEach((column, number) => {
      if (best === null || Math.abs(column.at - pixel) < Math.abs(frame.columns[best].at - pixel)) {
        best = number;
      }
    });
    return best;
  }

  let drag = null;
  svg.addEventListener("pointerdown", (event) => {
    if (!zoomed || event.button) return;
    drag = event.clientX - svg.getBoundingClientRect().left;
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointermove", (event) => {
    if (!frame) return;
    point(nearest(event));
    if (drag === null) return;
    const now = event.clientX - svg.getBoundingClientRect().left;
    frame.cursor.append(drawn("rect", {
      x: Math.min(drag, now),
      y: frame.top,
      width: Math.abs(now - drag),
      height: frame.bottom - frame.top,
      class: "brush",
    }));
  });
  svg.addEventListener("pointerup", (event) => {
    if (drag === null) return;
    const ends = [
      drag,
      event.clientX - svg.getBoundingClientRect().left,
    ].sort((one, other) => one - other);
    drag = null;
    if (ends[1] - ends[0] > 6) {
      zoomed(ends.map(
        (end) => frame.across.value(Math.min(frame.right, Math.max(frame.left, end))),
      ));
    }
  });
  svg.addEventListener(
    "pointerleave",
    () => drag === null && document.activeElement !== svg && point(null),
  );
  svg.addEventListener("blur", () => point(null));
  svg.addEventListener("keydown", (event) => {
    const columns = frame?.columns.length ?? 0;
    const moves = {
      ArrowRight: 1,
      ArrowDown: 1,
      ArrowLeft: -1,
      ArrowUp: -1,
      PageDown: 20,
      PageUp: -20,
      Home: -columns,
      End: columns,
    };
    if (!(event.key in moves)) return;
    event.preventDefault();
    point(place === null ? (moves[event.key] > 0 ? 0 : columns - 1) : place + moves[event.key]);
  });
  return {element, show};
}

/** All points, for a file. */
function tabled(plot) {
  const rows = plot.series.flatMap((one) =>
    one.x.map((x, index) => [
      one.name || one.told || "",
      x,
      one.y[index],
      one.low?.[index],
      one.high?.[index],
    ]));
  return {columns: ["series", plot.x || "x", plot.y || "y", "low", "high"], rows};
}

const MOST_ROWS = 200; // of a list of numbers that somebody reads

function numbersOf(plot) {
  const rows = plot.series.flatMap((one) =>
    one.x.map((x, index) => {
      const ends = one.low ? `${formatted(one.low[index])} to ${formatted(one.high[index])}` : "";
      return [one.name, formatted(x), formatted(one.y[index]), ends];
    }));
  const ranged = plot.series.some((one) => one.low);
  const columns = ["series", plot.x || "x", plot.y || "y", "interval"].slice(0, ranged ? 4 : 3);
  const kept = rows.slice(0, MOST_ROWS).map((row) => row.slice(0, columns.length));
  return [
    table({columns, rows: kept, numeric: [1, 2]}),
    rows.length > MOST_ROWS
      ? make("p", {class: "note"}, `The first ${MOST_ROWS} of ${rows.length}.`)
      : null,
  ];
}
