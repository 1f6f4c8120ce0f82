// Numbers and tokens as a person reads them; numbers as the reports write them.

/** Four significant digits, but never a rounded whole part. */
export function formatted(value) {
  if (value === null || value === undefined || value === "") return "–";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "string") return value;
  if (Array.isArray(value)) return value.map(formatted).join(", ");
  if (typeof value === "object") {
    return Object.entries(value).map(([key, one]) => `${spaced(key)} ${formatted(one)}`).join(", ");
  }
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return signed(value.toLocaleString("en"));
  const size = Math.abs(value);
  if (size < 1e-4 || size >= 1e12) return signed(value.toExponential(2));
  if (size >= 9999.5) return signed(Math.round(value).toLocaleString("en"));
  return signed(grouped(value.toPrecision(4)));
}

/** As short as it can be, for an axis. */
export function ticked(value) {
  const size = Math.abs(value);
  if (size >= 1e6 && size < 1e12) {
    const [unit, letter] = size >= 1e9 ? [1e9, "G"] : [1e6, "M"];
    return signed(`${plain(value / unit)}${letter}`);
  }
  if (size >= 1e-4 && size < 1e6) return signed(grouped(plain(value)));
  return signed(size === 0 ? "0" : Number(value.toPrecision(6)).toExponential());
}

/** A number that a field can hold and a server can read. */
export function plain(value) {
  return `${Number(value.toPrecision(10))}`;
}

function grouped(text) {
  const [whole, rest] = text.split(".");
  return whole.replace(/\B(?=(\d{3})+$)/g, ",") + (rest === undefined ? "" : `.${rest}`);
}

function signed(text) {
  return text.replace(/^-/, "−").replace("e-", "e−").replace("e+", "e");
}

export function percent(share) {
  if (share >= 0.9995) return "100 %";
  if (share >= 0.1) return `${(100 * share).toFixed(0)} %`;
  return share >= 0.001 ? `${(100 * share).toFixed(1)} %` : "< 0.1 %";
}

export function took(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 1) return `${Math.max(1, Math.round(1000 * seconds))} ms`;
  return seconds < 60
    ? `${seconds.toFixed(1)} s`
    : `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
}

export function counted(count, one, more = `${one}s`) {
  return `${count.toLocaleString("en")} ${count === 1 ? one : more}`;
}

export function spaced(name) {
  return `${name}`.replaceAll("_", " ");
}

const SHOWN = {" ": "␣", "\n": "↵", "\t": "⇥", "\r": "␍", "": "∅"};

/** A token whose spaces and line ends can be seen. */
export function visible(token) {
  if (token in SHOWN) return SHOWN[token];
  return token
    .replace(/^ +| +$/g, (spaces) => "␣".repeat(spaces.length))
    .replace(/[\n\t\r]/g, (letter) => SHOWN[letter])
    .replace(
      /[\u0000-\u001f\u007f]/g,
      (letter) => String.fromCharCode(letter === "\u007f" ? 0x2421 : 0x2400 + letter.charCodeAt(0)),
    );
}

export const VERDICTS = {
  "holds": {mark: "✓", kind: "good"},
  "holds with a condition": {mark: "◐", kind: "partly"},
  "refuted": {mark: "✗", kind: "bad"},
  "pass": {mark: "✓", kind: "good"},
  "fail": {mark: "✗", kind: "bad"},
  "cannot tell": {mark: "?", kind: "partly"},
  "incomplete": {mark: "?", kind: "partly"},
  "not applicable": {mark: "–", kind: "none"},
};

export function verdict(word) {
  return VERDICTS[word] ?? {mark: "?", kind: "none"};
}

const LOWERED = /((?<![\p{L}\d_])[A-Za-z]|[α-ωΑ-Ω])_([A-Za-z]{1,2}|\d)(?![A-Za-z\d_])/u;
const RAISED = /\^\(((?:[^()]|\([^()]*\))*)\)/u;
const CODE = /`([^`]+)`/u;
const ANY = new RegExp(`${LOWERED.source}|${RAISED.source}|${CODE.source}`, "gu");

/** A sentence: x_a with a lowered letter, e^(−g) with a raised exponent, `code` as code. */
export function formulas(text) {
  const parts = [];
  let end = 0;
  for (const found of text.matchAll(ANY)) {
    const [all, letter, low, high, code] = found;
    parts.push(text.slice(end, found.index) + (letter ?? ""));
    const name = high !== undefined ? "sup" : code !== undefined ? "code" : "sub";
    const raised = document.createElement(name);
    raised.textContent = high ?? code ?? low;
    parts.push(raised);
    end = found.index + all.length;
  }
  return [...parts, text.slice(end)];
}

/** Text in which αᵢ is found as αi and GQA as gqa; page/claims.py folds the claims alike. */
export const folded = (text) => text.normalize("NFKC").toLowerCase();
