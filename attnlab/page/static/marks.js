// The marks of one series in SVG: a line with its band, points, bars, intervals.

import {DASHES, MARKERS, PALETTE} from "./colours.js";
import {drawn} from "./make.js";

const FEW = 20; // points of a line, which then have a marker each

export const colour = (number) => PALETTE[number % PALETTE.length];
export const dash = (number) => DASHES[Math.floor(number / PALETTE.length) % DASHES.length];
export function shape(number) {
  return MARKERS[(number + Math.floor(number / PALETTE.length)) % MARKERS.length];
}

/** The outline of a marker around a point. */
export function marker(kind, x, y, r = 3.6) {
  const [wide, thin, arm] = [1.35 * r, r / 1.3, 0.82 * r];
  const path = {
    circle: `m${-r} 0a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0`,
    square: `m${-r} ${-r}h${2 * r}v${2 * r}h${-2 * r}z`,
    up: `m0 ${-1.2 * r}l${1.15 * r} ${2.1 * r}h${-2.3 * r}z`,
    down: `m0 ${1.2 * r}l${1.15 * r} ${-2.1 * r}h${-2.3 * r}z`,
    diamond: `m0 ${-wide}l${wide} ${wide}l${-wide} ${wide}l${-wide} ${-wide}z`,
    plus: `m${-thin / 2} ${-arm - thin / 2}h${thin}v${arm}h${arm}v${thin}h${-arm}v${arm}h${-thin}`
      + `v${-arm}h${-arm}v${-thin}h${arm}z`,
  };
  return `M${round(x)} ${round(y)}${path[kind]}`;
}

export const round = (value) => Math.round(value * 100) / 100;

/** Points {x, y, low, high} in pixels, null where there is none; pieces are what hangs together. */
function pieces(points) {
  const found = [[]];
  for (const point of points) {
    if (point.y === null) found.push([]);
    else found.at(-1).push(point);
  }
  return found.filter((piece) => piece.length);
}

const joined = (points, key) => points.map(
  (point) => `${round(point.x)} ${round(point[key])}`,
).join("L");

export function line(points, number) {
  const parts = pieces(points);
  const marked = points.length <= FEW
    ? parts.flat()
    : parts.filter((part) => part.length === 1).flat();
  const bands = parts
    .map((part) => part.filter((point) => point.low !== null))
    .filter((part) => part.length > 1)
    .map((part) => `M${joined(part, "high")}L${joined([...part].reverse(), "low")}Z`);
  return [
    bands.length
      ? drawn(
        "path",
        {d: bands.join(""), fill: colour(number), "fill-opacity": 0.18, class: "band"},
      )
      : null,
    intervals(parts.filter((part) => part.length === 1).flat(), colour(number)),
    drawn("path", {
      d: parts.filter((part) => part.length > 1).map((part) => `M${joined(part, "y")}`).join(""),
      fill: "none", stroke: colour(number), "stroke-width": points.length > 500 ? 1.4 : 2,
      "stroke-dasharray": dash(number), "stroke-linejoin": "round", class: "line",
    }),
    drawn(
      "path",
      {
        d: marked.map((point) => marker(shape(number), point.x, point.y)).join(""),
        fill: colour(number),
      },
    ),
  ];
}

export function scattered(points, number, hollow = false) {
  const seen = points.filter((point) => point.y !== null);
  const size = seen.length > 500 ? 1.8 : 4;
  return [
    intervals(seen, colour(number)),
    drawn("path", {
      d: seen.map((point) => marker(shape(number), point.x, point.y, size)).join(""),
      class: hollow ? "hollow-mark" : null, stroke: hollow ? colour(number) : null,
      fill: colour(number), "fill-opacity": seen.length > 100 && !hollow ? 0.6 : 1,
    }),
  ];
}

/** Bars from `ground`; `down` swaps the axes: the name's place is y then. */
export function bars(points, number, {thick, ground, down}) {
  const seen = points.filter((point) => point.y !== null);
  const boxes = seen.map((point) => {
    const [from, to] = [Math.min(ground, point.y), Math.max(ground, point.y)].map(round);
    const side = round(point.x - thick / 2);
    return down
      ? `M${from} ${side}H${to}v${round(thick)}H${from}Z`
      : `M${side} ${from}V${to}h${round(thick)}V${from}Z`;
  });
  return [
    drawn("path", {d: boxes.join(""), fill: colour(number), class: "bar"}),
    intervals(seen, "currentColor", down),
  ];
}

function intervals(points, stroke, down = false) {
  const strokes = points.filter((point) => point.low !== null).map((point) => {
    const [x, low, high] = [point.x, point.low, point.high].map(round);
    return down ? `M${low} ${x}H${high}` : `M${x} ${low}V${high}`;
  });
  return strokes.length
    ? drawn("path", {d: strokes.join(""), stroke, "stroke-width": 1.4, fill: "none"})
    : null;
}

/** What stands before a name in the legend. */
export function swatch(kind, number, few) {
  const width = kind === "bars" ? 12 : 22;
  const box = drawn("svg", {width, height: 12, viewBox: `0 0 ${width} 12`, "aria-hidden": "true"});
  if (kind === "bars") {
    box.append(drawn("rect", {x: 0, y: 0, width: 12, height: 12, rx: 2, fill: colour(number)}));
  }
  if (kind === "lines") {
    box.append(drawn(
      "path",
      {d: "M0 6H22", stroke: colour(number), "stroke-width": 2, "stroke-dasharray": dash(number)},
    ));
  }
  if (kind === "points" || (kind === "lines" && few)) {
    box.append(drawn("path", {d: marker(shape(number), 11, 6, 3.4), fill: colour(number)}));
  }
  return box;
}

export const isFew = (series) => series.x.length <= FEW;
