// The five views and the way between them. A view is a module with `title` and
// `open(place, address, signal)`; it returns a function that is given a changed address of its own.

import * as address from "./address.js";
import {quiet} from "./api.js";
import {make} from "./make.js";
import * as attention from "./attention.js";
import * as audit from "./audit.js";
import * as claims from "./claims.js";
import * as generate from "./generate.js";
import * as runs from "./runs.js";

const VIEWS = {claims, attention, runs, generate, audit};
const main = document.getElementById("main");
const tabs = Object.fromEntries(
  Object.entries(VIEWS).map(([name, view]) => [
    name,
    make("a", {href: address.written({view: name})}, view.title),
  ]),
);
document.getElementById("views").append(...Object.values(tabs));
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault(); // what follows "#" is the state of the page
  main.focus();
});

let current = null;

function route() {
  const wanted = address.read();
  if (!Object.hasOwn(VIEWS, wanted.view)) wanted.view = "claims";
  quiet();
  if (current?.name === wanted.view) {
    current.update(wanted);
    return;
  }
  current?.leave.abort();
  for (const [name, tab] of Object.entries(tabs)) {
    if (name === wanted.view) tab.setAttribute("aria-current", "page");
    else tab.removeAttribute("aria-current");
  }
  document.title = `${VIEWS[wanted.view].title} · attnlab`;
  const leave = new AbortController();
  const place = make("div", {class: `view ${wanted.view}`});
  main.replaceChildren(place);
  scrollTo(0, 0);
  current = {
    name: wanted.view,
    leave,
    update: VIEWS[wanted.view].open(place, wanted, leave.signal),
  };
}

addEventListener("hashchange", route);
route();
