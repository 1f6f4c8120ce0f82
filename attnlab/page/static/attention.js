// Attention: a text, and who attends to whom in it: all heads small, one large; the influence of
// every token on every output; what comes next. A run can be looked into, or a mechanism without
// any training.

import * as address from "./address.js";
import {ask, attempt, newest, quiet, Refused, send} from "./api.js";
import {shares} from "./blocks.js";
import {control} from "./controls.js";
import {description, headGrid} from "./heads.js";
import {heatMap} from "./heat.js";
import {choice, labelled, make, refill, tick} from "./make.js";
import {formatted, took, visible} from "./words.js";

export const title = "Attention";

const TEXT = "The cat sat on the mat. The dog sat on the log.";
const HEADS = [1, 2, 4, 8];
const WIDTHS = [16, 32, 64, 128];
const DEPTHS = [1, 2, 3, 4];
const IN_ADDRESS = 2000; // characters of a text that a link holds; no more are ever shown
const MOST = 4096; // layers, or heads in one
const WAIT = 250; // milliseconds of quiet before a text that is being typed is looked at
const EMPTY = "The text is empty: write one above, and it is read as you type.";

export function open(place, wanted, signal) {
  const state = {run: "", mechanism: {}, text: TEXT, layer: 0, head: 0, mask: true};
  const text = make("textarea", {rows: 2, spellcheck: "false"});
  const source = make(
    "div",
    {class: "row", role: "radiogroup", "aria-label": "What looks at the text"},
  );
  const options = make("div", {class: "fields"});
  const status = make("p", {class: "note", role: "status"});
  const told = make("div", {class: "told", "aria-live": "polite"});
  const strip = make(
    "div",
    {
      class: "strip-text",
      tabindex: "0",
      role: "region",
      "aria-label": "The text, shaded by the attention of the chosen token",
    },
  );
  const hint = make(
    "p",
    {class: "note hint"},
    "Point at a token, or move through the map with the arrow keys: the text is shaded by what "
      + "that token attends to. Page Up and Page Down go to the next layer, [ and ] to the next head.",
  );
  const spoken = (verb) => (i, j, value) => {
    const words = value === null ? "may not attend to it" : `${formatted(value)}${verb}`;
    return `${name(i)} → ${name(j)}: ${words}`;
  };
  const grid = headGrid((layer, head) => go(layer, head));
  const which = make("h2", {class: "which"});
  const steps = make("div", {class: "row steps"});
  const does = make("div", {class: "does-box", "aria-live": "polite"});
  const weights = heatMap({
    title: "Attention",
    said: spoken(""),
    moved: (cell) => follow(cell, influence),
    largest: 720,
  });
  const influence = heatMap({
    title: "Influence",
    said: spoken(" moved"),
    moved: (cell) => follow(cell, weights),
  });
  const unmeasured = make("p", {class: "note"});
  const next = make("div");
  const masked = tick("hatch what the mask hides", true, (on) => {
    state.mask = on;
    draw();
  });
  const enlarged = tick("name every token (scrolls)", false, (on) => weights.enlarge(on));
  const large = make(
    "section",
    {class: "large"},
    make("div", {class: "which-row"}, which, steps),
    does,
    strip,
    hint,
    weights.element,
    make("div", {class: "row"}, masked, enlarged),
  );
  place.classList.add("waiting");
  refill(place,
    make("h1", {}, "Attention"),
    make("div", {class: "panel"}, labelled("Text", text), source, options),
    status,
    told,
    make("div", {class: "seen"}, grid.element,
      make("div", {class: "maps"},
        large,
        make("div", {class: "beside"},
          make(
            "section",
            {},
            make("h2", {}, "Influence in the whole model"),
            influence.element,
            unmeasured,
          ),
          make("section", {}, make("h2", {}, "What comes next"), next)))));
  let about = {};
  let all = []; // runs, whether they have a model yet or not
  let runs = [];
  let found = null;
  let row = null; // the token whose attention shades the text
  let corrected = []; // what an address said that cannot be

  const name = (at) => `${visible(found.tokens[at])} ${at}`;

  function follow(cell, other) {
    other.point(cell);
    row = cell?.[0] ?? row;
    shade();
  }

  /** Says something in place of the pictures, or beside them. */
  function tell(words, instead = false) {
    refill(told, words.filter(Boolean).map((one) => make("p", {class: "partly"}, one)));
    place.classList.toggle("nothing", instead);
    if (instead) {
      place.classList.remove("waiting");
      status.textContent = "";
    }
  }

  /** What the server will not read is said where the pictures were: those of another text mislead.
   * A layer or head that this model does not have, as an old address may say, is its first. */
  async function seen(body) {
    try {
      return await send("/api/look", body, signal);
    } catch (error) {
      if (!(error instanceof Refused) || error.status !== 400) throw error;
      if (!body.layer && !body.head) return {refused: error.message};
      [state.layer, state.head] = [0, 0];
      keep();
      return seen({...body, layer: 0, head: 0});
    }
  }

  const look = newest(seen, (answer, body) => {
    if (signal.aborted || !state.text) return;
    quiet();
    if (answer.refused) {
      tell([...corrected, answer.refused], true);
      return;
    }
    found = answer;
    const most = about.mechanisms.most_characters;
    const long = text.value.length > most
      ? `Of the text the first ${most.toLocaleString("en")} characters are read.`
      : "";
    tell([...corrected, long, found.cut, found.absent]);
    place.classList.remove("waiting");
    place.classList.toggle("no-heads", !found.layers);
    if (row !== null && row >= found.tokens.length) row = null;
    const window = found.window ? `; in this layer a query attends to ${found.window} keys` : "";
    const heads = found.layers ? `, ${found.layers} layers of ${found.heads} heads` : "";
    status.textContent = `${found.tokens.length} tokens${heads}${window}; ${took(found.seconds)}.`;
    state.layer = Math.max(0, Math.min(state.layer, found.layers - 1));
    state.head = Math.max(0, Math.min(state.head, found.heads - 1));
    stepper();
    draw();
    if (found.layers) survey({source: body.source, text: body.text});
  });

  let surveyed = null; // what the grid shows
  const lookAtAll = newest((body) => send("/api/look/heads", body, signal), (answer, body) => {
    if (signal.aborted) return;
    surveyed = JSON.stringify(body);
    place.classList.remove("pending");
    grid.show(answer);
    describe();
  });

  /** The grid is the same for all heads of a text. */
  function survey(body) {
    grid.mark(state.layer, state.head);
    const other = surveyed !== JSON.stringify(body);
    place.classList.toggle("pending", other); // what is there belongs to another text
    if (other) lookAtAll(body);
    else describe();
  }

  function describe() {
    const one = grid.about(state.layer, state.head);
    const opened = does.querySelector("details")?.open ?? false;
    refill(does, one ? description(one, opened) : null);
  }

  function run() {
    if (missing()) {
      const known = all.some((one) => one.name === state.run);
      tell([known
        ? `The run ${state.run} has no checkpoint yet, so there is no model to look into.`
        : `There is no run ${state.run} here: it was removed, renamed, or is in another folder. `
          + "Choose another one above."], true);
      return;
    }
    keep();
    if (!state.text) {
      tell([...corrected, EMPTY], true);
      return;
    }
    const from = state.run ? {run: state.run} : {mechanism: state.mechanism};
    const words = state.text.slice(0, about.mechanisms.most_characters);
    look({source: from, text: words, layer: state.layer, head: state.head});
  }

  const missing = () => state.run && !runs.some((one) => one.name === state.run);

  function go(layer, head) {
    [state.layer, state.head] = [layer, head];
    grid.mark(layer, head);
    run();
  }

  function step(layers, heads) {
    const bounded = (value, count) => Math.min(count - 1, Math.max(0, value));
    if (found?.layers) {
      go(bounded(state.layer + layers, found.layers), bounded(state.head + heads, found.heads));
    }
  }

  function keep() {
    const changed = state.run
      ? {run: state.run}
      : Object.fromEntries(
        settings()
          .filter((one) => state.mechanism[one.name] !== one.value)
          .map((one) => [one.name, state.mechanism[one.name] ?? "none"]),
      );
    const said = state.text === TEXT ? undefined : state.text.slice(0, IN_ADDRESS);
    if (!signal.aborted) {
      address.keep({
        view: "attention",
        query: {
          ...changed,
          text: said,
          layer: state.layer || undefined,
          head: state.head || undefined,
        },
      });
    }
  }

  const settings = () => mechanisms(about.mechanisms, state.mechanism.heads);

  function update(now) {
    const {query} = now;
    state.text = query.text || state.text;
    if (text.value !== state.text) text.value = state.text;
    state.run = query.run ?? "";
    const usual = about.mechanisms.defaults.heads;
    state.mechanism.heads = address.value(query.heads, {value: usual, choices: HEADS});
    state.mechanism = Object.fromEntries(settings().map(
      (one) => [one.name, address.value(query[one.name], one)],
    ));
    corrected = state.run ? [] : outside(query, state.mechanism);
    const {depth, heads} = state.run ? {} : state.mechanism; // of a run, the server knows them
    const place = (word, count) => address.value(
      word,
      {kind: "int", value: 0, low: 0, high: (count ?? MOST) - 1},
    );
    [state.layer, state.head] = [place(query.layer, depth), place(query.head, heads)];
    sources();
    run();
  }

  function sources() {
    const pick = (words, on, changed) => make(
      "label",
      {class: "tick"},
      make("input", {type: "radio", name: "source", checked: on, on: {change: changed}}),
      make("span", {}, words),
    );
    refill(source,
      pick("a mechanism, untrained", !state.run, () => turn("")),
      runs.length || state.run
        ? pick("a run", Boolean(state.run), () => turn(runs[0].name))
        : make("span", {class: "note"}, "No runs yet; train one: attnlab train tiny"));
    const names = runs.map((one) => [one.name, one.name]);
    if (missing()) names.unshift([state.run, `${state.run} (cannot be opened)`]);
    refill(options, state.run
      ? labelled("Run", choice(names, state.run, turn))
      : settings().map((one) => mechanism(one)));
    options.classList.toggle("one", Boolean(state.run));
  }

  function turn(name) {
    Object.assign(state, {run: name, layer: 0, head: 0});
    corrected = [];
    sources();
    run();
  }

  function mechanism(setting) {
    return control({...setting, slider: false}, state.mechanism[setting.name], (value) => {
      const known = state.mechanism;
      known[setting.name] = setting.kind === "text" || value === null ? value : Number(value);
      if (setting.name === "heads") known.kv_heads = Math.min(known.kv_heads, known.heads);
      [state.layer, state.head] = [
        Math.min(state.layer, known.depth - 1),
        Math.min(state.head, known.heads - 1),
      ];
      corrected = [];
      if (setting.name === "heads") sources();
      run();
    }).element;
  }

  /** Buttons to the layer and head before and after. */
  function stepper() {
    const focus = document.activeElement?.dataset?.step;
    which.textContent = found.layers
      ? `Layer ${state.layer}, head ${state.head}`
      : "The text";
    const button = (words, spoken, by, off) => make(
      "button",
      {
        type: "button",
        class: "quiet",
        "aria-label": spoken,
        "data-step": spoken,
        disabled: off,
        on: {click: () => step(...by)},
      },
      words,
    );
    const pair = (word, count, by) => make(
      "span",
      {class: "group", role: "group", "aria-label": `${word} to look at`},
      button("‹", `previous ${word}`, by(-1), state[word] === 0),
      make("span", {class: "note"}, word),
      button("›", `next ${word}`, by(1), state[word] === count - 1),
    );
    refill(steps, found.layers
      ? [pair("layer", found.layers, (by) => [by, 0]), pair("head", found.heads, (by) => [0, by])]
      : null);
    if (focus) steps.querySelector(`[data-step="${focus}"]:not(:disabled)`)?.focus();
  }

  function draw() {
    const names = found.tokens.map(visible);
    const axes = {rowNames: names, columnNames: names};
    if (found.weights) {
      const hidden = (rows) => (
        state.mask
          ? rows.map((one, i) => one.map((value, j) => (found.mask[i][j] ? value : null)))
          : rows
      );
      // a difference of two softmax maps has both signs
      const signed = found.weights.some((one) => one.some((value) => value < 0));
      weights.show({
        rows: hidden(found.weights),
        name: `Attention, layer ${state.layer}, head ${state.head}`,
        y: "token i attends …",
        x: "… to token j",
        ends: [signed ? -1 : 0, 1],
        way: "root",
        ...axes,
      });
    }
    influence.element.hidden = !found.influence;
    unmeasured.textContent = found.note ?? "";
    if (found.influence) {
      influence.show({
        rows: found.influence,
        y: "output i moves …",
        x: "… when token j is replaced",
        log: true,
        ...axes,
      });
    }
    const likely = found.next.map(({token, probability}) => ({name: token, share: probability}));
    const untrained = state.run ? "" : "; the model is untrained, so this means nothing yet";
    refill(next,
      shares(likely, {caption: "Likeliest next tokens"}),
      make("p", {class: "note"}, `after the last token${untrained}`));
    refill(
      strip,
      found.tokens.map((token, at) =>
        make("span", {"data-at": at}, token === "\n" ? "↵\n" : token)),
    );
    shade();
  }

  function shade() {
    if (!found.weights) return;
    const at = row ?? found.tokens.length - 1;
    [...strip.children].forEach((token, j) => {
      const seen = Math.min(1, Math.max(0, found.weights[at][j]));
      token.style.setProperty("--seen", `${Math.round(85 * Math.sqrt(seen))}%`);
      token.classList.toggle("own", j === at);
    });
  }

  for (const event of ["pointermove", "click"]) {
    strip.addEventListener(event, (one) => {
      const at = one.target.dataset?.at;
      if (at === undefined || Number(at) === row) return;
      row = Number(at);
      shade();
    });
  }
  large.addEventListener("keydown", (event) => {
    const moves = {PageUp: [-1, 0], PageDown: [1, 0], "[": [0, -1], "]": [0, 1]};
    if (!(event.key in moves) || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    step(...moves[event.key]);
  });
  let typing = null;
  text.addEventListener("input", () => {
    state.text = text.value;
    clearTimeout(typing);
    typing = setTimeout(run, WAIT);
  });
  attempt(async () => {
    [about, all] = await Promise.all([ask("/api/about", signal), ask("/api/runs", signal)]);
    runs = all.filter((each) => each.writable);
    update(address.read());
  });
  return update;
}

/** A number of the address that a setting cannot have, and what is used instead, in words. */
function outside(query, values) {
  return Object.entries(values)
    .filter(([key, value]) => (
      typeof value === "number" && query[key] !== undefined && Number(query[key]) !== value
    ))
    .map(([key, value]) => key === "window" && Number(query[key]) === 0
      ? "A window of 0 would hide every key, the query's own included; shown is a window of 1."
      : `${key} cannot be ${query[key]} here; shown is ${value}.`);
}

/** What can be chosen of a mechanism; key/value heads divide the heads. */
function mechanisms({defaults, score, positions, ranges}, heads) {
  const one = (name, kind, more = {}) => ({name, kind, value: defaults[name], ...more});
  return [
    one("score", "text", {choices: score.map((each) => each.name)}),
    one("positions", "text", {choices: positions.map((each) => each.name)}),
    one(
      "window",
      "int?",
      {
        low: ranges.window[0],
        high: ranges.window[1],
        refuses: "A window counts the query's own key, so it is 1 or more; empty: all keys.",
      },
    ),
    one("heads", "choice", {choices: HEADS}),
    one(
      "kv_heads",
      "choice",
      {
        value: Math.min(defaults.kv_heads, heads),
        choices: HEADS.filter((each) => each <= heads),
      },
    ),
    one("width", "choice", {choices: WIDTHS}),
    one("depth", "choice", {choices: DEPTHS}),
    one("seed", "int", {low: 0, high: 2 ** 31 - 1}),
  ];
}
