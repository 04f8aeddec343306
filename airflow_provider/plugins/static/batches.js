// The batches of a run: a summary, and each of the last ones.
import { html } from "./host.js";
import { jobPath, useData } from "./api.js";
import { NOTHING, backlogOf, bytes, duration, millis, moment, phaseTimes, short, totalMs, whole } from "./format.js";
import { Id, Note, Table, Waiting } from "./parts.js";

const SHOWN = 100;
const BEHIND = "watermark behind"; // says nothing of a run that ends with its data, which may be of any year
const MEASURES = [
  ["duration", "ms", totalMs],
  ["rows", "rows", (b) => b.rows],
  ["rows in", "rows/s", (b) => b.input_rate],
  ["rows processed", "rows/s", (b) => b.process_rate],
  ["state", "rows", (b) => b.state_rows],
  ["state size", "bytes", (b) => b.state_bytes],
  ["backlog", "rows", backlogOf],
  [BEHIND, "s", (b) => b.lag_s],
  ["late rows", "rows", (b) => b.late_rows],
];

/** The least, mean, median, 99th percentile and greatest of each measure that is known. */
export function statistics(batches, isLive = true) {
  const shown = MEASURES.filter(([measure]) => isLive || measure !== BEHIND);
  return shown.flatMap(([measure, unit, of]) => {
    const known = batches.map(of).filter((value) => value !== null && value !== undefined).sort((a, b) => a - b);
    if (!known.length) return [];
    const at = (share) => known[Math.max(0, Math.ceil(share * known.length) - 1)];
    const avg = known.reduce((sum, value) => sum + value, 0) / known.length;
    return [{ measure, unit, min: known[0], avg, p50: at(0.5), p99: at(0.99), max: known.at(-1) }];
  });
}

export function Batches({ task, params }) {
  const { data, error } = useData(jobPath(task, "batches", { spark_run_id: params.get("spark_run_id") }));
  if (!data) return html`<${Waiting} error=${error} />`;
  const { record, histories } = data;
  // Its parameters are in the document, under Raw.
  const options = record ? { ...record.options, interval: record.interval, from_savepoint: record.from_savepoint, settings: record.settings } : {};
  return html`<div>
    <${Note} error=${error} />
    ${record ? html`<p className="ss-muted">Run <${Id} text=${record.run_id} /></p>` : null}
    ${histories.map((h) => html`<${Query} key=${h.query} history=${h} isLive=${record?.options.until === "stopped"} />`)}
    ${histories.length ? null : html`<p className="ss-muted">No history yet.</p>`}
    <h2>Configuration of the run</h2>
    <pre className="ss-pre">${JSON.stringify(options, null, 1)}</pre>
  </div>`;
}

function Query({ history, isLive }) {
  const newest = [...history.batches].reverse().slice(0, SHOWN);
  return html`<section className="ss-query" aria-label=${`Query ${history.query}`}>
    <h2>${history.query} <small>${history.batches.length} batches, recorded ${moment(history.updated)}</small></h2>
    <${Table} caption=${`Summary of ${history.query}`} rows=${statistics(history.batches, isLive)} keyOf=${(s) => s.measure} columns=${SUMMARY} />
    ${history.hours.length
      ? html`<details className="ss-more">
          <summary>The ${history.hours.length} hours before these batches</summary>
          <${Table} caption=${`Hours of ${history.query}`} rows=${[...history.hours].reverse()} keyOf=${(h) => h.hour} columns=${HOUR} />
        </details>`
      : null}
    <h3>The last ${Math.min(SHOWN, history.batches.length)} batches</h3>
    <${Table} caption=${`Batches of ${history.query}`} rows=${newest} keyOf=${(b) => `${b.batch}/${b.attempt}`} columns=${isLive ? BATCH : BATCH.filter(({ title }) => title !== "Behind")} />
  </section>`;
}

const say = ({ unit }, value) =>
  unit === "ms" ? millis(value) : unit === "s" ? duration(value) : unit === "bytes" ? bytes(value) : unit === "rows/s" ? `${short(value)}/s` : short(value);

const SUMMARY = [
  { title: "Measure", of: (s) => s.measure },
  ...["min", "avg", "p50", "p99", "max"].map((title) => ({ title, isNumber: true, of: (s) => say(s, s[title]) })),
];

const BATCH = [
  { title: "Batch", isNumber: true, of: (b) => b.batch },
  { title: "Began", of: (b) => moment(b.at) },
  { title: "Took", isNumber: true, of: (b) => (totalMs(b) === null ? NOTHING : html`<${More} short=${millis(totalMs(b))} all=${phases(b)} />`) },
  { title: "Rows", isNumber: true, of: (b) => whole(b.rows) },
  { title: "Processed", isNumber: true, of: (b) => (b.process_rate === null ? NOTHING : `${short(b.process_rate)}/s`) },
  { title: "Backlog", isNumber: true, of: (b) => short(backlogOf(b)) },
  { title: "Late", isNumber: true, of: (b) => whole(b.late_rows) },
  { title: "State rows", isNumber: true, of: (b) => short(b.state_rows) },
  { title: "Watermark", of: (b) => moment(b.watermark) },
  { title: "Behind", isNumber: true, of: (b) => duration(b.lag_s) },
  { title: "Batch size", of: (b) => (b.decision ? html`<${More} short=${b.decision} all=${b.reason ? [b.reason] : []} />` : NOTHING) },
];

const HOUR = [
  { title: "Hour", of: (h) => moment(h.hour) },
  { title: "Batches", isNumber: true, of: (h) => whole(h.batches) },
  { title: "Rows", isNumber: true, of: (h) => whole(h.rows) },
  { title: "Late", isNumber: true, of: (h) => whole(h.late_rows) },
  { title: "Shortest", isNumber: true, of: (h) => millis(h.min_ms) },
  { title: "Mean", isNumber: true, of: (h) => millis(h.mean_ms) },
  { title: "Longest", isNumber: true, of: (h) => millis(h.max_ms) },
  { title: "State rows", isNumber: true, of: (h) => short(h.state_rows) },
  { title: "State size", isNumber: true, of: (h) => bytes(h.state_bytes) },
];

/** A value that opens: with a finger and the keyboard, too. */
function More({ short: value, all }) {
  if (!all.length) return value;
  return html`<details className="ss-more"><summary>${value}</summary>${all.map((line) => html`<div key=${line}>${line}</div>`)}</details>`;
}

const phases = (batch) => phaseTimes(batch).map(([name, ms]) => `${name} ${millis(ms)}`);
