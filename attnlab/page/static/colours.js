// Colours as the reports have them (attnlab/reports/marks.py, plots.py).

import {scale} from "./scales.js";

export const PALETTE = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#925071", "#a366ff"];
export const DASHES = [null, "5 2", "1.5 1.5"]; // once the colours are used up
export const MARKERS = ["circle", "square", "up", "diamond", "down", "plus"];

// viridis at equal steps: even to the eye, in order for every kind of colour blindness and in grey
const VIRIDIS = [
  [68, 1, 84], [72, 24, 106], [71, 45, 123], [66, 64, 134], [59, 82, 139], [51, 99, 141],
  [44, 114, 142], [38, 130, 142], [33, 145, 140], [31, 160, 136], [40, 174, 128], [63, 188, 115],
  [94, 201, 98], [132, 212, 75], [173, 220, 48], [216, 226, 25], [253, 231, 37],
];
// both signs: orange below, blue above, pale in the middle
const SIGNS = [
  [150, 58, 0],
  [213, 94, 0],
  [240, 170, 110],
  [246, 244, 240],
  [120, 178, 218],
  [0, 114, 178],
  [0, 62, 110],
];

function between(anchors, share) {
  const place = Math.min(1, Math.max(0, share)) * (anchors.length - 1);
  const first = Math.min(anchors.length - 2, Math.floor(place));
  const part = place - first;
  return anchors[first].map((value, channel) => Math.round(
    value + part * (anchors[first + 1][channel] - value),
  ));
}

/** A map from values to colours, over [low, high] in one of the ways of a scale. */
export function colourMap([low, high], way = false) {
  if (low < 0 && high > 0) {
    const end = Math.max(-low, high);
    const along = scale([-end, end], [0, 1]);
    return {along, colour: (value) => between(SIGNS, along.at(value))};
  }
  const room = high > low ? 0 : Math.max(0.5, Math.abs(low) / 10);
  const along = scale(
    way === true ? [low, high > low ? high : 2 * low] : [low - room, high + room],
    [0, 1],
    way,
  );
  return {along, colour: (value) => between(VIRIDIS, along.at(value))};
}

export const css = ([red, green, blue]) => `rgb(${red} ${green} ${blue})`;
