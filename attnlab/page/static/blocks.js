// What a report is made of (attnlab/reports/report.py), as elements; bars for shares.

import {heatMap} from "./heat.js";
import {make, table} from "./make.js";
import {plotter} from "./plot.js";
import {formatted, percent, visible} from "./words.js";

/** Draws a picture where one of the same kind may stand already: then only its values change. */
export function canvasFor(place) {
  let kind = null;
  let drawing = null;
  return (picture) => {
    if (kind !== picture.type || drawing.element.parentNode !== place) {
      kind = picture.type;
      drawing = kind === "Picture"
        ? heatMap({
          largest: 380,
          said: (i, j, value) => `row ${i}, column ${j}: ${formatted(value)}`,
        })
        : plotter();
      place.replaceChildren(drawing.element);
    }
    drawing.show({...picture});
  };
}

export function block(data) {
  const title = data.title ? make("h3", {}, data.title) : null;
  const note = data.note ? make("p", {class: "note"}, data.note) : null;
  if (data.type === "Table") {
    const numeric = data.columns.map((_, place) => place).filter((place) =>
      data.rows.some((row) => row[place] !== null)
      && data.rows.every((row) => typeof row[place] !== "string"));
    const rows = data.rows.map((row) => row.map((cell) => formatted(cell)));
    return make(
      "section",
      {class: "block"},
      title,
      table({columns: data.columns, rows, numeric}),
      note,
    );
  }
  if (data.type === "Sample") {
    return make("section", {class: "block"}, title, make("pre", {class: "wrap"}, data.text));
  }
  const place = make("div");
  canvasFor(place)(data);
  return make("figure", {class: "block"}, make("figcaption", {}, data.title), place, note);
}

/** Shares as bars: [{name, share}]; names are tokens or answers. */
export function shares(list, {caption}) {
  return make("ol", {class: "shares", "aria-label": caption}, list.map(({name, share}, place) => {
    const fill = make("span", {class: "fill"});
    fill.style.width = `${Math.max(0.4, 100 * share)}%`;
    return make("li", {class: place ? null : "first"},
      make("span", {class: "name"}, visible(name)),
      make("span", {class: "track", "aria-hidden": "true"}, fill),
      make("span", {class: "share"}, percent(share)));
  }));
}
