// Runs: what was trained and what trains now; curves of the chosen ones over each other, what
// their settings differ in, what they wrote; reports to open; trainings and comparisons to start.

import * as address from "./address.js";
import {ask, attempt, encoded} from "./api.js";
import {curves} from "./curves.js";
import {launchForm} from "./launch.js";
import {launched} from "./launched.js";
import {make, refill, table} from "./make.js";
import {colour} from "./marks.js";
import {groupOf, joined, runList, split} from "./runlist.js";
import {formatted, plain} from "./words.js";

export const title = "Runs";

const EVERY = 1000; // milliseconds between two looks at a run that trains
const AT_REST = 5000; // and when none does
const MOST = 8; // curves that can be told apart

export function open(place, wanted, signal) {
  const list = runList({toggle, chooseAll: chooseOnly, changed: () => keep()});
  const note = make("p", {class: "note", "aria-live": "polite"});
  const lost = make("div", {role: "status"});
  const children = launched(signal, {look: lookSoon, watch});
  const form = launchForm(signal, (id) => children.follow(id));
  const lines = curves(signal, (domain) => keep({range: domain}));
  const loss = make("section", {}, make("h2", {}, "Loss"), lines.element);
  const differences = make("section", {"aria-label": "Settings that differ"});
  const samples = make("section", {"aria-label": "Samples"});
  const reports = make("section", {"aria-label": "Reports"});
  refill(place,
    make("section", {}, make("h1", {}, "Runs"), form.element, children.element),
    make("section", {"aria-label": "List of runs"}, note, lost, list.element),
    loss, differences, samples, reports);
  let runs = [];
  let experiments = [];
  let chosen = [];
  let first = true;
  let timer = null;
  const about = new Map(); // what a run is, by its name; it does not change

  function update(now) {
    chosen = split(now.query.select).slice(0, MOST);
    list.read(now.query);
    lines.zoom(now.query.range?.split("-").map(Number) ?? null);
    first = !chosen.length && first;
    refill(lost);
    if (runs.length) choose();
  }

  function keep(more = {}) {
    const before = address.read().query;
    const range = more.range === undefined
      ? before.range
      : more.range?.map((end) => Math.round(end)).join("-");
    if (signal.aborted) return;
    address.keep({view: "runs", query: {select: joined(chosen), range, ...list.query()}});
  }

  function choose() {
    const there = chosen.filter((name) => runs.some((run) => run.name === name));
    const missing = chosen.filter((name) => !there.includes(name));
    if (missing.length) {
      refill(lost, missing.map((name) => make("p", {class: "partly"}, gone(name))));
    }
    chosen = there;
    if ((first || missing.length) && !chosen.length) {
      const best = runs.find((run) => run.state === "running") ?? runs.find((run) => run.step > 0);
      if (best) chosen = [best.name];
    }
    first = false;
    draw();
  }

  function draw() {
    note.textContent = runs.length
      ? "Choose several to lay their curves over each other."
      : "No runs here yet. Start one above, or in a terminal: attnlab train tiny";
    for (const part of [list.element, loss, differences]) part.hidden = !runs.length;
    list.show({runs, chosen, experiments});
    lines.show(chosen.map((name) => runs.find((run) => run.name === name)));
    compare();
  }

  function toggle(name, on) {
    children.leave();
    chosen = on ? [...chosen, name].slice(-MOST) : chosen.filter((one) => one !== name);
    refill(lost);
    keep();
    draw();
  }

  function chooseOnly(names) {
    children.leave();
    chooseAll(names);
  }

  function chooseAll(names) {
    chosen = names.slice(0, MOST);
    refill(lost, names.length > MOST
      ? make("p", {class: "note"}, `The first ${MOST} of ${names.length} are drawn.`)
      : null);
    keep();
    draw();
  }

  /** The run, or the runs of the comparison, that something started here has made so far. */
  function watch(name) {
    const its = runs
      .filter((run) => run.name === name || groupOf(run) === name)
      .map((run) => run.name);
    const before = chosen.filter((one) => its.includes(one)); // keeps its colour
    const now = [...before, ...its.filter((one) => !before.includes(one))];
    if (its.length && joined(now.slice(0, MOST)) !== joined(chosen)) chooseAll(now);
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
      const [now, all] = await Promise.all(
        [ask("/api/runs", signal), ask("/api/experiments", signal)],
      );
      const moved = JSON.stringify([now, all]) !== JSON.stringify([runs, experiments]);
      const begin = first;
      const ended = experiments.filter((one) => one.report).length
        !== all.filter((one) => one.report).length;
      [runs, experiments] = [now, all];
      if (moved || begin) choose();
      children.show({runs, experiments});
      if (ended) readReports();
    });
    const busy = [...runs, ...experiments].some((one) => one.state === "running")
      || children.busy();
    clearTimeout(timer);
    if (!signal.aborted) timer = setTimeout(look, busy ? EVERY : AT_REST);
  }

  function lookSoon() {
    clearTimeout(timer);
    timer = setTimeout(look, 0);
  }

  const readReports = () => attempt(async () => {
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
  readReports();
  update(wanted);
  look();
  return update;
}

function gone(name) {
  return `There is no run “${name}” here: it was renamed, moved or removed, or it is in another `
    + "folder (attnlab page --runs FOLDER).";
}

/** A setting as the command line takes it. */
function spelled(value) {
  return typeof value === "number" ? plain(value) : formatted(value);
}
