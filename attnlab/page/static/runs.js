// Runs: what was trained and what trains now; curves of the chosen ones over each other, what
// their settings differ in, what they wrote; reports to open.

import * as address from "./address.js";
import {ask, attempt, encoded} from "./api.js";
import {curves} from "./curves.js";
import {make, refill, table} from "./make.js";
import {colour, swatch} from "./marks.js";
import {formatted, plain, spaced} from "./words.js";

export const title = "Runs";

const EVERY = 1000; // milliseconds between two looks at a run that trains
const AT_REST = 5000; // and when none does
const MOST = 8; // curves that can be told apart

export function open(place, wanted, signal) {
  const list = make("div", {class: "runs-list"});
  const note = make("p", {class: "note", "aria-live": "polite"});
  const lines = curves(signal, (domain) => keep({range: domain}));
  const differences = make("section", {"aria-label": "Settings that differ"});
  const samples = make("section", {"aria-label": "Samples"});
  const reports = make("section", {"aria-label": "Reports"});
  refill(place,
    make("section", {}, make("h1", {}, "Runs"), note, list),
    make("section", {}, make("h2", {}, "Loss"), lines.element), differences, samples, reports);
  let runs = [];
  let chosen = [];
  let first = true;
  const about = new Map(); // what a run is, by its name; it does not change

  function update(now) {
    chosen = (now.query.select ?? "").split(",").filter(Boolean).slice(0, MOST);
    lines.zoom(now.query.range?.split("-").map(Number) ?? null);
    if (runs.length) choose();
  }

  function keep(more = {}) {
    const before = address.read().query;
    const range = more.range === undefined
      ? before.range
      : more.range?.map((end) => Math.round(end)).join("-");
    if (!signal.aborted) address.keep({view: "runs", query: {select: chosen.join(","), range}});
  }

  function choose() {
    chosen = chosen.filter((name) => runs.some((run) => run.name === name));
    if (first && !chosen.length) {
      const best = runs.find((run) => run.state === "running") ?? runs.find((run) => run.step > 0);
      if (best) chosen = [best.name];
    }
    first = false;
    drawList();
    lines.show(chosen.map((name) => runs.find((run) => run.name === name)));
    compare();
  }

  function toggle(name, on) {
    chosen = on ? [...chosen, name].slice(-MOST) : chosen.filter((one) => one !== name);
    keep();
    choose();
  }

  function drawList() {
    const focus = document.activeElement?.dataset?.run;
    note.textContent = runs.length
      ? "Choose several to lay their curves over each other."
      : "No runs here yet. Train one: attnlab train tiny";
    const rows = runs.map((run) => {
      const number = chosen.indexOf(run.name);
      const box = make(
        "input",
        {
          type: "checkbox",
          checked: number >= 0,
          "data-run": run.name,
          on: {change: (event) => toggle(run.name, event.target.checked)},
        },
      );
      const key = number >= 0 ? swatch("lines", number, false) : null;
      return [
        make("label", {class: "tick"}, box, make("span", {class: "run-name"}, run.name), key),
        state(run),
        progress(run),
        ...[run.loss, run.best_loss, run.parameters].map(formatted),
      ];
    });
    refill(
      list,
      runs.length
        ? table({
          columns: ["run", "state", "steps", "loss", "best", "parameters"],
          rows,
          numeric: [3, 4, 5],
          stacks: true,
        })
        : null,
    );
    if (focus) list.querySelector(`[data-run="${CSS.escape(focus)}"]`)?.focus();
  }

  async function compare() {
    const names = [...chosen];
    const read = await attempt(async () => {
      for (const name of names) {
        const old = about.get(name);
        const run = runs.find((one) => one.name === name);
        if (!old || old.step !== run?.step) {
          about.set(name, {step: run?.step, ...await ask(`/api/runs/${encoded(name)}`, signal)});
        }
      }
    });
    if (!read || names.join() !== chosen.join()) return;
    const told = names.map((name) => ({name, ...about.get(name)}));
    refill(
      differences,
      make("h2", {}, names.length > 1 ? "What differs" : "Settings"),
      told.flatMap((one) => (one.notes ?? []).map((note) => make(
        "p",
        {class: "partly"},
        told.length > 1 ? `${one.name}: ${note}` : note,
      ))),
      settings(told),
    );
    refill(samples, written(told));
  }

  function settings(told) {
    if (!told.length) return make("p", {class: "note"}, "Choose a run to see its settings.");
    const keys = [...new Set(told.flatMap((one) => Object.keys(one.flat ?? {})))];
    const rows = keys
      .map((key) => [key, ...told.map((one) => spelled(one.flat?.[key]))])
      .filter(([, ...values]) => told.length === 1 || new Set(values).size > 1);
    const heads = told.map((one, number) => {
      const dot = make("span", {class: "dot", "aria-hidden": "true"});
      dot.style.background = colour(number);
      return make("span", {}, dot, one.name);
    });
    if (!rows.length) return make("p", {class: "note"}, "Nothing: these runs have equal settings.");
    const body = table({
      columns: ["setting", ...(told.length > 1 ? heads : ["value"])],
      rows,
      caption: "",
    });
    return told.length > 1
      ? body
      : make("details", {}, make("summary", {}, `${rows.length} settings`), body);
  }

  function written(told) {
    const some = told.filter((one) => one.samples?.length);
    if (!some.length) return [];
    return [make("h2", {}, "Samples"), some.map((one) => [
      make(
        "h3",
        {},
        some.length > 1 || told.length > 1
          ? `${one.name}, step ${formatted(one.samples.at(-1).step)}`
          : `Step ${formatted(one.samples.at(-1).step)}`,
      ),
      make(
        "pre",
        {class: "wrap"},
        make("span", {class: "prompt"}, one.samples.at(-1).prompt ?? ""),
        one.samples.at(-1).text,
      ),
    ])];
  }

  async function look() {
    if (signal.aborted) return;
    await attempt(async () => {
      const now = await ask("/api/runs", signal);
      const moved = JSON.stringify(now) !== JSON.stringify(runs);
      const begin = first;
      runs = now;
      if (moved || begin) choose();
    });
    const busy = runs.some((run) => run.state === "running");
    if (!signal.aborted) setTimeout(look, busy ? EVERY : AT_REST);
  }

  attempt(async () => {
    const all = await ask("/api/reports", signal);
    if (!all.length) return;
    const cards = all.map((one) => make("li", {},
      make("a", {href: `/report/${encodeURIComponent(one.id)}`, target: "_blank", rel: "noopener"},
        make("span", {class: "label"}, one.kind === "study" ? "study" : "comparison"),
        make("strong", {}, one.title),
        make("span", {class: "note"}, one.question ?? ""),
        make("span", {}, one.answer ?? ""),
        make("span", {class: "visually-hidden"}, " (opens in a new tab)"))));
    refill(reports, make("h2", {}, "Reports"), make("ul", {class: "cards"}, cards));
  });
  update(wanted);
  look();
  return update;
}

/** A setting as the command line takes it. */
function spelled(value) {
  return typeof value === "number" ? plain(value) : formatted(value);
}

function state(run) {
  const marks = {
    running: ["●", "busy"],
    finished: ["✓", "good"],
    stopped: ["◐", "partly"],
    unreadable: ["✗", "bad"],
  };
  const [mark, kind] = marks[run.state] ?? ["?", "none"];
  return make("span", {class: `mark ${kind}`}, mark, make("span", {}, ` ${spaced(run.state)}`));
}

function progress(run) {
  if (!run.steps) return formatted(run.step);
  return make("span", {class: "progress"}, run.state === "finished" ? null
    : make(
      "progress",
      {
        max: run.steps,
        value: Math.min(run.step ?? 0, run.steps),
        "aria-label": `steps of ${run.name}`,
      },
    ),
    make("span", {}, `${formatted(run.step ?? 0)} of ${formatted(run.steps)}`));
}
