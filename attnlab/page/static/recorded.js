// The claims without a server, as `attnlab claims --export` writes them: the answers are recorded.

import * as address from "./address.js";
import {answerFrom, quiet, Refused} from "./api.js";
import * as claims from "./claims.js";
import {make} from "./make.js";

const record = globalThis.attnlabRecord;
const main = document.getElementById("main");

answerFrom((path, body) => {
  if (path === "/api/claims") return record.claims;
  if (path === "/api/questions") return record.questions;
  const outcomes = record.outcomes[path.replace("/api/claims/", "")];
  if (!outcomes) throw new Refused("This is not recorded.", 404);
  return outcomes[body.knob ? 1 : 0];
});

document.getElementById("views").append(
  make("a", {href: address.written({view: "claims"}), "aria-current": "page"}, claims.title),
  ...(record.home ? [make("a", {href: record.home}, "Documentation")] : []),
);
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault(); // what follows "#" is the state of the page
  main.focus();
});
document.title = `${claims.title} · attnlab ${record.version}`;
const place = make("div", {class: "view claims"});
main.replaceChildren(place);
const update = claims.open(place, address.read(), new AbortController().signal);
addEventListener("hashchange", () => {
  quiet();
  update(address.read());
});
