// What a view shows, kept in the address after "#", so that it can be shared and gone back to:
//   #/view/item?key=value&…

export function read(hash = location.hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const [view, ...rest] = path.split("/");
  return {
    view: view || "claims",
    item: decoded(rest.join("/")),
    query: Object.fromEntries(new URLSearchParams(query)),
  };
}

/** The address of a view; keys without a value are left out. */
export function written({view, item = "", query = {}}) {
  const kept = Object.entries(query).filter(
    ([, value]) => value !== undefined && value !== null && value !== "" && value !== false,
  );
  const words = new URLSearchParams(kept.map(
    ([key, value]) => [key, value === true ? "1" : `${value}`],
  )).toString();
  return `#/${view}${item ? `/${encodeURIComponent(item)}` : ""}${words ? `?${words}` : ""}`;
}

/** Says what is shown now, without another entry in the history. */
export function keep(state) {
  const hash = written(state);
  if (hash !== location.hash) history.replaceState(null, "", hash);
}

/** What a word of the address says of a setting: a number beyond its range is brought to the end of
 * it, and what makes no sense counts as not said. */
export function value(word, {kind, value: usual, low, high, choices}) {
  if (word === undefined) return usual;
  if (choices) return choices.find((one) => `${one}` === word) ?? usual;
  if (kind === "bool") return {true: true, 1: true, false: false, 0: false}[word] ?? usual;
  if (kind === "text") return word;
  if (kind === "ints") {
    const numbers = word.split(",").map(number);
    return numbers.every(Number.isInteger) ? numbers : usual;
  }
  if (word === "none" && kind.endsWith("?")) return null;
  const one = number(word);
  if (!Number.isFinite(one) || (kind.startsWith("int") && !Number.isInteger(one))) return usual;
  return Math.min(high ?? Infinity, Math.max(low ?? -Infinity, one));
}

const number = (word) => (word.trim() ? Number(word) : NaN);

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // somebody cut the address in the middle of a letter
  }
}
