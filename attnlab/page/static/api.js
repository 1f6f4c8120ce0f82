// Talking to the server: JSON both ways, every failure as one line in the banner.

import {make, refill} from "./make.js";
import {formulas} from "./words.js";

const PATIENCE = 1000; // milliseconds between two tries to reach a server that is gone

/** The server answered that it will not; its line says what to do. */
export class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

class Lost extends Error {}

export function ask(path, signal) {
  return request(path, {signal});
}

export function send(path, body, signal) {
  return request(path, posted(body, signal));
}

function posted(body, signal) {
  const headers = {"content-type": "application/json"};
  return {method: "POST", headers, body: JSON.stringify(body), signal};
}

let local = null;

/** Answers come from `answer(path, body)` and not from a server. */
export function answerFrom(answer) {
  local = answer;
}

async function request(path, options) {
  if (local) return local(path, options.body === undefined ? null : JSON.parse(options.body));
  const answer = await reached(path, options);
  return answer.json();
}

async function reached(path, options) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    lost();
    throw new Lost();
  }
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => ({}));
  throw new Refused(said.error ?? `The server answered with ${answer.status}.`, answer.status);
}

/** Events of a text/event-stream, as they come; leaving the loop or aborting ends the request. */
export async function* stream(path, body, signal) {
  const answer = await reached(path, posted(body, signal));
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const {done, value} = await reader.read();
      if (done) return;
      const events = (rest + value).split(/\r?\n\r?\n/);
      rest = events.pop();
      for (const event of events) {
        const data = event.split(/\r?\n/)
          .filter((line) => line.startsWith("data:"))
          .map((line) => line.slice(5).trim())
          .join("\n");
        if (data) yield JSON.parse(data);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** One request at a time, and after it the newest of those that were wanted meanwhile. */
export function newest(work, show) {
  let wanted = null;
  let busy = false;
  return async (value) => {
    wanted = {value};
    if (busy) return;
    busy = true;
    while (wanted) {
      const one = wanted.value;
      wanted = null;
      await attempt(async () => show(await work(one), one));
    }
    busy = false;
  };
}

/** Runs something that may fail; what went wrong is said in the banner. True when it went well. */
export async function attempt(work) {
  try {
    await work();
    return true;
  } catch (error) {
    if (error.name === "AbortError" || error instanceof Lost) return false;
    if (!(error instanceof Refused)) console.error(error);
    say(error.message);
    return false;
  }
}

const banner = () => document.getElementById("banner");

export function say(words, kind = "bad") {
  const close = make(
    "button",
    {type: "button", class: "plain", "aria-label": "Close this message", on: {click: quiet}},
    "×",
  );
  refill(banner(), make("p", {}, formulas(words)), close);
  banner().dataset.kind = kind;
  banner().hidden = false;
}

export function quiet() {
  if (banner().dataset.kind !== "lost") banner().hidden = true;
}

let waiting = false;

/** Until the server is back, says so and tries again; then the view is opened anew. */
async function lost() {
  if (waiting) return;
  waiting = true;
  say(
    "The server of this page does not answer. Is `attnlab page` still running? Trying again …",
    "lost",
  );
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, PATIENCE));
    try {
      const answer = await fetch("/api/about");
      waiting = false;
      banner().dataset.kind = "";
      if (answer.ok) {
        quiet();
        dispatchEvent(new Event("hashchange"));
      } else {
        say("The server was started again and has a new address: open the one that it printed.");
      }
      return;
    } catch {
      continue;
    }
  }
}

/** A run's name in a path; runs of a study have a slash in theirs. */
export const encoded = (name) => name.split("/").map(encodeURIComponent).join("/");
