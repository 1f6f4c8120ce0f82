// Where everything in a plot goes, at a given width: axes, grid, the marks of each series, and the
// columns that a cursor can be at.

import {drawn, unique} from "./make.js";
import * as marks from "./marks.js";
import {extent, roomy, scale} from "./scales.js";
import {formatted, ticked} from "./words.js";

const LETTER = 6.7; // about the width of a small letter, in pixels

/** Where everything goes: parts to draw, and the columns that the cursor can be at. */
export function layout(plot, width) {
  const named = plot.kind === "bars" || plot.series.some((one) => typeof one.x[0] === "string");
  const names = named ? [...new Set(plot.series.flatMap((one) => one.x))] : [];
  const words = names.map((name) => formatted(name));
  const slot = (width - 70) / Math.max(1, names.length);
  const down = plot.kind !== "lines" && words.some((word) => word.length * LETTER + 8 > slot);
  const height = down
    ? 46 + names.length * Math.max(26, 13 * plot.series.length)
    : Math.round(Math.min(320, Math.max(210, width * 0.5)));
  const [first, last] = plot.domain ?? [-Infinity, Infinity];
  const inside = (one, index) => named || (one.x[index] >= first && one.x[index] <= last);
  const values = plot.series.flatMap((one) =>
    [one.y, one.low ?? [], one.high ?? []].flatMap((column) =>
      column.filter((_, index) => inside(one, index))));
  let range = extent(values, plot.log_y);
  if (!range) return empty(width, height);
  if (plot.kind === "bars" && !plot.log_y) range = [Math.min(0, range[0]), Math.max(0, range[1])];
  range = plot.kind === "bars" && !plot.log_y
    ? [range[0] && roomy(range, 0.06)[0], range[1] && roomy(range, 0.06)[1]]
    : roomy(range, 0.07, plot.log_y);
  const box = {top: 8, bottom: height - 26, right: width - 12, left: 0};
  const most = down ? Math.floor(width / 90) : 5;
  const labels = down ? words : scale(range, [0, 1], plot.log_y).ticks(most).map(ticked);
  const longest = Math.max(...labels.map((label) => label.length));
  box.left = 10 + Math.min(down ? Math.min(190, width * 0.42) : 90, longest * LETTER);
  const upright = scale(range, down ? [box.left, box.right] : [box.bottom, box.top], plot.log_y);
  const wide = extent(named ? [] : plot.series.flatMap((one) => one.x), plot.log_x) ?? [0, 1];
  const across = named
    ? scale([-0.5, names.length - 0.5], down ? [box.top, box.bottom] : [box.left, box.right])
    : scale(plot.domain ?? roomy(wide, 0.02, plot.log_x), [box.left + 2, box.right], plot.log_x);
  const clip = unique("inside");
  const cursor = drawn("g", {class: "at", "data-cursor": ""});
  const frame = {...box, height, down, across, columns: [], cursor};
  frame.parts = [
    grid(frame, upright, most),
    ...axis(frame, across, names, words, plot),
    drawn(
      "clipPath",
      {id: clip},
      drawn("rect", {x: box.left, y: 0, width: box.right - box.left + 8, height}),
    ),
    drawn(
      "g",
      {"clip-path": down || named ? null : `url(#${clip})`},
      plot.series.map((one, number) => series(plot, one, number, frame, upright, names, named)),
    ),
  ];
  frame.columns.sort((one, other) => one.at - other.at);
  return frame;
}

function empty(width, height) {
  const words = drawn(
    "text",
    {x: width / 2, y: height / 2, "text-anchor": "middle", class: "faint"},
    "nothing to draw",
  );
  return {height, parts: [words], columns: [], cursor: drawn("g"), down: false};
}

function grid(frame, upright, most) {
  return drawn("g", {class: "grid"}, upright.ticks(most).map((tick) => {
    const at = marks.round(upright.at(tick));
    return frame.down
      ? [
        drawn("path", {d: `M${at} ${frame.top}V${frame.bottom}`}),
        drawn("text", {x: at, y: frame.bottom + 18, "text-anchor": "middle"}, ticked(tick)),
      ]
      : [
        drawn("path", {d: `M${frame.left} ${at}H${frame.right}`}),
        drawn("text", {x: frame.left - 7, y: at + 4, "text-anchor": "end"}, ticked(tick)),
      ];
  }));
}

function axis(frame, across, names, words, plot) {
  const line = drawn("path", {
    d: frame.down
      ? `M${frame.left} ${frame.top}V${frame.bottom}`
      : `M${frame.left} ${frame.bottom}H${frame.right}`,
    class: "axis",
  });
  const label = (at, text) => drawn("text", frame.down
    ? {x: frame.left - 8, y: at + 4, "text-anchor": "end"}
    : {x: at, y: frame.bottom + 18, "text-anchor": "middle"}, text);
  if (names.length) {
    const room = Math.floor((frame.left - 8) / LETTER);
    const longest = Math.max(...words.map((word) => word.length)) * LETTER + 6;
    const every = frame.down ? 1 : Math.ceil((longest * names.length) / (frame.right - frame.left));
    const fits = (word) => !frame.down || word.length <= room;
    const short = (word) => (fits(word) ? word : `${word.slice(0, room - 1)}…`);
    return [line, words.map((word, number) =>
      (number % every ? null : label(marks.round(across.at(number)), short(word))))];
  }
  let ticks = across.ticks(Math.max(3, Math.floor((frame.right - frame.left) / 80)));
  const own = [...new Set(plot.series.flatMap((one) => one.x))].sort((one, other) => one - other);
  const half = (value) => (LETTER * ticked(value).length) / 2 + 3;
  const apart = own.slice(1).every((value, place) =>
    across.at(value) - across.at(own[place]) > half(value) + half(own[place]));
  if (plot.log_x && own.length > 1 && own.length <= 10 && apart) ticks = own;
  return [line, ticks.map((tick) => label(marks.round(across.at(tick)), ticked(tick)))];
}

function series(plot, one, number, frame, upright, names, named) {
  const hue = one.colour ?? number;
  const of = plot.series.length;
  const slot = Math.abs(frame.across.at(1) - frame.across.at(0));
  const room = plot.kind === "bars" ? Math.min(0.76, 60 * of / slot) : 0.5;
  const aside = named ? (room / of) * (number - (of - 1) / 2) : 0;
  const good = (value) => value !== null && value !== undefined && (!plot.log_y || value > 0);
  const [low, high] = plot.domain ?? [-Infinity, Infinity];
  const points = [];
  one.x.forEach((x, index) => {
    // one neighbour beyond each end keeps the line whole up to the edge
    const [before, after] = [one.x[index - 1] ?? -Infinity, one.x[index + 1] ?? Infinity];
    if (!named && (after < low || before > high)) return;
    const at = frame.across.at(named ? names.indexOf(x) + aside : x);
    const y = good(one.y[index]) ? upright.at(one.y[index]) : null;
    const bounds = good(one.low?.[index])
      ? {low: upright.at(one.low[index]), high: upright.at(one.high[index])}
      : {low: null, high: null};
    points.push({x: at, y, ...bounds});
    if (y === null || (!named && (x < low || x > high))) return;
    const middle = named ? frame.across.at(names.indexOf(x)) : at;
    frame.index ??= new Map();
    const column = frame.index.get(x) ?? {at: middle, x: named ? formatted(x) : x, found: []};
    if (!frame.index.has(x)) frame.columns.push(column);
    frame.index.set(x, column);
    column.found.push({series: one, number: hue, index, pixel: y});
  });
  if (plot.kind === "points" || one.kind === "points") {
    return marks.scattered(points, hue, one.kind === "points");
  }
  if (plot.kind === "bars") {
    const ground = plot.log_y ? upright.to[0] : upright.at(0);
    return marks.bars(
      points,
      hue,
      {thick: Math.max(1, slot * room / of * 0.92), ground, down: frame.down},
    );
  }
  return marks.line(points, hue);
}
