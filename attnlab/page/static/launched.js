// What this page, or one before it, has started: how it goes, what it prints, and a way to stop it.

import {ask, attempt, send} from "./api.js";
import {make, refill} from "./make.js";
import {experimentState, groupOf, mark} from "./runlist.js";

const EVERY = 1000; // milliseconds between two looks at one that runs
const AT_REST = 5000;
const STOPPED = 128 + 15; // exit code after SIGTERM, which Stop sends

/** `look()`: the list of runs is to be read again; `watch(name)`: draw what something has made. */
export function launched(signal, {look, watch}) {
  const element = make("section", {class: "launched", "aria-label": "Started here"});
  let started = [];
  let all = []; // experiments
  let runs = [];
  let followed = null; // what was started in this visit, until other curves are chosen
  let timer = null;
  let drawn = "";

  async function read() {
    if (signal.aborted) return;
    await attempt(async () => {
      const before = started[0]?.state;
      ({started} = await ask("/api/launches", signal));
      if (started[0]?.state !== before) look();
      draw();
    });
    clearTimeout(timer);
    if (!signal.aborted) timer = setTimeout(read, busy() ? EVERY : AT_REST);
  }

  const active = (one) => one.state !== "ended";
  const busy = () => started.some(active);

  /** How it has ended, where this page was there to see it. */
  function outcome({state, code}) {
    if (state !== "ended" || code === null) return state;
    return {0: "finished", [STOPPED]: "stopped"}[code] ?? "failed";
  }

  function draw() {
    const said = JSON.stringify([started, all, runs.map((run) => [run.name, run.state])]);
    if (said === drawn) return;
    drawn = said;
    const open = element.querySelector("details")?.open ?? false;
    const focus = document.activeElement?.dataset?.launch;
    const [newest, ...earlier] = started;
    refill(element, newest ? card(newest) : null, earlier.length
      ? make("details", {open}, make("summary", {}, "Started before"), earlier.map(card))
      : null);
    for (const log of element.querySelectorAll(".log")) log.scrollTop = log.scrollHeight;
    if (focus) element.querySelector(`[data-launch="${CSS.escape(focus)}"]`)?.focus();
  }

  function card(one) {
    const about = all.find((each) => each.name === one.made);
    const its = runs.filter((run) => groupOf(run) === one.made);
    const stop = make("button", {
      type: "button",
      class: "quiet",
      disabled: one.state === "stopping",
      "data-launch": `stop ${one.id}`,
      on: {click: () => end(one)},
    }, one.state === "stopping" ? "Stopping …" : "Stop");
    const curves = make("button", {
      type: "button",
      class: "quiet",
      "data-launch": `curves ${one.id}`,
      on: {click: () => watch(one.made)},
    }, one.kind === "compare" ? "Show its curves" : "Show its curve");
    return make("article", {class: "panel launch-card", "data-id": one.id},
      make("div", {class: "row"},
        mark({state: outcome(one)}),
        make("code", {class: "command"}, one.command)),
      make("div", {class: "row"},
        active(one) ? stop : null,
        one.made ? curves : null,
        about ? experimentState(about, its) : null),
      one.log.length
        ? make("pre", {class: "wrap log", "aria-label": "What it prints"}, one.log.join("\n"))
        : make("p", {class: "note"}, !active(one)
          ? "It has printed nothing."
          : "Starting: the first line comes in some seconds."));
  }

  async function end(one) {
    await attempt(() => send(`/api/launches/${encodeURIComponent(one.id)}/stop`, {}, signal));
    await read();
  }

  function follow(id) {
    followed = id;
    read();
    look();
  }

  /** What the list of runs has just read. */
  function show(now) {
    ({runs, experiments: all} = now);
    const made = started.find((one) => one.id === followed)?.made;
    if (made) watch(made);
    draw();
  }

  read();
  return {element, follow, show, busy, leave: () => (followed = null)};
}
