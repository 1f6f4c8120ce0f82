// Axes: from values to places and back, and round numbers to write at them.

const WAYS = {
  linear: [(value) => value, (value) => value],
  log: [Math.log, Math.exp],
  root: [Math.sqrt, (value) => value * value], // small shares stay apart, and 0 has a place
};

/** `from` [low, high] in values `to` [start, end] in pixels; a `way` of true is log. */
export function scale(from, to, way = false) {
  const kind = way === true ? "log" : way || "linear";
  const [go, back] = WAYS[kind];
  const [low, high] = from.map(go);
  const stretch = (to[1] - to[0]) / (high - low || 1);
  return {
    from,
    to,
    at: (value) => to[0] + (go(value) - low) * stretch,
    value: (place) => back(low + (place - to[0]) / stretch),
    ticks: (most) => ({log: logTicks, linear: linearTicks, root: rootTicks})[kind](from, most),
  };
}

/** The least and largest of many, without null, NaN and what a log axis has no place for. */
export function extent(values, log = false) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (value === null || !Number.isFinite(value) || (log && value <= 0)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low <= high ? [low, high] : null;
}

/** Some room at both ends; a single value gets room too. */
export function roomy([low, high], share, log = false) {
  if (log) {
    const room = high > low ? (high / low) ** share : 2;
    return [low / room, high * room];
  }
  const room = high > low ? (high - low) * share : Math.abs(low) / 10 || 0.5;
  return [low - room, high + room];
}

function linearTicks([low, high], most) {
  const raw = (high - low) / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].find((one) => one * power >= raw * 0.9) * power;
  const ticks = [];
  for (let place = Math.ceil(low / step - 1e-9); place * step <= high + step * 1e-9; place += 1) {
    ticks.push(Number((place * step).toPrecision(12)));
  }
  return ticks;
}

function rootTicks([, high]) {
  return [0, 0.05, 0.2, 0.5, 1].map((share) => Number((share * high).toPrecision(2)));
}

function logTicks([low, high], most) {
  if (high < 8 * low) return linearTicks([low, high], most).filter((tick) => tick > 0);
  const decades = Math.log10(high / low);
  const every = Math.max(1, Math.ceil(decades / most));
  const parts = decades < 2.4 ? [1, 2, 5] : [1];
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    if (power % every) continue;
    for (const part of parts) {
      const tick = Number(`${part}e${power}`);
      if (tick >= low * 0.9999 && tick <= high * 1.0001) ticks.push(tick);
    }
  }
  return ticks.length > 2 * most ? ticks.filter((_, place) => place % 3 === 0) : ticks;
}
