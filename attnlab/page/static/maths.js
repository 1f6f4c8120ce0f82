// Formulas as MathML, from the plain data that theory/mathml.py makes: [name, text or children].
// Only elements and attributes of formulas are made, and text is only ever set as text.

import {make} from "./make.js";

const MATHML = "http://www.w3.org/1998/Math/MathML";
const NAMES = new Set([
  "math", "mi", "mn", "mo", "mtext", "mspace", "mrow", "msub", "msup", "msubsup", "mfrac", "msqrt",
  "mtable", "mtr", "mtd",
]);
const ATTRIBUTES = new Set([
  "displaystyle", "form", "lspace", "rspace", "stretchy", "width",
]);

/** The lines of a formula; a line that is too long ends between two of its pieces. */
export function formula(lines) {
  return make("div", {class: "formula"}, lines.map((parts) => make("div", {},
    parts.map((pieces) => make("span", {},
      pieces.flatMap((piece) => [typeof piece === "string" ? piece : element(piece), " "]))))));
}

function element([name, inside, attributes = {}]) {
  if (!NAMES.has(name)) throw new Error(`${name} is no element of a formula`);
  const made = document.createElementNS(MATHML, name);
  for (const [key, value] of Object.entries(attributes)) {
    if (ATTRIBUTES.has(key)) made.setAttribute(key, value);
  }
  if (typeof inside === "string") made.textContent = inside;
  else made.append(...inside.map(element));
  return made;
}
