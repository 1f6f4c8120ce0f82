// Claims: each with its sentence, verdict and picture; sliders run it again, the knob breaks it.

import * as address from "./address.js";
import {ask, attempt, newest, quiet, send} from "./api.js";
import {block, canvasFor} from "./blocks.js";
import {control} from "./controls.js";
import {make, refill, table} from "./make.js";
import {formula} from "./maths.js";
import {counted, folded, formatted, formulas, ticked, took, verdict} from "./words.js";

export const title = "Claims";

export function open(place, wanted, signal) {
  const list = make("ul", {class: "list", id: "claims"});
  const count = make("p", {class: "note", "aria-live": "polite"});
  const filter = make(
    "input",
    {
      type: "search",
      placeholder: "Filter: window, e^β, Bernoulli …",
      "aria-label": "Filter the claims",
      on: {input: () => filtered()},
    },
  );
  const chosen = make("select", {"aria-label": "Course question", on: {change: () => filtered()}});
  const unsettled = make("p", {class: "note"});
  const detail = make("article", {class: "detail"});
  const tools = make("div", {class: "tools"}, filter, chosen, count, unsettled);
  refill(
    place,
    make("aside", {class: "side", "aria-label": "All claims"}, tools, list),
    detail,
  );
  let claims = [];
  let questions = [];
  let items = [];
  let close = () => {};

  function sift() {
    const words = folded(filter.value).split(/\s+/).filter(Boolean);
    const question = questions.find((one) => one.name === chosen.value);
    let seen = 0;
    items.forEach((item, number) => {
      const claim = claims[number];
      item.hidden = !words.every((word) => claim.words.includes(word))
        || (question !== undefined && !question.claims.includes(claim.name));
      seen += item.hidden ? 0 : 1;
    });
    count.textContent = seen === claims.length
      ? counted(seen, "claim")
      : `${seen} of ${counted(claims.length, "claim")}`;
    refill(unsettled, question?.unsettled ? formulas(`No claim: ${question.unsettled}`) : []);
  }

  const wanting = () => ({find: filter.value.trim(), question: chosen.value});

  function filtered() {
    sift();
    const now = address.read();
    const {find, question, ...rest} = now.query;
    address.keep({...now, query: {...rest, ...wanting()}});
  }

  /** Moves the list only: scrollIntoView would also move where the Tab key goes on from. */
  function reveal(item) {
    const [top, bottom] = [item.offsetTop, item.offsetTop + item.offsetHeight];
    if (top < list.scrollTop || bottom > list.scrollTop + list.clientHeight) {
      list.scrollTop = top - list.clientHeight / 3;
    }
  }

  function update(now) {
    if (!claims.length) return;
    if (now.query.find !== undefined) filter.value = now.query.find;
    if (now.query.question !== undefined) chosen.value = now.query.question;
    sift();
    const claim = now.item
      ? claims.find((one) => one.name === now.item)
      : claims[Math.max(0, items.findIndex((item) => !item.hidden))];
    place.classList.toggle("chosen", Boolean(now.item));
    items.forEach((item, number) => {
      const link = item.firstChild;
      if (claims[number] === claim) {
        link.setAttribute("aria-current", "true");
        if (now.item) reveal(item);
      } else link.removeAttribute("aria-current");
    });
    close();
    const leave = new AbortController();
    close = () => leave.abort();
    if (claim) bench(detail, claim, now.query, wanting, AbortSignal.any([signal, leave.signal]));
    else missing(detail, now.item);
  }

  attempt(async () => {
    claims = await ask("/api/claims", signal);
    questions = await ask("/api/questions", signal);
    refill(chosen, make("option", {value: ""}, "All course questions"), byCourse(questions));
    items = claims.map((claim) => {
      const {mark, kind} = verdict(claim.verdict);
      return make("li", {}, make("a", {href: address.written({view: "claims", item: claim.name})},
        make("span", {class: `mark ${kind}`, title: claim.verdict}, mark),
        make("span", {class: "what"},
          make("strong", {}, claim.title),
          make("span", {class: "visually-hidden"}, `: ${claim.verdict}. `),
          make("small", {}, formulas(claim.summary ?? claim.statement)))));
    });
    refill(list, items);
    update(address.read());
  });
  return update;
}

/** The questions of each course, to choose from. */
function byCourse(questions) {
  const courses = [...new Set(questions.map((one) => one.course))];
  return courses.map((course) => make("optgroup", {label: course},
    questions.filter((one) => one.course === course).map(
      ({name, asks}) => make("option", {value: name}, `${name}: ${asks}`),
    )));
}

/** The address names a claim that is not there. */
function missing(detail, name) {
  detail.removeAttribute("aria-busy");
  refill(detail,
    make("a", {class: "back", href: address.written({view: "claims"})}, "‹ All claims"),
    make("h1", {}, "There is no such claim"),
    make("p", {}, "No claim is named ", make("code", {}, name.slice(0, 80)),
      ". It may have another name now: choose one from the list, or filter by what it says."));
}

/** One claim on the bench. */
function bench(detail, claim, query, wanting, signal) {
  const changes = claim.knob.changes ?? {};
  const settings = Object.fromEntries(claim.settings.map(
    (one) => [one.name, claim.frozen ? one.value : address.value(query[one.name], one)],
  ));
  let knob = query.knob === "1";
  let stop = new AbortController(); // of a training
  let standard = null; // the recorded outcome with the default settings
  let pictures = 0; // that were wanted so far: one that comes late is not shown
  const band = make("div", {class: "verdict", "aria-live": "polite"});
  const word = make("p", {class: "word"});
  const why = make("p", {class: "why"});
  const turn = make("button", {type: "button", role: "switch", class: "switch"},
    make("span", {class: "thumb", "aria-hidden": "true"}),
    make("span", {}, "Turn the knob", make("small", {}, formulas(claim.knob.words))));
  turn.addEventListener("click", () => toggle());
  refill(band, make("div", {}, word, why), turn);
  const caption = make("figcaption");
  const picture = make("div");
  const draw = canvasFor(picture);
  const note = make("p", {class: "note"});
  const training = make("div");
  const found = make("div", {class: "found"});
  const last = (one) => one.name === "seed"; // the least telling
  const ordered = [...claim.settings].sort((one, other) => last(one) - last(other));
  const controls = ordered.map((one) => {
    const changed = (value) => {
      settings[one.name] = value;
      run();
    };
    return {name: one.name, ...control(one, settings[one.name], changed)};
  });
  const reset = make(
    "button",
    {type: "button", class: "quiet", on: {click: () => standing()}},
    "As it stands",
  );
  const panel = make(
    "div",
    {class: "panel"},
    make("h2", {}, claim.frozen ? "Recorded settings" : "Settings"),
    claim.frozen ? make("p", {class: "note"}, formulas(FROZEN)) : null,
    controls.map((one) => one.element),
    claim.frozen ? null : reset,
  );
  refill(detail,
    make("a", {class: "back", href: address.written({view: "claims"})}, "‹ All claims"),
    make("p", {class: "label"}, claim.title),
    make("h1", {class: "statement"}, formulas(claim.statement)),
    formula(claim.typeset),
    claim.questions.length ? settles(claim.questions) : null,
    band,
    make("div", {class: "bench"}, make("figure", {}, caption, picture, note, training), panel),
    found);

  const request = newest(
    (body) => send(`/api/claims/${claim.name}`, body, signal),
    (outcome, body) => {
      // other settings of a claim that trains get no answer, which would replace a late one
      if (!claim.trained || !differs(body, {settings: changed(), knob})) show(outcome);
    },
  );

  function run() {
    keep();
    hold();
    stop.abort();
    if (claim.trained && !claim.frozen) untrained();
    if (claim.trained && !recorded()) return;
    detail.setAttribute("aria-busy", "true");
    request({settings: changed(), knob});
  }

  /** Only the default settings are recorded of a claim that trains. */
  function recorded() {
    return claim.recorded && !Object.keys(changed()).length;
  }

  function changed() {
    return Object.fromEntries(
      claim.settings
        .filter((one) => differs(settings[one.name], one.value))
        .map((one) => [one.name, settings[one.name]]),
    );
  }

  function keep() {
    if (!signal.aborted) {
      const query = {...inWords(changed()), knob, ...wanting()};
      address.keep({view: "claims", item: claim.name, query});
    }
  }

  /** What the knob turns cannot be moved meanwhile. */
  function hold() {
    turn.setAttribute("aria-checked", `${knob}`);
    for (const one of controls) {
      const held = knob && one.name in changes;
      one.hold(held || claim.frozen);
      one.element.classList.toggle("held", held);
      one.set(held ? changes[one.name] : settings[one.name]);
    }
    reset.disabled = !knob && !Object.keys(changed()).length;
  }

  function toggle() {
    knob = !knob;
    run();
  }

  function standing() {
    for (const one of claim.settings) settings[one.name] = one.value;
    knob = false;
    run();
  }

  function say(said, because) {
    const {mark, kind} = verdict(said);
    band.dataset.kind = kind;
    refill(word, make("span", {"aria-hidden": "true"}, mark), ` ${said}`);
    why.textContent = because;
  }

  function show(outcome) {
    if (signal.aborted) return;
    detail.removeAttribute("aria-busy");
    quiet();
    const record = outcome.verdict === outcome.expected
      ? ""
      : `On record it ${outcome.expected === "refuted" ? "is refuted" : outcome.expected}. `;
    const cases = outcome.trials === null ? "" : counted(outcome.trials, "case");
    const condition = outcome.verdict === "holds with a condition"
      ? `Where ${outcome.condition}. `
      : "";
    const chance = outcome.error_rates ? ` ${outcome.error_rates}` : "";
    const facts = [outcome.evidence, cases, took(outcome.seconds)].filter(Boolean).join(", ");
    const frozen = outcome.recorded
      ? claim.frozen
        ? "Recorded, not run now. "
        : "Recorded, not run now: it trains models, so a slider cannot run it again. "
      : "";
    say(outcome.verdict, `${frozen}${record}${condition}Evidence: ${facts}.${chance}`);
    refill(training, outcome.recorded && !claim.frozen ? trainer() : null);
    const fewer = outcome.note ? `${outcome.note[0].toUpperCase()}${outcome.note.slice(1)}.` : "";
    if (outcome.picture) illustrate(outcome.picture, fewer);
    else standIn();
    const opened = new Set(
      [...found.querySelectorAll("details[open]")].map((one) => one.dataset.name),
    );
    refill(found, measures("What was measured", outcome.measures),
      outcome.outside?.length
        ? measures("Beyond the condition it must fail", outcome.outside)
        : null,
      // empty unless the claim is as it stands: that is what the documents answer
      outcome.answers?.length ? answers(outcome.answers) : null,
      outcome.remark
        ? make("section", {}, make("h2", {}, "What the runs taught"), paragraphs(outcome.remark))
        : null,
      outcome.derivation
        ? unfolding("Why: the derivation", paragraphs(outcome.derivation), opened)
        : null,
      outcome.details?.length
        ? unfolding("More from this run", outcome.details.map(block), opened)
        : null);
  }

  if (!claim.trained) say(claim.verdict, claim.frozen ? "On record." : "On record; running it …");
  run();

  /** What was trained with other settings says nothing of these. */
  function untrained() {
    const takes = "This claim trains models, which takes minutes.";
    if (knob || Object.keys(changed()).length) say("not run", `With these settings. ${takes}`);
    else say(claim.verdict, `On record. ${takes}`);
    detail.removeAttribute("aria-busy");
    refill(found);
    unpictured("Its picture comes from trained models.");
    refill(training, trainer());
  }

  function illustrate({title = "", note: said, ...rest}, more) {
    pictures += 1;
    refill(caption, formulas(title));
    refill(note, formulas(`${said ?? ""} ${more}`.trim()));
    draw({title, ...rest});
  }

  function unpictured(reason) {
    pictures += 1;
    refill(caption);
    note.textContent = "";
    refill(picture, hollow(reason));
  }

  /** Of a run with the knob no picture is recorded: the other one is shown, and says so. */
  async function standIn() {
    unpictured("No picture is recorded with the knob turned.");
    const mine = pictures;
    await attempt(async () => {
      const body = {settings: {}, knob: false};
      standard ??= await send(`/api/claims/${claim.name}`, body, signal);
      if (mine !== pictures || !standard.recorded || !standard.picture) return;
      illustrate(standard.picture, "Recorded without the knob; with it no picture is recorded.");
    });
  }

  function trainer() {
    const begin = make("button", {type: "button", class: "main"}, "Train it now");
    const status = make("p", {class: "note", "aria-live": "polite"});
    begin.addEventListener("click", async () => {
      stop = new AbortController();
      begin.disabled = true;
      status.textContent = "Training; this takes minutes. Leave this page open.";
      const body = {settings: changed(), knob, train: true};
      const waits = AbortSignal.any([signal, stop.signal]);
      await attempt(async () => show(await send(`/api/claims/${claim.name}`, body, waits)));
      begin.disabled = false;
      status.textContent = "";
    });
    return [begin, status];
  }
}

const FROZEN = "Nothing runs here: these are the settings of the recorded run. To change them, install "
  + "attnlab and start `attnlab page`.";

/** The questions that a claim settles; each leads to all claims that settle it. */
function settles(questions) {
  return make("p", {class: "note"}, "Settles ", questions.map(({name, asks}, place) => [
    place ? " · " : null,
    make("a", {href: address.written({view: "claims", query: {question: name}})}, name),
    `: ${asks}`,
  ]));
}

const hollow = (words) => make("div", {class: "hollow"}, make("p", {}, words));

/** For the address, where "nothing" and "no" have to be said. */
function inWords(settings) {
  return Object.fromEntries(Object.entries(settings).map(
    ([name, value]) => [name, value === null ? "none" : `${value}`],
  ));
}

const differs = (one, other) => JSON.stringify(one) !== JSON.stringify(other);

const MET = {
  met: {mark: "✓", kind: "good", said: "met"},
  missed: {mark: "✗", kind: "bad", said: "not met"},
  undecided: {mark: "?", kind: "partly", said: "undecided"},
};

function measures(heading, list) {
  const rows = list.map(({what, value, low, high, rule, bound, answer}) => {
    const {mark, kind, said} = MET[answer];
    const ends = low === null || high === null ? "" : ` (${formatted(low)} to ${formatted(high)})`;
    return [
      formulas(what),
      `${formatted(value)}${ends}`,
      `${rule} ${ticked(Number(bound.toPrecision(4)))}`,
      make("span", {class: `mark ${kind}`}, mark, make("span", {}, ` ${said}`)),
    ];
  });
  return make(
    "section",
    {},
    make("h2", {}, heading),
    table({columns: ["measure", "value", "must be", ""], rows, numeric: [1, 2], stacks: true}),
  );
}

function answers(list) {
  const rows = list.map(({document, part, line, quote, conclusion, reason, marks}) => [
    `${document} ${part}, line ${line}`,
    `“${quote}”`,
    judged("concludes", marks.conclusion, conclusion),
    marks.reason ? judged("because", marks.reason, reason) : "no reason given",
  ]);
  const columns = ["document", "its words", "concludes", "because"];
  return make(
    "section",
    {},
    make("h2", {}, "What the documents said"),
    table({columns, rows, long: [1, 2, 3], stacks: true}),
  );
}

const MARKS = {
  right: {mark: "✓", kind: "good"},
  incomplete: {mark: "◐", kind: "partly"},
  wrong: {mark: "✗", kind: "bad"},
};

function judged(column, word, text) {
  const {mark, kind} = MARKS[word];
  // on a narrow screen the head of the table is gone
  return make("span", {}, make("span", {class: "narrow"}, `${column} `),
    make("span", {class: `mark ${kind}`}, `${mark} ${word}`), ": ", formulas(text));
}

function paragraphs(text) {
  return text.split(/\n\s*\n/).map((one) => make(
    "p",
    {},
    formulas(one.replace(/\s+/g, " ").trim()),
  ));
}

function unfolding(words, content, opened) {
  return make(
    "details",
    {"data-name": words, open: opened.has(words)},
    make("summary", {}, words),
    content,
  );
}
