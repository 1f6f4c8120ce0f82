// The list of runs: sorted by any column, filtered, grouped by comparison; a part of it at first,
// and always with how many there are. What it shows is in the address.

import {choice, labelled, make, refill, tick} from "./make.js";
import {swatch} from "./marks.js";
import {counted, formatted, spaced} from "./words.js";

const FIRST = 25; // rows at first
const MORE = 50;
const NEWEST = "-modified";
const STATES = ["running", "finished", "stopped", "unreadable"];
const MARKS = {
  running: ["●", "busy"],
  stopping: ["●", "partly"],
  finished: ["✓", "good"],
  stopped: ["◐", "partly"],
  ended: ["■", "none"],
  failed: ["✗", "bad"],
  unreadable: ["✗", "bad"],
};
const COLUMNS = [
  {key: "name", words: "run", of: (run) => run.name, cell: () => null},
  {key: "state", words: "state", of: (run) => STATES.indexOf(run.state), cell: mark},
  {key: "step", words: "steps", of: (run) => run.step, cell: progress},
  {key: "loss", words: "loss", of: (run) => run.loss, numeric: true},
  {key: "best_loss", words: "best", of: (run) => run.best_loss, numeric: true},
  {key: "parameters", words: "parameters", of: (run) => run.parameters, numeric: true},
  {key: "modified", words: "last written", of: (run) => run.modified, cell: written},
];

/** `toggle(name, on)`, `chooseAll(names)` and `changed()`, when the address has to change. */
export function runList({toggle, chooseAll, changed}) {
  const wanted = {sort: NEWEST, find: "", state: "", group: false, open: [], show: FIRST};
  let runs = [];
  let chosen = [];
  let experiments = new Map();
  const rows = new Map(); // by run or group: what it was made of, and the row

  const find = make("input", {
    type: "search", placeholder: "part of a name", on: {input: () => change({find: find.value})},
  });
  const state = choice([["", "every state"]], "", (value) => change({state: value}));
  const sort = choice(
    COLUMNS.flatMap(({key, words}) => [[key, `${words} ↑`], [`-${key}`, `${words} ↓`]]),
    NEWEST,
    (value) => change({sort: value}),
  );
  const group = tick("group by comparison", false, (on) => change({group: on}));
  const count = make("p", {class: "note count", role: "status"});
  const heads = COLUMNS.map((column) => make(
    "th",
    {scope: "col", class: column.numeric ? "number" : null},
    make("button", {type: "button", class: "sort", on: {click: () => sortBy(column.key)}},
      column.words, make("span", {class: "arrow", "aria-hidden": "true"})),
  ));
  const body = make("tbody");
  const table = make("table", {class: "stacks run-table"},
    make("thead", {}, make("tr", {}, heads)), body);
  const more = make("div", {class: "row more"});
  const scroll = make(
    "div",
    {class: "scroll", tabindex: "0", role: "region", "aria-label": "Runs"},
    table,
  );
  const element = make("div", {class: "runs-list"},
    make("div", {class: "list-controls"},
      labelled("Filter", find), labelled("State", state),
      make("div", {class: "sort-choice"}, labelled("Sort by", sort)), group),
    count, scroll, more);

  function change(part) {
    Object.assign(wanted, {show: FIRST}, part);
    draw();
    changed();
  }

  function sortBy(key) {
    const down = wanted.sort === key || (wanted.sort !== `-${key}` && key === "modified");
    change({sort: down ? `-${key}` : key, show: wanted.show});
  }

  /** What the address says, and what it is to say. */
  function read(query) {
    const known = COLUMNS.some(({key}) => key === query.sort?.replace(/^-/, ""));
    wanted.sort = known ? query.sort : NEWEST;
    wanted.find = query.find ?? "";
    wanted.state = STATES.includes(query.state) ? query.state : "";
    wanted.group = query.group === "1";
    wanted.open = split(query.open);
    const number = Number(query.show);
    wanted.show = query.show === "all" ? Infinity : number >= 1 ? Math.floor(number) : FIRST;
    find.value = wanted.find;
  }

  function query() {
    return {
      sort: wanted.sort === NEWEST ? "" : wanted.sort,
      find: wanted.find,
      state: wanted.state,
      group: wanted.group,
      open: wanted.group ? joined(wanted.open) : "",
      show: wanted.show === Infinity ? "all" : wanted.show === FIRST ? "" : wanted.show,
    };
  }

  function show(now) {
    ({runs, chosen} = now);
    experiments = new Map(now.experiments.map((one) => [one.name, one]));
    draw();
  }

  function draw() {
    drawStates();
    for (const [place, column] of COLUMNS.entries()) {
      const down = wanted.sort === `-${column.key}`;
      const sorted = down || wanted.sort === column.key;
      if (sorted) heads[place].setAttribute("aria-sort", down ? "descending" : "ascending");
      else heads[place].removeAttribute("aria-sort");
    }
    sort.value = wanted.sort;
    group.querySelector("input").checked = wanted.group;
    const matching = ordered(runs.filter(matches));
    const {lines, shown} = wanted.group ? grouped(matching) : listed(matching);
    place(lines);
    scroll.hidden = !lines.length;
    const spelled = (number) => number.toLocaleString("en");
    const all = counted(runs.length, "run");
    const filtered = matching.length < runs.length;
    count.textContent = !runs.length ? "" : !matching.length
      ? `None of ${all} ${runs.length === 1 ? "matches" : "match"}.`
      : filtered
        ? `${spelled(shown)} of ${spelled(matching.length)} that match, of ${all}`
        : `${spelled(shown)} of ${all}`;
    drawMore(matching.length, shown);
  }

  function drawStates() {
    const there = STATES.filter(
      (one) => one === wanted.state || runs.some((run) => run.state === one),
    );
    const pairs = [["", "every state"], ...there.map(
      (one) => [one, `${one} (${runs.filter((run) => run.state === one).length})`],
    )];
    const said = JSON.stringify(pairs);
    if (state.dataset.said !== said) {
      state.dataset.said = said;
      refill(state, pairs.map(([value, words]) => make("option", {value}, words)));
    }
    state.value = wanted.state;
  }

  function matches(run) {
    const words = wanted.find.toLowerCase().split(/\s+/).filter(Boolean);
    const name = `${run.name} ${run.preset}`.toLowerCase();
    return (!wanted.state || run.state === wanted.state)
      && words.every((word) => name.includes(word));
  }

  /** Numbers that are not there come last in both directions. */
  function ordered(some) {
    const {of} = COLUMNS.find(({key}) => key === wanted.sort.replace(/^-/, ""));
    const turn = wanted.sort.startsWith("-") ? -1 : 1;
    const missing = (value) => value === null || value === undefined;
    return [...some].sort((one, other) => {
      const [mine, theirs] = [of(one), of(other)];
      if (missing(mine) || missing(theirs)) return missing(mine) - missing(theirs);
      return turn * (typeof mine === "string"
        ? mine.localeCompare(theirs, "en", {numeric: true})
        : mine - theirs);
    });
  }

  /** The first ones, and those that are chosen wherever they are. */
  function listed(matching) {
    const first = matching.filter(
      (run, number) => number < wanted.show || chosen.includes(run.name),
    );
    return {lines: first.map(row), shown: first.length};
  }

  function grouped(matching) {
    const groups = new Map();
    for (const run of matching) {
      const name = groupOf(run);
      groups.set(name, [...(groups.get(name) ?? []), run]);
    }
    const alone = groups.get("") ?? [];
    groups.delete("");
    const inside = [...groups].flatMap(([name, some]) => {
      const open = wanted.open.includes(name);
      return [groupRow(name, some, open), ...(open ? some.map(row) : [])];
    });
    const {lines, shown} = listed(alone);
    return {lines: [...inside, ...lines], shown: shown + matching.length - alone.length};
  }

  /** The same rows in the same order stay where they are, and so does the focus. */
  function place(lines) {
    if (lines.length === body.children.length
      && lines.every((line, number) => line === body.children[number])) return;
    const focus = document.activeElement?.dataset?.focus;
    refill(body, lines);
    if (focus) body.querySelector(`[data-focus="${CSS.escape(focus)}"]`)?.focus();
  }

  function kept(name, from, build) {
    const key = JSON.stringify(from);
    const old = rows.get(name);
    if (old?.key === key) return old.line;
    const line = build();
    rows.set(name, {key, line});
    return line;
  }

  function row(run) {
    const number = chosen.indexOf(run.name);
    return kept(`run ${run.name}`, [run, number, wanted.group], () => {
      const box = make("input", {
        type: "checkbox",
        checked: number >= 0,
        "data-run": run.name,
        "data-focus": `run ${run.name}`,
        on: {change: () => toggle(run.name, box.checked)},
      });
      const key = number >= 0 ? swatch("lines", number, false) : null;
      const name = wanted.group && groupOf(run)
        ? run.name.slice(groupOf(run).length + 1)
        : run.name;
      const cells = COLUMNS.slice(1).map((column) => make(
        "td",
        {class: column.numeric ? "number" : null, "data-label": column.words},
        column.cell ? column.cell(run) : formatted(column.of(run)),
      ));
      return make("tr", {class: wanted.group && groupOf(run) ? "inside" : null},
        make("th", {scope: "row"},
          make("label", {class: "tick"}, box, make("span", {class: "run-name"}, name), key)),
        cells);
    });
  }

  function groupRow(name, some, open) {
    const about = experiments.get(name);
    const names = some.map((run) => run.name);
    return kept(`group ${name}`, [name, names, open, about, ended(some)], () => make(
      "tr",
      {class: "group-row"},
      make("th", {scope: "rowgroup", colspan: COLUMNS.length},
        make("div", {class: "row"},
          make("button", {
            type: "button",
            class: "quiet fold",
            "aria-expanded": `${open}`,
            "data-focus": `group ${name}`,
            on: {click: () => fold(name, !open)},
          }, make("span", {"aria-hidden": "true"}, open ? "▾ " : "▸ "), name),
          make("span", {class: "note"}, counted(some.length, "run")),
          about ? [mark(about), experimentState(about, some)] : null,
          make("button", {
            type: "button",
            class: "quiet",
            "data-focus": `all ${name}`,
            on: {click: () => chooseAll(names)},
          }, "Show its curves"))),
    ));
  }

  function fold(name, open) {
    change({
      open: open ? [...wanted.open, name] : wanted.open.filter((one) => one !== name),
      show: wanted.show,
    });
  }

  function drawMore(matching, shown) {
    const left = matching - shown;
    const button = (words, next) => make(
      "button",
      {type: "button", class: "quiet", on: {click: () => change({show: next})}},
      words,
    );
    const parts = [
      left > MORE ? button(`Show ${MORE} more`, wanted.show + MORE) : null,
      left > 0 ? button(`Show all ${matching.toLocaleString("en")}`, Infinity) : null,
      wanted.show > FIRST && matching > FIRST ? button("Show fewer", FIRST) : null,
    ].filter(Boolean);
    const said = parts.map((one) => one.textContent).join();
    if (more.dataset.said === said) return;
    more.dataset.said = said;
    refill(more, parts);
  }

  return {element, read, query, show};
}

/** The experiment that a run belongs to; empty for a training of its own. */
export function groupOf(run) {
  return run.name.includes("/") ? run.name.slice(0, run.name.indexOf("/")) : "";
}

/** How far an experiment is, with a link to its report when it has one; `some` are its runs. */
export function experimentState(about, some) {
  const parts = about.parts === null
    ? counted(about.done, "part")
    : `${about.done} of ${counted(about.parts, "part")}`;
  const next = about.state === "running" && about.next
    ? `, now ${about.next.replaceAll("-", " ")}`
    : "";
  const trained = about.state === "running" && some.length
    ? `; ${counted(ended(some), "training")} finished`
    : "";
  return make("span", {class: "row experiment-state"},
    about.parts !== null && about.state !== "finished"
      ? make("progress", {
        max: about.parts, value: about.done, "aria-label": `parts of ${about.name}`,
      })
      : null,
    make("span", {class: "note"}, `${parts}${next}${trained}`),
    about.report
      ? make("a", {
        href: `/report/${encodeURIComponent(about.name)}`, target: "_blank", rel: "noopener",
      }, "report", make("span", {class: "visually-hidden"}, " (opens in a new tab)"))
      : null);
}

const ended = (some) => some.filter((run) => run.state === "finished").length;

/** Names of runs in the address: a comma in a name is no comma between two. */
export const joined = (names) => names
  .map((name) => name.replaceAll("%", "%25").replaceAll(",", "%2C"))
  .join(",");
export const split = (text) => (text ?? "")
  .split(",")
  .filter(Boolean)
  .map((name) => name.replaceAll("%2C", ",").replaceAll("%25", "%"));

export function mark({state}) {
  const [sign, kind] = MARKS[state] ?? ["?", "none"];
  return make("span", {class: `mark ${kind}`}, sign, make("span", {}, ` ${spaced(state)}`));
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

/** The day and the time when something was last written. */
function written(run) {
  const at = new Date(1000 * run.modified);
  if (!run.modified || Number.isNaN(at.getTime())) return "–";
  const year = at.getFullYear() === new Date().getFullYear() ? {} : {year: "numeric"};
  const day = at.toLocaleDateString("en-GB", {day: "numeric", month: "short", ...year});
  const time = at.toLocaleTimeString("en-GB", {hour: "2-digit", minute: "2-digit"});
  return make("time", {datetime: at.toISOString(), class: "written-at"}, `${day}, ${time}`);
}
