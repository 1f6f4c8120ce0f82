// A setting as a slider with a number beside it, a box to tick, or a list of choices.

import {choice, make, tick, unique} from "./make.js";
import {formatted, plain, spaced} from "./words.js";

const STEPS = 400; // of a slider that does not count
const DECADES = 3; // a range that spans more is walked in factors

/** `changed(value)` is called with every value that is in the range. */
export function control(setting, value, changed) {
  if (setting.kind === "bool") return switched(setting, value, changed);
  if (setting.kind === "text" || setting.kind === "choice") return spelled(setting, value, changed);
  if (setting.kind === "ints") return listed(setting, value, changed);
  return counted(setting, value, changed);
}

function framed(setting, field, ...rest) {
  const about = setting.about
    ? make("p", {class: "note", id: unique("about")}, setting.about)
    : null;
  if (about) field.setAttribute("aria-describedby", about.id);
  field.id = unique("setting");
  return make("div", {class: "setting", "data-setting": setting.name},
    make("label", {for: field.id}, spaced(setting.name)), field, ...rest, about);
}

function switched(setting, value, changed) {
  const words = setting.about || spaced(setting.name);
  const element = make(
    "div",
    {class: "setting", "data-setting": setting.name},
    tick(words, value, changed),
  );
  const box = element.querySelector("input");
  return {element, set: (one) => (box.checked = one), hold: (held) => (box.disabled = held)};
}

function spelled(setting, value, changed) {
  const field = setting.choices
    ? choice(setting.choices.map((one) => [one, one]), value, changed)
    : make("input", {type: "text", value: value ?? "", on: {change: () => changed(field.value)}});
  return {
    element: framed(setting, field),
    set: (one) => (field.value = one),
    hold: (held) => (field.disabled = held),
  };
}

/** Whole numbers with commas between them. */
function listed(setting, value, changed) {
  const spoken = (numbers) => (numbers ?? []).join(", ");
  const field = make("input", {type: "text", value: spoken(value), placeholder: "none"});
  field.addEventListener("change", () => {
    const numbers = field.value.split(/[\s,]+/).filter(Boolean).map(Number);
    if (numbers.every(Number.isInteger)) changed(numbers);
    else field.value = spoken(value);
  });
  return {
    element: framed(setting, field),
    set: (one) => (field.value = spoken(one)),
    hold: (held) => (field.disabled = held),
  };
}

function counted(setting, value, changed) {
  const whole = setting.kind.startsWith("int");
  const optional = setting.kind.endsWith("?");
  const [low, high] = [setting.low ?? null, setting.high ?? null];
  const number = make("input", {
    type: "number", min: low, max: high, step: whole
      ? 1
      : "any", inputmode: whole ? "numeric" : "decimal",
    placeholder: optional ? "none" : null,
  });
  // a range as wide as a seed's has no slider: no hand is that fine, and neighbours mean nothing
  const slides = setting.slider !== false && low !== null && high !== null && high > low
    && setting.name !== "seed";
  const track = slides ? slider(low, high, whole) : null;
  const answer = make("p", {class: "partly refused", role: "status"});
  const bounded = (one) => Math.min(
    high ?? one,
    Math.max(low ?? one, whole ? Math.round(one) : one),
  );

  function set(one) {
    number.value = one === null || one === undefined ? "" : plain(one);
    track?.set(one ?? low);
    refuse(null);
  }

  /** Says why a number that is typed is none that the setting can have. */
  function refuse(one) {
    const wrong = one !== null && bounded(one) !== one;
    answer.textContent = wrong ? setting.refuses ?? rule(low, high, whole) : "";
    number.setAttribute("aria-invalid", `${wrong}`);
  }
  number.addEventListener("input", () => {
    const one = number.valueAsNumber;
    refuse(Number.isNaN(one) ? null : one);
    if (Number.isNaN(one) || bounded(one) !== one) return; // half typed
    track?.set(one);
    changed(one);
  });
  number.addEventListener("change", () => {
    if (number.value === "" && optional) return changed(null);
    const one = bounded(
      Number.isNaN(number.valueAsNumber) ? value ?? low ?? 0 : number.valueAsNumber,
    );
    const typed = number.valueAsNumber;
    set(one);
    if (!Number.isNaN(typed) && typed !== one) {
      answer.textContent = setting.refuses ?? rule(low, high, whole);
    }
    return changed(one);
  });
  track?.element.addEventListener("input", () => {
    const one = bounded(track.value());
    number.value = plain(one);
    track.element.setAttribute("aria-valuetext", formatted(one));
    changed(one);
  });
  set(value);
  if (!track) {
    const hold = (held) => (number.disabled = held);
    return {element: framed(setting, number, answer), set, hold};
  }
  number.setAttribute("aria-label", `${spaced(setting.name)} as a number`);
  return {
    element: framed(setting, track.element, number, answer),
    set,
    hold: (held) => (number.disabled = track.element.disabled = held),
  };
}

function rule(low, high, whole) {
  const kind = whole ? "a whole number" : "a number";
  if (low === null || high === null) return `Use ${kind}.`;
  return `Use ${kind} from ${formatted(low)} to ${formatted(high)}.`;
}

function slider(low, high, whole) {
  const first = low > 0 ? low : whole ? 1 : 0;
  const log = first > 0 && Math.log10(high / first) > DECADES;
  const single = whole && !log && high - low <= 4 * STEPS;
  const element = make(
    "input",
    {type: "range", min: single ? low : 0, max: single ? high : STEPS, step: 1},
  );
  const value = () => {
    if (single) return Number(element.value);
    const share = Number(element.value) / STEPS;
    if (share === 0) return low;
    if (share === 1) return high;
    return Number(
      (log ? first * (high / first) ** share : low + share * (high - low)).toPrecision(3),
    );
  };
  const set = (one) => {
    const share = log
      ? Math.log(Math.max(one, first) / first) / Math.log(high / first)
      : (one - low) / (high - low);
    element.value = single ? one : Math.round(share * STEPS);
    element.setAttribute("aria-valuetext", formatted(one));
  };
  return {element, value, set};
}
