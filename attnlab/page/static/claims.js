// Claims: each with its sentence, verdict and picture; sliders run it again, the knob breaks it.

import * as address from "./address.js";
import {ask, attempt, newest, quiet, send} from "./api.js";
import {block, canvasFor} from "./blocks.js";
import {control} from "./controls.js";
import {make, refill, table} from "./make.js";
import {counted, formatted, formulas, spaced, ticked, took, verdict} from "./words.js";

export const title = "Claims";

export function open(place, wanted, signal) {
  const list = make("ul", {class: "list", id: "claims"});
  const count = make("p", {class: "note", "aria-live": "polite"});
  const filter = make(
    "input",
    {
      type: "search",
      placeholder: "Filter: window, A4 1(c) …",
      "aria-label": "Filter the claims",
      on: {input: () => sift()},
    },
  );
  const detail = make("article", {class: "detail"});
  const index = make("details", {class: "index"}, make("summary", {}, "By course question"));
  refill(
    place,
    make("aside", {class: "side", "aria-label": "All claims"}, filter, count, index, list),
    detail,
  );
  let claims = [];
  let items = [];
  let close = () => {};

  function sift() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let seen = 0;
    items.forEach((item, number) => {
      const {name, statement, verdict: said, questions} = claims[number];
      const spoken = [name, name.replaceAll("-", " "), statement, said, ...questions];
      const text = spoken.join(" ").toLowerCase();
      item.hidden = !words.every((word) => text.includes(word));
      seen += item.hidden ? 0 : 1;
    });
    count.textContent = seen === claims.length
      ? counted(seen, "claim")
      : `${seen} of ${counted(claims.length, "claim")}`;
  }

  /** Moves the list only: scrollIntoView would also move where the Tab key goes on from. */
  function reveal(item) {
    const [top, bottom] = [item.offsetTop, item.offsetTop + item.offsetHeight];
    if (top < list.scrollTop || bottom > list.scrollTop + list.clientHeight) {
      list.scrollTop = top - list.clientHeight / 3;
    }
  }

  function update(now) {
    const claim = claims.find((one) => one.name === now.item) ?? claims[0];
    if (!claim) return;
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
    bench(detail, claim, now.query, AbortSignal.any([signal, leave.signal]));
  }

  attempt(async () => {
    claims = await ask("/api/claims", signal);
    items = claims.map((claim) => {
      const {mark, kind} = verdict(claim.verdict);
      return make("li", {}, make("a", {href: address.written({view: "claims", item: claim.name})},
        make("span", {class: `mark ${kind}`, title: claim.verdict}, mark),
        make("span", {class: "what"},
          make("strong", {}, claim.name.replaceAll("-", " ")),
          make("span", {class: "visually-hidden"}, `: ${claim.verdict}. `),
          make("small", {}, formulas(claim.summary ?? claim.statement)))));
    });
    refill(list, items);
    sift();
    update(address.read());
    index.append(questions(await ask("/api/questions", signal)));
  });
  return update;
}

/** The questions of the courses, each with the claims that settle it. */
function questions(list) {
  const row = ({name, asks, claims, unsettled}) => make("li", {},
    make("strong", {}, name), ` ${asks} `,
    claims.map((one) => [
      make("a", {href: address.written({view: "claims", item: one})}, one.replaceAll("-", " ")),
      " ",
    ]),
    unsettled ? make("small", {}, `No claim: ${unsettled}`) : null);
  return make("ul", {class: "questions"}, list.map(row));
}

/** One claim on the bench. */
function bench(detail, claim, query, signal) {
  const changes = claim.knob.changes ?? {};
  const settings = Object.fromEntries(claim.settings.map(
    (one) => [one.name, address.value(query[one.name], one)],
  ));
  let knob = query.knob === "1";
  let stop = new AbortController(); // of a training
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
    make("h2", {}, "Settings"),
    controls.map((one) => one.element),
    reset,
  );
  refill(detail,
    make("a", {class: "back", href: address.written({view: "claims"})}, "‹ All claims"),
    make("p", {class: "label"}, claim.name.replaceAll("-", " ")),
    make("h1", {class: "statement"}, formulas(claim.statement)),
    make("pre", {class: "formula wrap"}, formulas(claim.formula)),
    claim.questions.length
      ? make("p", {class: "note"}, `Settles ${claim.questions.join(" · ")}`)
      : null,
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
    if (claim.trained) untrained();
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
      address.keep({view: "claims", item: claim.name, query: {...inWords(changed()), knob}});
    }
  }

  /** What the knob turns cannot be moved meanwhile. */
  function hold() {
    turn.setAttribute("aria-checked", `${knob}`);
    for (const one of controls) {
      const held = knob && one.name in changes;
      one.hold(held);
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
      ? "Recorded, not run now: it trains models, so a slider cannot run it again. "
      : "";
    say(outcome.verdict, `${frozen}${record}${condition}Evidence: ${facts}.${chance}`);
    refill(training, outcome.recorded ? trainer() : null);
    const {title = "", note: said} = outcome.picture ?? {};
    refill(caption, formulas(title));
    const fewer = outcome.note ? `${outcome.note[0].toUpperCase()}${outcome.note.slice(1)}.` : "";
    note.textContent = `${said ?? ""} ${fewer}`.trim();
    if (outcome.picture) draw(outcome.picture);
    else refill(picture, hollow("No picture is recorded with the knob turned."));
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
        ? folded("Why: the derivation", paragraphs(outcome.derivation), opened)
        : null,
      outcome.details?.length
        ? folded("More from this run", outcome.details.map(block), opened)
        : null);
  }

  if (!claim.trained) say(claim.verdict, "On record; running it …");
  run();

  /** What was trained with other settings says nothing of these. */
  function untrained() {
    const takes = "This claim trains models, which takes minutes.";
    if (knob || Object.keys(changed()).length) say("not run", `With these settings. ${takes}`);
    else say(claim.verdict, `On record. ${takes}`);
    detail.removeAttribute("aria-busy");
    refill(caption);
    note.textContent = "";
    refill(found);
    refill(picture, hollow("Its picture comes from trained models."));
    refill(training, trainer());
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

function folded(words, content, opened) {
  return make(
    "details",
    {"data-name": words, open: opened.has(words)},
    make("summary", {}, words),
    content,
  );
}
