// Loss curves of several runs: the mean of each bucket of steps with its least and largest, and
// the validation loss as points. The server thins; a closer look is asked for when it is wanted.

import * as address from "./address.js";
import {ask, attempt, encoded} from "./api.js";
import {make, tick} from "./make.js";
import {plotter} from "./plot.js";
import {formatted} from "./words.js";

const BUCKETS = 1200; // at most as many as a wide screen has pixels for
const MOST = 4000; // that the server gives

export function curves(signal, zoomed) {
  const whole = make(
    "button",
    {type: "button", class: "quiet", on: {click: () => look(null)}},
    "Whole run",
  );
  const speed = make("span", {class: "note"});
  const told = [["log", "log scale", false], ["band", "least and largest", true]];
  const shown = Object.fromEntries(told.map(([key, , on]) => [key, on]));
  const boxes = told.map(([key, words, on]) => tick(words, on, (now) => {
    shown[key] = now;
    draw();
  }));
  // the address does not name a run that was chosen for a beginning
  const link = () => address.written({
    view: "runs",
    query: {...address.read().query, select: runs.map((run) => run.name).join(",")},
  });
  const plot = plotter({zoomed: (domain) => look(domain), link});
  const left = make(
    "button",
    {type: "button", class: "quiet", "aria-label": "Earlier steps", on: {click: () => shift(-0.5)}},
    "←",
  );
  const right = make(
    "button",
    {type: "button", class: "quiet", "aria-label": "Later steps", on: {click: () => shift(0.5)}},
    "→",
  );
  const closer = make(
    "button",
    {
      type: "button",
      class: "quiet",
      "aria-label": "Look closer at the last steps",
      on: {click: () => closeUp()},
    },
    "+",
  );
  const element = make(
    "div",
    {class: "curves"},
    plot.element,
    make(
      "div",
      {class: "row"},
      boxes,
      make("span", {class: "group"}, left, right, closer, whole),
      speed,
    ),
  );
  let runs = [];
  let domain = null;
  const kept = new Map(); // name → what was read

  function look(wanted) {
    zoom(wanted);
    zoomed(domain);
  }

  function zoom(wanted) {
    domain = wanted && wanted.length === 2 && wanted.every(Number.isFinite) && wanted[1] > wanted[0]
      ? wanted
      : null;
    read();
  }

  function last() {
    return Math.max(1, ...runs.map((run) => kept.get(run.name)?.whole.last ?? run.step ?? 1));
  }

  function shift(share) {
    const [from, to] = domain ?? [0, last()];
    const by = Math.max(-from, Math.min(last() - to, share * (to - from)));
    look([from + by, to + by]);
  }

  function closeUp() {
    const [from, to] = domain ?? [0, last()];
    look([from + (to - from) / 2, to]);
  }

  function show(now) {
    runs = now;
    read();
  }

  async function read() {
    await attempt(() => Promise.all(runs.map(async (run) => {
      const old = kept.get(run.name);
      const path = `/api/runs/${encoded(run.name)}/curve`;
      if (!old || old.step !== run.step || old.state !== run.state) {
        const all = await ask(`${path}?points=${BUCKETS}`, signal);
        kept.set(run.name, {step: run.step, state: run.state, whole: all, part: null, from: null});
      }
      const one = kept.get(run.name);
      // buckets of the whole run are too coarse for a small part of it
      const coarse = domain && one.whole.last > BUCKETS
        && domain[1] - domain[0] < one.whole.last / 2;
      const key = coarse ? domain.join() : null;
      if (coarse && one.from !== key) {
        const from = Math.max(0, Math.floor(domain[0]) - 1);
        const share = (one.whole.last - from) / (domain[1] - domain[0]);
        const points = Math.min(MOST, Math.ceil(share * BUCKETS));
        one.part = await ask(`${path}?after=${from}&points=${points}`, signal);
      }
      if (!coarse) one.part = null;
      one.from = key;
    })));
    draw();
  }

  function draw() {
    if (signal.aborted) return;
    const series = runs.flatMap((run, number) => {
      const one = kept.get(run.name);
      if (!one) return [];
      const {steps, loss, low, high} = one.part ?? one.whole;
      const bucketed = shown.band && steps.length && low;
      const evals = one.whole.eval ?? [];
      return [
        {
          name: run.name,
          x: steps,
          y: loss,
          low: bucketed ? low : null,
          high: bucketed ? high : null,
          colour: number,
        },
        evals.length
          ? {
            name: "",
            told: "validation",
            x: evals.map((each) => each.step),
            y: evals.map((each) => each.loss),
            colour: number,
            kind: "points",
          }
          : null,
      ].filter(Boolean);
    });
    const speeds = runs
      .map((run) => [run, kept.get(run.name)?.whole.speed])
      .filter(([, found]) => found);
    speed.textContent = speeds.length === 1
      ? `${formatted(Math.round(speeds[0][1]))} tokens/s`
      : "";
    whole.disabled = left.disabled = right.disabled = !domain;
    plot.show({
      title: "Loss by step",
      x: "step",
      y: "loss (lines: training, points: validation)",
      kind: "lines",
      log_x: false,
      log_y: shown.log,
      series,
      domain,
    });
  }

  return {element, show, zoom};
}
