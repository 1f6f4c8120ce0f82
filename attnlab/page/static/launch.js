// A training or a comparison to start: a preset, settings in their ranges, and the command line
// that they make. The server says which settings there are and what is wrong with one.

import {ask, attempt, newest, send} from "./api.js";
import {choice, labelled, make, refill, unique} from "./make.js";
import {formatted} from "./words.js";

const MOST_VARIANTS = 6;
const GROUPS = {
  model: "model", optimiser: "optimiser", schedule: "schedule",
  corpus: "text", tokenizer: "text", objective: "text",
};

/** `begun(id)` is called when something was started. */
export function launchForm(signal, begun) {
  const chosen = {
    kind: "train", preset: "tiny", text: "", start: "", settings: {}, comparison: {},
    variants: [
      {label: "", settings: {}},
      {label: "", settings: {"model.positions": "learned"}},
    ],
  };
  let options = null;
  let plan = null;
  let changes = 0; // of what is chosen
  let shown = 0; // the change whose plan is shown
  let enabled = true;
  const settings = fieldset("training", (...change) => set(chosen.settings, ...change));
  const compared = fieldset("comparison", (...change) => set(chosen.comparison, ...change));
  const source = make("div", {class: "fields source"});
  const variants = make("div", {class: "variants"});
  const comparison = make("div", {class: "comparison"},
    make("h3", {}, "Variants"), variants, make("h3", {}, "How they are compared"),
    compared.element);
  const command = make("code", {class: "command"});
  const said = make("p", {class: "problem", role: "status"});
  const size = make("span", {class: "note"});
  const start = make(
    "button",
    {type: "button", class: "main", disabled: true, on: {click: () => begin()}},
    "Start",
  );
  const copied = make("span", {class: "note", role: "status"});
  const copy = make("button", {type: "button", class: "quiet", on: {click: () => copyCommand()}},
    "Copy the command");
  const inside = make("div", {class: "launch-form"});
  const element = make("details", {class: "launch", on: {toggle: () => unfold()}},
    make("summary", {}, "Start a training or a comparison"), inside);

  async function unfold() {
    if (!element.open || options) return;
    await attempt(async () => {
      const [known, now] = await Promise.all(
        [ask("/api/launches/options", signal), ask("/api/launches", signal)],
      );
      [options, enabled] = [known, now.enabled];
      drawSource();
      refill(inside, source,
        make("h3", {class: "for-all"}, "Settings"), settings.element, comparison,
        make("div", {class: "outcome"},
          make("p", {class: "label"}, "The same in a terminal"),
          make("pre", {class: "wrap"}, command), said,
          make("div", {class: "row"}, enabled ? start : null, copy, size, copied),
          enabled ? null : make("p", {class: "note"},
            "This page starts nothing itself: it was opened with --no-start. Copy the command.")));
      ready();
    });
  }

  function drawSource() {
    const about = make("span", {class: "note"});
    const kind = choice(
      [["train", "a training"], ["compare", "a comparison"]],
      chosen.kind,
      (value) => {
        chosen.kind = value;
        drawSource();
        ready();
      },
    );
    const preset = choice(
      options.presets.map((one) => [one.name, one.name]),
      chosen.preset,
      (value) => {
        Object.assign(chosen, {preset: value, settings: {}, start: ""});
        drawSource();
        ready();
      },
    );
    about.textContent = options.presets.find((one) => one.name === chosen.preset)?.about ?? "";
    const text = choice(
      [["", "that of the preset"], ...options.texts.map((one) => [one, one])],
      chosen.text,
      (value) => pick({text: value}),
    );
    const weights = choice(
      [["", "new ones"], ...options.starts.map((one) => [one, `those of ${one}`])],
      chosen.start,
      (value) => pick({start: value}),
    );
    const field = (key, words, input) => {
      const made = labelled(words, input);
      made.dataset.key = key;
      return made;
    };
    const focus = source.contains(document.activeElement)
      && document.activeElement.closest("[data-key]")?.dataset.key;
    refill(source,
      field("kind", "What", kind),
      make("div", {class: "wide"}, field("preset", "Preset", preset), about),
      field("text", "Text", text),
      chosen.kind === "train" && options.starts.length
        ? field("start", "Weights", weights) : null);
    if (focus) source.querySelector(`[data-key="${focus}"] select`)?.focus();
    comparison.hidden = chosen.kind !== "compare";
    element.querySelector(".for-all")?.replaceChildren(
      chosen.kind === "compare" ? "Settings of all variants" : "Settings",
    );
  }

  function pick(part) {
    Object.assign(chosen, part);
    ready();
  }

  /** What is as it usually is need not be written; what belongs to another option goes with it. */
  function set(into, key, value, usual) {
    const above = Object.keys(into).some((one) => key.startsWith(`${one}.`));
    if (value === "" || (value === usual && !above)) delete into[key];
    else into[key] = value;
    for (const one of Object.keys(into)) if (one.startsWith(`${key}.`)) delete into[one];
    ready();
  }

  /** Nothing is started or copied before its command is shown. */
  function ready() {
    changes += 1;
    start.disabled = true;
    copy.disabled = true;
    replan(changes);
  }

  const replan = newest(
    () => send("/api/launches/plan", wanted(), signal),
    (found, asked) => {
      plan = found;
      shown = asked;
      const {key, variant: of} = plan.problem ?? {};
      const lost = key in chosen.settings && (of ?? null) === null
        && !plan.fields.some((field) => field.key === key);
      if (lost) { // it belongs to an option that is not chosen any more, or not to a comparison
        delete chosen.settings[key];
        ready();
      } else {
        draw();
      }
    },
  );

  function wanted() {
    const {kind, preset, text, start: from, settings: all, comparison: how} = chosen;
    const usual = {kind, preset, text, settings: all};
    return kind === "compare"
      ? {...usual, comparison: how, variants: chosen.variants}
      : {...usual, start: from};
  }

  function draw() {
    settings.show(plan.fields, chosen.settings);
    compared.show(plan.comparison, chosen.comparison);
    drawVariants();
    command.textContent = plan.command || "–";
    const {problem} = plan;
    copy.disabled = Boolean(problem) || shown !== changes;
    start.disabled = copy.disabled;
    copied.textContent = "";
    size.textContent = plan.parameters
      ? `at most ${[...new Set(plan.parameters)].map((one) => formatted(one)).join(", ")} parameters`
      : "";
    mend(problem);
  }

  /** The line goes to its field if it has one here, else above the buttons. */
  function mend(problem) {
    for (const old of inside.querySelectorAll(".field-problem")) old.remove();
    for (const old of inside.querySelectorAll("[aria-invalid]")) {
      old.removeAttribute("aria-invalid");
      old.removeAttribute("aria-errormessage");
    }
    said.textContent = "";
    if (!problem) return;
    const within = problem.variant === null || problem.variant === undefined
      ? inside : variants.children[problem.variant] ?? inside;
    const field = problem.key
      ? within.querySelector(`[data-key="${CSS.escape(problem.key)}"]`)
      : within !== inside ? within.querySelector("[data-key=label]") : null;
    if (!field) {
      said.textContent = problem.line;
      return;
    }
    const line = make(
      "p",
      {class: "field-problem", id: unique("problem"), role: "status"},
      problem.line,
    );
    const input = field.querySelector("input, select");
    input?.setAttribute("aria-invalid", "true");
    input?.setAttribute("aria-errormessage", line.id);
    field.append(line);
    field.closest("details:not(.launch)")?.setAttribute("open", "");
  }

  function drawVariants() {
    const shape = JSON.stringify(chosen.variants.map(
      (one, number) => [Object.keys(one.settings), plan.variants[number]?.map((f) => f.key)],
    ));
    if (variants.dataset.shape === shape) return;
    variants.dataset.shape = shape;
    const boxes = chosen.variants.map((one, number) => variant(one, number));
    refill(variants, boxes, chosen.variants.length < MOST_VARIANTS
      ? make("button", {type: "button", class: "quiet", on: {click: () => {
        chosen.variants.push({label: "", settings: {}});
        ready();
      }}}, "Add a variant")
      : null);
  }

  function variant(one, number) {
    const label = make("input", {type: "text", value: one.label, maxlength: 40,
      placeholder: "made of what differs"});
    label.addEventListener("input", () => {
      one.label = label.value.trim();
      ready();
    });
    const named = labelled("label", label);
    named.dataset.key = "label";
    const fields = plan.variants[number] ?? plan.fields;
    const changes = Object.entries(one.settings).map(([key, value]) => {
      const known = fields.find((field) => field.key === key) ?? {key, choices: null, values: ""};
      const made = input({...known, value}, (now) => {
        one.settings[key] = now;
        if (known.choices) {
          for (const deeper of Object.keys(one.settings)) {
            if (deeper.startsWith(`${key}.`)) delete one.settings[deeper];
          }
        }
        ready();
      });
      const box = labelled(key, made, known.values);
      box.dataset.key = key;
      box.append(make("button", {
        type: "button",
        class: "plain remove",
        "aria-label": `Take ${key} out of variant ${number + 1}`,
        on: {click: () => {
          delete one.settings[key];
          ready();
        }},
      }, "×"));
      return box;
    });
    const left = fields.filter((field) => !(field.key in one.settings));
    const add = choice(
      [["", "change a setting …"], ...left.map((field) => [field.key, field.key])],
      "",
      (key) => {
        const field = left.find((each) => each.key === key);
        const other = field.choices?.find((each) => each !== field.value);
        one.settings[key] = other ?? field.value;
        ready();
      },
    );
    add.setAttribute("aria-label", `Change a setting of variant ${number + 1}`);
    return make("fieldset", {class: "variant"},
      make("legend", {}, `Variant ${number + 1}`),
      named,
      changes.length ? changes : make("p", {class: "note"}, "the preset with the settings above"),
      make("div", {class: "row"}, add, chosen.variants.length > 2
        ? make("button", {type: "button", class: "quiet", on: {click: () => {
          chosen.variants.splice(number, 1);
          ready();
        }}}, "Remove it")
        : null));
  }

  async function begin() {
    start.disabled = true;
    await attempt(async () => {
      const {id} = await send("/api/launches", wanted(), signal);
      element.open = false;
      begun(id);
    });
    start.disabled = Boolean(plan.problem) || shown !== changes;
  }

  async function copyCommand() {
    try {
      await navigator.clipboard.writeText(plan.command);
      copied.textContent = "copied";
    } catch {
      getSelection().selectAllChildren(command);
      copied.textContent = "selected: copy it with the keyboard";
    }
  }

  return {element};
}

/** Fields of settings, the main ones first and the others folded away by group; those without one
 * are called `rest`. */
function fieldset(rest, changed) {
  const element = make("div", {});
  const inputs = new Map();
  let shape = "";

  function show(fields, set) {
    const now = JSON.stringify(fields.map((field) => [field.key, field.choices]));
    const anew = now !== shape; // and then also the one that somebody is typing in
    if (anew) build(fields);
    shape = now;
    for (const field of fields) {
      const {input: one, box} = inputs.get(field.key);
      const value = set[field.key] ?? field.value;
      if ((anew || document.activeElement !== one) && one.value !== value) one.value = value;
      box.classList.toggle("changed", field.key in set);
      one.dataset.usual = field.usual ?? "";
    }
  }

  function build(fields) {
    const focus = document.activeElement?.closest?.("[data-key]")?.dataset.key;
    const unfolded = [...element.querySelectorAll("details[open]")];
    const open = new Set(unfolded.map((one) => one.dataset.of));
    inputs.clear();
    const boxes = new Map(fields.map((field) => [field.key, box(field)]));
    const main = fields.filter((field) => field.main).map((field) => boxes.get(field.key));
    const groups = new Map();
    for (const field of fields.filter((one) => !one.main)) {
      const top = field.key.split(".")[0];
      const name = GROUPS[top] ?? rest;
      groups.set(name, [...(groups.get(name) ?? []), boxes.get(field.key)]);
    }
    refill(element, make("div", {class: "fields"}, main), [...groups].map(([name, some]) => make(
      "details",
      {class: "more-settings", "data-of": name, open: open.has(name)},
      make("summary", {}, `More: ${name}`),
      make("div", {class: "fields"}, some),
    )));
    if (focus) inputs.get(focus)?.input.focus();
  }

  function box(field) {
    const one = input(field, (value) => changed(field.key, value, one.dataset.usual));
    const made = labelled(field.key, one, [field.about, field.values].filter(Boolean).join("; "));
    made.dataset.key = field.key;
    inputs.set(field.key, {input: one, box: made});
    return made;
  }

  return {element, show};
}

function input(field, changed) {
  if (field.choices) return choice(field.choices.map((one) => [one, one]), field.value, changed);
  const one = make("input", {
    type: "text", value: field.value, autocomplete: "off", spellcheck: "false", maxlength: 120,
    inputmode: /none|list/.test(field.values) ? null : "decimal",
    on: {input: () => changed(one.value.trim())},
  });
  return one;
}
