// Audit: one of our own modules is examined against what is declared of it, or a certificate that
// somebody has is shown: checks, who moves whom, the smallest counter-example.

import * as address from "./address.js";
import {ask, attempt, say, send} from "./api.js";
import {exportBar} from "./export.js";
import {heatMap} from "./heat.js";
import {choice, labelled, make, refill, table} from "./make.js";
import {counted, formatted, spaced, verdict} from "./words.js";

export const title = "Audit";

const CONTRACT = [
  {name: "causal", kind: "bool"},
  {name: "window", kind: "int", low: 1, about: "keys a query attends to, including its own"},
  {name: "cache", kind: "bool"},
  {name: "padding", kind: "bool"},
  {name: "heads", kind: "int", low: 1},
  {name: "kv_heads", kind: "int", low: 1},
  {name: "scale", kind: "float"},
  {name: "positions", kind: "text", choices: ["none", "absolute", "relative", "rotary", "alibi"]},
  {name: "rope_layout", kind: "text", choices: ["half-split", "interleaved"]},
  {name: "rope_base", kind: "float"},
  {name: "rope_fraction", kind: "float"},
];
const ALLOWED = [88, 152, 190]; // the colour of what may move
const MOST = 900_000; // bytes of a certificate; the server takes no more than a MiB

export function open(place, wanted, signal) {
  const which = make("div");
  const about = make("p", {class: "note"});
  const fields = make("div", {class: "fields"});
  const go = make("button", {type: "submit", class: "main", disabled: true}, "Audit it");
  const status = make("p", {class: "note", role: "status"});
  const form = make("form", {}, which, about,
    make("h2", {}, "What it must do"), make(
      "p",
      {class: "note"},
      "What is left open is measured and reported.",
    ),
    fields, make("div", {class: "row"}, go, status));
  const file = make(
    "input",
    {type: "file", accept: ".json,application/json", "aria-label": "A certificate, a JSON file"},
  );
  const drop = make(
    "div",
    {class: "drop"},
    make("h2", {}, "Or a certificate"),
    make(
      "p",
      {class: "note"},
      "Drop one here or choose a file, as made by ",
      make("code", {}, "attnlab audit FILE:NAME --json"),
    ),
    file,
  );
  const result = make("div", {class: "result", "aria-live": "polite"});
  refill(
    place,
    make("h1", {}, "Audit"),
    make("div", {class: "bench"}, make("div", {class: "panel"}, form), drop),
    result,
  );
  let targets = [];
  let target = null;
  let declared = {};

  function update(now) {
    target = targets.find((one) => one.name === now.query.target) ?? targets[0];
    if (!target) return;
    go.disabled = false;
    const said = CONTRACT.map((one) => [one.name, address.value(now.query[one.name], one)])
      .filter(([, value]) => value !== undefined);
    declared = said.length || now.query.open ? Object.fromEntries(said) : {...target.declared};
    choose();
    if (now.query.again === "1") examine(); // a link to a result
  }

  function inWords() {
    const said = Object.entries(declared).map(([key, value]) => [key, `${value}`]);
    return {target: target.name, ...Object.fromEntries(said), open: !said.length};
  }

  function keep() {
    if (!signal.aborted) address.keep({view: "audit", query: inWords()});
  }

  function choose() {
    const names = targets.map((one) => [one.name, one.name]);
    refill(which, labelled("Module", choice(names, target.name, (name) => {
      target = targets.find((one) => one.name === name);
      declared = {...target.declared};
      keep();
      choose();
    })));
    about.textContent = target.about ?? "";
    refill(fields, CONTRACT.map((one) => labelled(spaced(one.name), field(one), one.about)));
  }

  function field(one) {
    const changed = (word) => {
      if (word === "") delete declared[one.name];
      else declared[one.name] = address.value(word, one);
      keep();
    };
    const words = one.kind === "bool" ? ["true", "false"] : one.choices;
    const now = declared[one.name] === undefined ? "" : `${declared[one.name]}`;
    if (words) {
      return choice(
        [["", "open"], ...words.map((word) => [word, {true: "yes", false: "no"}[word] ?? word])],
        now,
        changed,
      );
    }
    return make(
      "input",
      {
        type: "number",
        min: one.low,
        max: one.high,
        step: one.kind === "int" ? 1 : "any",
        value: now,
        placeholder: "open",
        on: {change: (event) => changed(event.target.value)},
      },
    );
  }

  async function examine() {
    keep();
    go.disabled = true;
    status.textContent = "Examining; a few seconds …";
    const link = address.written({view: "audit", query: {...inWords(), again: true}});
    await attempt(async () => show(
      await send("/api/audit", {target: target.name, declare: declared}, signal),
      () => link,
    ));
    go.disabled = false;
    status.textContent = "";
  }

  async function take(one) {
    if (!one) return;
    await attempt(async () => {
      if (one.size > MOST) {
        throw new Error(
          `${one.name} is larger than a certificate can be (${formatted(MOST)} bytes)`,
        );
      }
      let certificate;
      try {
        certificate = JSON.parse(await one.text());
      } catch {
        say(
          `${one.name} is not JSON; attnlab audit FILE:NAME --json > certificate.json makes one`,
        );
        return;
      }
      show(await send("/api/audit/certificate", {certificate}, signal));
    });
  }

  /** A certificate of a file has no link: the file is not here. */
  function show(certificate, link = null) {
    const {mark, kind} = verdict(certificate.verdict);
    const found = certificate.rows
      .map(({checks, detail}) => ({checks: checks.map((at) => certificate.checks[at]), detail}))
      .sort(({checks: [one]}, {checks: [other]}) => (
        (other.verdict === "fail") - (one.verdict === "fail")
      ));
    const band = make("div", {class: "verdict", "data-kind": kind}, make("div", {},
      make("p", {class: "label"}, certificate.target),
      make("p", {class: "word"}, `${mark} ${certificate.verdict}`),
      make("p", {class: "why"}, summary(certificate))));
    const rows = found.map(({checks, detail}) => {
      const [one] = checks;
      const said = verdict(one.verdict);
      const held = one.declared === null || one.declared === undefined
        || JSON.stringify(one.declared) === JSON.stringify(one.measured);
      return [
        [...new Set(checks.map(titled))].join(", "),
        make("span", {class: `mark ${said.kind}`}, said.mark, make("span", {}, ` ${one.verdict}`)),
        checks.length > 1 ? "–" : formatted(one.measured) + (held ? "" : `; declared ${formatted(one.declared)}`),
        detail,
      ];
    });
    refill(result, band,
      examples(certificate.examples ?? []),
      make(
        "section",
        {},
        make("h2", {}, "What was found"),
        table({
          columns: ["property", "verdict", "measured", "in words"],
          rows,
          long: [3],
          stacks: true,
        }),
        exportBar({link, numbers: () => tabled(certificate), name: () => certificate.target}),
      ),
      influence(certificate, link));
    band.scrollIntoView({block: "nearest"});
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (target) examine();
  });
  file.addEventListener("change", () => take(file.files[0]));
  drop.addEventListener("dragover", (event) => {
    event.preventDefault();
    drop.classList.add("over-it");
  });
  drop.addEventListener("dragleave", () => drop.classList.remove("over-it"));
  drop.addEventListener("drop", (event) => {
    event.preventDefault();
    drop.classList.remove("over-it");
    take(event.dataTransfer.files[0]);
  });
  attempt(async () => {
    const all = await ask("/api/audit/targets", signal);
    targets = all.targets;
    update(address.read());
  });
  return update;
}

/** The checks, for a file. */
function tabled({target, verdict: whole, checks}) {
  const columns = ["target", "verdict", "property", "finding", "measured", "declared", "in words"];
  const rows = checks.map((one) => [
    target,
    whole,
    titled(one),
    one.verdict,
    one.measured === undefined ? null : formatted(one.measured),
    one.declared === undefined || one.declared === null ? null : formatted(one.declared),
    one.detail,
  ]);
  return {columns, rows};
}

/** The verdict in words; which one it is, the server has decided. */
function summary({verdict: word, checks, reason, detail, unestablished}) {
  const open = unestablished.length
    ? ` Declared and not established: ${unestablished.map(spaced).join(", ")}.`
    : "";
  if (word === "incomplete") return detail || reason;
  const failed = checks.filter((one) => one.verdict === "fail");
  const passed = checks.filter((one) => one.verdict === "pass");
  const names = [...new Set(failed.map((one) => spaced(one.name)))];
  const named = names.join(", ");
  return failed.length
    ? `${counted(names.length, "property fails", "properties fail")}: ${named}.${open}`
    : `${counted(passed.length, "property holds", "properties hold")}, none fails.`;
}

/** The property, and of several failures which. */
function titled({name, aspect}) {
  return aspect ? `${spaced(name)} (${aspect})` : spaced(name);
}

function examples(list) {
  if (!list.length) return null;
  return make("section", {}, make("h2", {}, "The smallest counter-example"), list.map((one) => [
    make("h3", {}, titled(one)),
    make(
      "pre",
      {class: "wrap"},
      [
        one.sentence || one.reason,
        ...["sizes", "options"]
          .filter((key) => one[key] && Object.keys(one[key]).length)
          .map((key) => `${key}: ${formatted(one[key])}`),
      ].join("\n"),
    ),
  ]));
}

/** As measured, and beside it what the contract lets move. */
function influence({influence: matrix, allowed}, link) {
  if (!matrix?.length) return null;
  const said = (verb) => (i, j, value) => `output ${i}, input ${j}: ${verb(value)}`;
  const axes = {y: "output i", x: "input j"};
  const measured = heatMap({
    title: "Influence as measured",
    largest: 340,
    link,
    said: said((value) => `moves by ${formatted(value)}`),
    moved: (cell) => may?.point(cell),
  });
  measured.show({rows: matrix, log: true, ...axes});
  const may = allowed
    ? heatMap({
      title: "Influence as declared",
      largest: 340,
      link,
      said: said((value) => (value === null ? "must not move" : "may move")),
      moved: (cell) => measured.point(cell),
    })
    : null;
  may?.show({
    rows: allowed.map((row) => row.map((one) => (one ? 1 : null))),
    colour: ALLOWED,
    ...axes,
  });
  return make("section", {}, make("h2", {}, "Who moves whom"),
    make(
      "p",
      {class: "note"},
      "Every input was replaced in turn, and every output watched. Hatched: no, or not allowed.",
    ),
    make("div", {class: "maps"},
      make("section", {}, make("h3", {}, "Measured"), measured.element),
      may ? make("section", {}, make("h3", {}, "Declared"), may.element) : null));
}
