// Numbers, durations and moments as texts.
const WHOLE = new Intl.NumberFormat("en");
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];
export const NOTHING = "–";

export const isNothing = (value) => value === null || value === undefined;

export const whole = (value) => (isNothing(value) ? NOTHING : WHOLE.format(Math.round(value)));
export const short = (value) => (isNothing(value) ? NOTHING : SHORT.format(value));
export const rate = (value) => (isNothing(value) ? NOTHING : `${SHORT.format(value)}/s`);

/** A number of rows, which may be a lower bound. */
export const count = (value, isMinimum) => (isMinimum && !isNothing(value) ? `at least ${whole(value)}` : whole(value));

const LEAST_SHARE = 0.0001;

function percent(share) {
  const text = share < LEAST_SHARE ? `under ${100 * LEAST_SHARE}` : `${Number((100 * share).toPrecision(3))}`;
  return `${text}\u00a0%`;
}

/** How many rows of a run, or of its last report, were dropped as late; null where nobody knows. */
export function lateRows({ late_rows: late, late_minimum: isMinimum, rows_read: read, rows_minimum: isReadMinimum }) {
  if (isNothing(late)) return null;
  if (!late) return whole(late);
  const share = read && !isReadMinimum ? `, ${percent(late / read)} of the rows read` : "";
  return `${isMinimum ? "at least " : ""}${whole(late)} dropped${share}`;
}

/** How many rows were gone before they were read; null where none was. */
export const lostRows = ({ lost_rows: lost }) => (lost ? `${whole(lost)} expired before they were read` : null);

export function bytes(value) {
  if (isNothing(value)) return NOTHING;
  let unit = 0;
  let size = value;
  while (size >= 1000 && unit < UNITS.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return `${SHORT.format(size)} ${UNITS[unit]}`;
}

export function duration(seconds) {
  if (isNothing(seconds)) return NOTHING;
  const s = Math.abs(seconds);
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 59.5) return `${Number(s.toPrecision(2))} s`;
  if (s < 3599.5) return inTwo(Math.round(s), 60, "min", "s");
  if (s < 86370) return inTwo(Math.round(s / 60), 60, "h", "min");
  return inTwo(Math.round(s / 3600), 24, "d", "h");
}

/** Rounded before it is split, so that there are no 60 seconds. */
const inTwo = (count, base, large, small) =>
  `${Math.floor(count / base)} ${large}${count % base ? ` ${count % base} ${small}` : ""}`;

export const millis = (value) => (isNothing(value) ? NOTHING : duration(value / 1000));

/** A moment in the zone of the reader; years that stand for none are said so. */
export function moment(text) {
  if (!text) return NOTHING;
  if (text.startsWith("9999")) return "flushed";
  if (text.startsWith("1970-01-01")) return NOTHING;
  const date = new Date(text);
  if (Number.isNaN(date.getTime())) return text;
  const pad = (n) => String(n).padStart(2, "0");
  const day = `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
  return `${day} ${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
}

const DAY_MS = 86_400_000;

/** The name of a slice for people: its key, or its time in UTC. */
export function sliceName({ key, start, end, name }) {
  if (key) return key;
  if (!start) return name;
  const hasSeconds = [start, end].some((at) => at.slice(17, 19) !== "00");
  const [from, to] = [start, end].map((at) => at.slice(0, hasSeconds ? 19 : 16).replace("T", " "));
  const [firstDay, lastDay] = [from.slice(0, 10), to.slice(0, 10)];
  if (from.endsWith(" 00:00") && to.endsWith(" 00:00"))
    return Date.parse(end) - Date.parse(start) === DAY_MS ? firstDay : `${firstDay} to ${lastDay}`;
  return `${from} to ${firstDay === lastDay ? to.slice(11) : to} UTC`;
}

const TOTAL = "triggerExecution"; // Spark's name for the time of a whole batch

/** The times of a batch's phases by their names. */
export const phaseTimes = ({ duration_ms: times }) => Object.entries(times ?? {}).filter(([name]) => name !== TOTAL);

/** How long a batch took; null where its driver did not say. */
export function totalMs(batch) {
  const phases = phaseTimes(batch);
  return batch.duration_ms?.[TOTAL] ?? (phases.length ? phases.reduce((sum, [, ms]) => sum + ms, 0) : null);
}

/** How much is unread: sources report several measures of the same, of which people look at the greatest. */
export function backlogOf({ backlog }) {
  const known = Object.values(backlog ?? {});
  return known.length ? Math.max(...known) : null;
}

/** A phrase as a sentence. */
export const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}${/[.?!]$/.test(text) ? "" : "."}`;

export const words = (text) => (text ? text.replaceAll("_", " ").toLowerCase() : NOTHING);
