// Elements from plain data. Text is only ever set as text: nothing a model writes becomes markup.

const SVG = "http://www.w3.org/2000/svg";

/** make("p", {class: "note"}, "words", child, …); `on` holds listeners, null is no child. */
export function make(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** The same for SVG. */
export function drawn(tag, properties = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (name === "on") {
      for (
        const [event, listener] of Object.entries(value)
      ) element.addEventListener(event, listener);
    } else if (["value", "checked", "selected"].includes(name)) {
      element[name] = value;
    } else if (value === true) {
      element.setAttribute(name, "");
    } else if (value !== false && value !== null && value !== undefined) {
      element.setAttribute(name, value);
    }
  }
  element.append(...children.flat(Infinity).filter(
    (child) => child !== null && child !== undefined,
  ));
  return element;
}

/** Other children in the place of those there are; an element that stays keeps its focus. */
export function refill(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter(
    (child) => child !== null && child !== undefined,
  ));
}

let count = 0;

/** An identifier nobody else has. */
export function unique(word) {
  count += 1;
  return `${word}-${count}`;
}

/** A label above a field. */
export function labelled(words, field, note = "") {
  field.id ||= unique("field");
  const about = note ? make("span", {class: "note", id: unique("note")}, note) : null;
  if (about) field.setAttribute("aria-describedby", about.id);
  return make("div", {class: "field"}, make("label", {for: field.id}, words), field, about);
}

/** A select of [value, words] pairs. */
export function choice(pairs, value, changed) {
  const options = pairs.map(([one, words]) => make(
    "option",
    {value: one, selected: `${one}` === `${value}`},
    words,
  ));
  return make("select", {on: {change: (event) => changed(event.target.value)}}, options);
}

/** A box to tick with its words behind it. */
export function tick(words, checked, changed) {
  const box = make("input", {type: "checkbox", checked, on: {change: () => changed(box.checked)}});
  return make("label", {class: "tick"}, box, make("span", {}, words));
}

/**
 * A table in a box that scrolls on its own; a cell may be an element. Where the screen is narrow,
 * the cells of one that `stacks` stand below each other, and a long one has a line to itself.
 */
export function table({caption = "", columns, rows, numeric = [], long = [], stacks = false}) {
  const kind = (place) => (
    numeric.includes(place) ? "number" : long.includes(place) ? "long" : null
  );
  const label = (place) => (
    stacks && place && !long.includes(place) && columns[place] ? columns[place] : null
  );
  const head = columns.map((words, place) => make("th", {scope: "col", class: kind(place)}, words));
  const body = rows.map((row) =>
    make("tr", {}, row.map((cell, place) =>
      make(
        place ? "td" : "th",
        {scope: place ? null : "row", class: kind(place), "data-label": label(place)},
        cell,
      ))));
  const name = caption || columns.join(", ");
  return make("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": name},
    make("table", {class: stacks ? "stacks" : null}, caption ? make("caption", {}, caption) : null,
      make("thead", {}, make("tr", {}, head)), make("tbody", {}, body)));
}
