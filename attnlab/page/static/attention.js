// Attention: a text, and who looks at whom in it: one head's weights, the influence of every token
// on every output, what comes next. A run can be looked into, or a mechanism without any training.

import * as address from "./address.js";
import {ask, attempt, newest, quiet, send} from "./api.js";
import {shares} from "./blocks.js";
import {control} from "./controls.js";
import {heatMap} from "./heat.js";
import {choice, labelled, make, refill, tick} from "./make.js";
import {formatted, took, visible} from "./words.js";

export const title = "Attention";

const TEXT = "The cat sat on the mat. The dog sat on the log.";
const HEADS = [1, 2, 4, 8];
const WIDTHS = [16, 32, 64, 128];
const DEPTHS = [1, 2, 3, 4];
const LONGEST = 2000; // characters of a text
const MOST = 4096; // layers, or heads in one
const WAIT = 250; // milliseconds of quiet before a text that is being typed is looked at

export function open(place, wanted, signal) {
  const state = {run: "", mechanism: {}, text: TEXT, layer: 0, head: 0, mask: true};
  const text = make("textarea", {rows: 2, maxlength: LONGEST, spellcheck: "false"});
  const source = make(
    "div",
    {class: "row", role: "radiogroup", "aria-label": "What looks at the text"},
  );
  const options = make("div", {class: "fields"});
  const where = make("div", {class: "row"});
  const status = make("p", {class: "note", role: "status"});
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
    "Point at a token, or move through the map with the arrow keys: "
      + "the text is shaded by what that token attends to.",
  );
  const spoken = (verb) => (i, j, value) => {
    const told = value === null ? "may not see it" : `${formatted(value)}${verb}`;
    return `${name(i)} → ${name(j)}: ${told}`;
  };
  const weights = heatMap({
    title: "Attention",
    said: spoken(""),
    moved: (cell) => follow(cell, influence),
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
  place.classList.add("waiting");
  refill(place,
    make("h1", {}, "Attention"),
    make("div", {class: "panel"}, labelled("Text", text), source, options, where),
    status, strip, hint,
    make("div", {class: "maps"},
      make("section", {}, make("h2", {}, "Attention of this head"), weights.element, masked),
      make(
        "section",
        {},
        make("h2", {}, "Influence in the whole model"),
        influence.element,
        unmeasured,
      ),
      make("section", {}, make("h2", {}, "What comes next"), next)));
  let about = {};
  let runs = [];
  let found = null;
  let row = null; // the token whose attention shades the text

  const name = (at) => `${visible(found.tokens[at])} ${at}`;

  function follow(cell, other) {
    other.point(cell);
    row = cell?.[0] ?? row;
    shade();
  }

  /** A layer or head that this run does not have, as an old address may say, is its first. */
  async function seen(body) {
    try {
      return await send("/api/look", body, signal);
    } catch (error) {
      if (found || !(body.layer || body.head) || error.name === "AbortError") throw error;
      [state.layer, state.head] = [0, 0];
      keep();
      return send("/api/look", {...body, layer: 0, head: 0}, signal);
    }
  }

  const look = newest(seen, (answer) => {
    if (signal.aborted) return;
    quiet();
    found = answer;
    place.classList.remove("waiting");
    if (row !== null && row >= found.tokens.length) row = null;
    where.removeAttribute("aria-busy");
    const window = found.window ? `, each sees ${found.window} keys in this layer` : "";
    const sizes = `${found.tokens.length} tokens, ${found.layers} layers of ${found.heads} heads`;
    status.textContent = `${sizes}${window}; ${took(found.seconds)}.`;
    places();
    draw();
  });

  function run() {
    keep();
    if (!state.text) return;
    where.setAttribute("aria-busy", "true");
    const from = state.run ? {run: state.run} : {mechanism: state.mechanism};
    const most = state.run ? state.text.length : about.mechanisms.most_tokens;
    look({source: from, text: state.text.slice(0, most), layer: state.layer, head: state.head});
  }

  function keep() {
    const changed = state.run
      ? {run: state.run}
      : Object.fromEntries(
        settings()
          .filter((one) => state.mechanism[one.name] !== one.value)
          .map((one) => [one.name, state.mechanism[one.name] ?? "none"]),
      );
    const said = state.text === TEXT ? undefined : state.text;
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
    state.text = (query.text || state.text).slice(0, LONGEST);
    text.value = state.text;
    state.run = runs.some((one) => one.name === query.run) ? query.run : "";
    const usual = about.mechanisms.defaults.heads;
    state.mechanism.heads = address.value(query.heads, {value: usual, choices: HEADS});
    state.mechanism = Object.fromEntries(settings().map(
      (one) => [one.name, address.value(query[one.name], one)],
    ));
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
      runs.length
        ? pick("a run", Boolean(state.run), () => turn(runs[0].name))
        : make("span", {class: "note"}, "No runs yet; train one: attnlab train tiny"));
    refill(options, state.run
      ? labelled("Run", choice(runs.map((one) => [one.name, one.name]), state.run, turn))
      : settings().map((one) => mechanism(one)));
    options.classList.toggle("one", Boolean(state.run));
  }

  function turn(name) {
    Object.assign(state, {run: name, layer: 0, head: 0});
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
      if (setting.name === "heads") sources();
      run();
    }).element;
  }

  /** Buttons for layers and heads. */
  function places() {
    const focus = document.activeElement?.dataset?.place;
    const button = (word, number) => make("button", {
      type: "button",
      class: "quiet",
      "aria-pressed": `${number === state[word]}`,
      "data-place": `${word}-${number}`,
      on: {click: () => {
        state[word] = number;
        run();
      }},
    }, `${number}`);
    const buttons = (word, count) => make(
      "div",
      {class: "group places", role: "group", "aria-label": `${word} to look at`},
      make("span", {class: "note"}, word),
      Array.from({length: count}, (_, number) => button(word, number)),
    );
    state.layer = Math.min(state.layer, found.layers - 1);
    state.head = Math.min(state.head, found.heads - 1);
    refill(
      where,
      buttons("layer", found.layers, state.layer),
      buttons("head", found.heads, state.head),
    );
    if (focus) where.querySelector(`[data-place="${focus}"]`)?.focus();
  }

  function draw() {
    const names = found.tokens.map(visible);
    const hidden = (rows) => (
      state.mask
        ? rows.map((one, i) => one.map((value, j) => (found.mask[i][j] ? value : null)))
        : rows
    );
    const axes = {rowNames: names, columnNames: names};
    weights.show({
      rows: hidden(found.weights),
      y: "token i looks …",
      x: "… at token j",
      ends: [0, 1],
      way: "root",
      ...axes,
    });
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
    const at = row ?? found.tokens.length - 1;
    [...strip.children].forEach((token, j) => {
      token.style.setProperty("--seen", `${Math.round(85 * Math.sqrt(found.weights[at][j]))}%`);
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
  let typing = null;
  text.addEventListener("input", () => {
    state.text = text.value;
    clearTimeout(typing);
    typing = setTimeout(run, WAIT);
  });
  attempt(async () => {
    const [one, all] = await Promise.all([ask("/api/about", signal), ask("/api/runs", signal)]);
    about = one;
    runs = all.filter((each) => each.writable);
    update(address.read());
  });
  return update;
}

/** What can be chosen of a mechanism; key/value heads divide the heads. */
function mechanisms({defaults, score, positions, ranges}, heads) {
  const one = (name, kind, more = {}) => ({name, kind, value: defaults[name], ...more});
  return [
    one("score", "text", {choices: score.map((each) => each.name)}),
    one("positions", "text", {choices: positions.map((each) => each.name)}),
    one("window", "int?", {low: ranges.window[0], high: ranges.window[1]}),
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
