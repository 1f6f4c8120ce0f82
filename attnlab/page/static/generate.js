// Generate: a model continues a prompt, token by token; models that learned to answer are asked.

import * as address from "./address.js";
import {ask, attempt, quiet, Refused, send, stream} from "./api.js";
import {shares} from "./blocks.js";
import {control} from "./controls.js";
import {exportBar} from "./export.js";
import {choice, labelled, make, refill} from "./make.js";
import {counted, formatted, percent} from "./words.js";

export const title = "Generate";

const SETTINGS = [
  {
    name: "temperature",
    kind: "float",
    value: 0.8,
    low: 0,
    high: 5,
    about: "0 takes the likeliest token each time",
  },
  {name: "tokens", kind: "int", value: 200, low: 1, high: 512, about: "at most"},
  {
    name: "top_k",
    kind: "int?",
    value: null,
    slider: false,
    low: 1,
    high: 500,
    about: "only so many likeliest tokens; empty for all",
  },
  {
    name: "seed",
    kind: "int",
    value: 0,
    low: 0,
    high: 2 ** 31 - 1,
    about: "the same seed writes the same text",
  },
];

export function open(place, wanted, signal) {
  const values = Object.fromEntries(SETTINGS.map(({name, value}) => [name, value]));
  const prompt = make(
    "textarea",
    {rows: 4, maxlength: 2000, spellcheck: "false", required: true, placeholder: "Begin a text …"},
  );
  const go = make("button", {type: "submit", class: "main", disabled: true}, "Write on");
  const stop = make("button", {type: "button", class: "quiet", disabled: true}, "Stop");
  const status = make("p", {class: "note", role: "status"});
  const begun = make("span", {class: "prompt"});
  const text = make("span", {class: "written"});
  const output = make(
    "div",
    {class: "output", tabindex: "0", role: "region", "aria-label": "The text"},
    begun,
    text,
  );
  const take = exportBar({
    text: () => begun.textContent + text.textContent,
    numbers: () => ({columns: Object.keys(done), rows: [Object.values(done)]}),
    link: () => address.written({view: "generate", query: {...wish(done), again: true}}),
    name: () => "text",
  });
  take.hidden = true;
  const missing = make("p", {class: "partly", role: "status"});
  const which = make("div");
  const panel = make("div", {class: "panel"});
  const controls = SETTINGS.map((setting) => {
    const changed = (value) => {
      values[setting.name] = value;
      keep();
    };
    return {name: setting.name, ...control(setting, values[setting.name], changed)};
  });
  panel.append(make("h2", {}, "Settings"), ...controls.map((one) => one.element));
  const questions = make("section", {class: "ask", hidden: true});
  const form = make(
    "form",
    {class: "writer"},
    labelled("Prompt", prompt),
    make("div", {class: "row"}, go, stop, status),
  );
  refill(place, make("h1", {}, "Generate"),
    make("div", {class: "bench"},
      make("div", {}, which, missing, questions, form, output, take),
      panel));
  let all = []; // whether they have a model yet or not
  let runs = [];
  let run = null;
  let writing = null;
  let done = {}; // what was written, and from what

  function update(now) {
    const again = now.query.again === "1"; // a link to a text: what it does not name is as usual
    prompt.value = now.query.prompt ?? prompt.value;
    SETTINGS.forEach((one, number) => {
      const usual = again ? one : {...one, value: values[one.name]};
      controls[number].set(values[one.name] = address.value(now.query[one.name], usual));
    });
    if (!runs.length) return;
    const wanted = now.query.run;
    if (wanted && !runs.some((one) => one.name === wanted)) {
      absent(wanted);
      return;
    }
    const usual = runs.find((one) => one.kind === "language") ?? runs[0];
    choose(wanted ?? run?.name ?? usual.name);
    if (again && now.query.question && run.kind === "questions") {
      refill(questions, asking(run, signal, now.query.question));
    } else if (again && prompt.value && !writing) write();
  }

  /** The link names a run that cannot be opened: nothing is put in its place unasked. */
  function absent(name) {
    clear();
    run = null;
    go.disabled = true;
    questions.hidden = true;
    missing.textContent = all.some((one) => one.name === name)
      ? `The run ${name} has no checkpoint yet, so there is no model that could write.`
      : `There is no run ${name} here: it was removed, renamed, or is in another folder. `
        + "Choose another one.";
    list(name);
  }

  /** What another run wrote, answered or was about to write. */
  function clear() {
    writing?.abort();
    writing = null;
    begun.textContent = text.textContent = status.textContent = missing.textContent = "";
    output.classList.remove("busy");
    take.hidden = true;
    refill(questions);
    [go.disabled, stop.disabled] = [false, true];
    quiet();
  }

  /** The settings of the page that give this text again. */
  function wish({run: name, prompt: words, ...rest}) {
    const others = SETTINGS.filter((one) => rest[one.name] !== one.value)
      .map((one) => [one.name, rest[one.name]]);
    return {run: name, prompt: words, ...Object.fromEntries(others)};
  }

  function keep() {
    const changed = Object.fromEntries(
      SETTINGS
        .filter(({name, value}) => values[name] !== value)
        .map(({name}) => [name, values[name]]),
    );
    if (!signal.aborted) {
      address.keep({view: "generate", query: {run: run?.name, prompt: prompt.value, ...changed}});
    }
  }

  function choose(name) {
    const before = run?.name;
    run = runs.find((one) => one.name === name);
    if (before !== name) clear();
    list(name);
    questions.hidden = run.kind !== "questions";
    if (!questions.hidden && before !== name) refill(questions, asking(run, signal));
  }

  function list(name) {
    const pairs = runs.map((one) => [
      one.name,
      `${one.name}${one.kind === "questions" ? " (answers questions)" : ""}`,
    ]);
    if (!runs.some((one) => one.name === name)) pairs.unshift([name, `${name} (cannot be opened)`]);
    refill(which, labelled("Run", choice(pairs, name, (value) => {
      if (!runs.some((one) => one.name === value)) return absent(value);
      choose(value);
      return keep();
    })));
  }

  async function write() {
    keep();
    const mine = new AbortController();
    writing = mine;
    const leave = AbortSignal.any([signal, mine.signal]);
    done = {run: run.name, prompt: prompt.value, ...values};
    take.hidden = true;
    [go.disabled, stop.disabled] = [true, false];
    begun.textContent = prompt.value;
    text.textContent = "";
    output.classList.add("busy");
    status.textContent = "Writing …";
    const began = performance.now();
    let pieces = 0;
    let told = "";
    const well = await attempt(async () => {
      const body = {
        run: run.name,
        prompt: prompt.value,
        tokens: values.tokens,
        temperature: values.temperature,
        seed: values.seed,
      };
      if (values.top_k !== null) body.top_k = values.top_k;
      for await (const event of stream("/api/generate", body, leave)) {
        if (event.error) throw new Refused(event.error);
        if (event.text) {
          if (writing !== mine) return;
          text.append(event.text);
          pieces += 1;
          const speed = Math.round((1000 * pieces) / (performance.now() - began));
          status.textContent = `Writing … ${counted(pieces, "token")}, ${speed} per second`;
        }
        if (event.done) {
          told = `Done: ${formatted(Math.round(event.tokens_per_second))} tokens per second.`;
        }
      }
    });
    if (signal.aborted || writing !== mine) return; // another run was chosen meanwhile
    status.textContent = mine.signal.aborted ? "Stopped." : well ? told : "It ended early.";
    done.text = text.textContent;
    take.hidden = !done.text;
    output.classList.remove("busy");
    [go.disabled, stop.disabled] = [false, true];
    writing = null;
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (run && !writing) write();
  });
  stop.addEventListener("click", () => writing?.abort());
  prompt.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  attempt(async () => {
    all = await ask("/api/runs", signal);
    runs = all.filter((one) => one.writable);
    go.disabled = !runs.length;
    const {run: asked} = address.read().query;
    if (!runs.length && asked) missing.textContent = `There is no run ${asked} here.`;
    if (!runs.length) {
      refill(
        which,
        make("p", {class: "note"}, "No run has a checkpoint yet. Train one: attnlab train tiny"),
      );
      return;
    }
    update(address.read());
  });
  return update;
}

/** A question to a run that was trained on them, and how sure it is of its answer. */
function asking(run, signal, first = "") {
  const field = make(
    "input",
    {
      type: "text",
      maxlength: 500,
      autocomplete: "off",
      spellcheck: "false",
      placeholder: "Where was … born?",
    },
  );
  const answer = make("div", {"aria-live": "polite"});
  let found = null;
  const take = exportBar({
    numbers: () => ({
      columns: ["run", "question", "answer", "confidence"],
      rows: all(found).map((one) => [run.name, found.question, one.answer, one.confidence]),
    }),
    link: () => address.written({
      view: "generate",
      query: {run: run.name, question: found.question, again: true},
    }),
    name: () => "answers",
  });
  take.hidden = true;
  const all = ({answer: given, confidence, alternatives}) => [
    {answer: given, confidence},
    ...alternatives.filter((one) => one.answer !== given),
  ];
  const go = make("button", {type: "submit", class: "main"}, "Ask");
  const form = make(
    "form",
    {},
    labelled("Question", field, "A whole question, or a name to ask about."),
    make("div", {class: "row"}, go),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (!field.value.trim()) return;
    go.disabled = true;
    await attempt(async () => {
      const words = field.value.trim();
      found = await send(
        "/api/ask",
        {run: run.name, ...(words.endsWith("?") ? {question: words} : {name: words})},
        signal,
      );
      take.hidden = false;
      refill(answer, make("p", {class: "note"}, found.question),
        make(
          "p",
          {class: "answer"},
          make("strong", {}, found.answer || "(nothing)"),
          ` with a confidence of ${percent(found.confidence)}`,
        ),
        shares(all(found).map((one) => ({name: one.answer, share: one.confidence})), {
          caption: "Answers and their confidence",
        }));
    });
    go.disabled = false;
  });
  if (first) {
    field.value = first;
    queueMicrotask(() => form.requestSubmit());
  }
  return [
    make("h2", {}, "Ask"),
    make(
      "p",
      {class: "note"},
      "This run was trained to answer questions. A model answers about people it knows and about "
        + "nobody alike; its confidence need not tell which.",
    ),
    form,
    answer,
    take,
  ];
}
