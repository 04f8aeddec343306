// The runs of a stream and their attempts.
import { html } from "./host.js";
import { jobPath, useData } from "./api.js";
import { NOTHING, count, lateRows, lostRows, moment, whole, words } from "./format.js";
import { Facts, Id, Note, State, Table, Waiting } from "./parts.js";

export function Runs({ task, go }) {
  const { data, error } = useData(jobPath(task, "runs"));
  if (!data) return html`<${Waiting} error=${error} />`;
  const { lease } = data;
  return html`<div>
    <${Note} error=${error} />
    ${lease
      ? html`<p>${["live", "unknown"].includes(lease.liveness) ? "Driver" : "No driver. The last one was"} <${Id} text=${lease.driver_id} /> on ${lease.host}, with lease <strong>${lease.token}</strong> since ${moment(lease.acquired)}, for run <${Id} text=${lease.run_id} /></p>`
      : html`<p className="ss-muted">No driver has held the lease yet.</p>`}
    ${data.runs.map((run) => html`<${Run} key=${run.run_id} run=${run} lease=${lease} go=${go} />`)}
    ${data.runs.length ? null : html`<p className="ss-muted">No run has begun.</p>`}
  </div>`;
}

function Run({ run, lease, go }) {
  const facts = [
    ["Since", run.since ? moment(run.since) : null],
    ["Last error", run.error ? html`<span className="ss-long">${run.error}</span>` : null],
    ["Next", run.next_step ? html`<span className="ss-long">${run.next_step}</span>` : null],
    ["Mode", run.mode ? words(run.mode) : null],
    ["Until", run.until],
    ["Interval", run.interval ? run.interval.map(moment).join(" to ") : null],
    ["Rows read", run.rows_read === null ? null : count(run.rows_read, run.rows_minimum)],
    ["Rows written", run.rows_written === null ? null : count(run.rows_written, run.rows_minimum)],
    ["Late rows", lateRows(run)],
    ["Lost rows", lostRows(run)],
    ["Ignored timers", run.ignored_timers ? whole(run.ignored_timers) : null],
    ["Started", run.started ? moment(run.started) : null],
    ["Committed", run.committed ? moment(run.committed) : null],
    ["From savepoint", run.from_savepoint ? html`<code>${run.from_savepoint}</code>` : null],
    ["Parameters", run.params ? html`<code>${run.params}</code>` : null],
    ["Launcher", run.launch],
    ["Job", run.entry ? html`<code>${run.entry}</code>` : null],
  ];
  return html`<section className="ss-query" aria-label=${`Run ${run.run_id}`}>
    <h2 className="ss-row"><${Id} text=${run.run_id} /> <${State} text=${run.state} /> <button type="button" className="ss-button ss-small" aria-label=${`batches of run ${run.run_id}`} onClick=${() => go({ tab: "batches", spark_run_id: run.run_id })}>batches</button></h2>
    <${Note} error=${run.problem} />
    <${Facts} facts=${facts} />
    <${Table} caption=${`Attempts of run ${run.run_id}`} rows=${run.attempts} keyOf=${(a) => a.attempt} columns=${columnsOf(run, lease, go)} empty="no attempt yet" />
  </section>`;
}

function columnsOf(run, lease, go) {
  return [
    { title: "Attempt", isNumber: true, of: (a) => a.attempt },
    { title: "Outcome", of: (a) => outcome(a, lease) },
    { title: "Host", of: (a) => `${a.host}, pid ${a.pid}` },
    { title: "Lease", isNumber: true, of: (a) => a.token },
    { title: "Started", of: (a) => moment(a.started) },
    { title: "Ended", of: (a) => moment(a.ended) },
    { title: "Exit code", isNumber: true, of: (a) => (a.exit_code === null ? NOTHING : a.exit_code) },
    { title: "Restarts", isNumber: true, of: (a) => (a.restarts ? whole(a.restarts) : NOTHING) },
    { title: "Application", of: (a) => application(a) },
    { title: "Log", of: (a) => (a.has_log ? html`<button type="button" className="ss-button ss-small" onClick=${() => go({ tab: "log", spark_run_id: run.run_id, driver_id: a.driver_id })}>log</button>` : NOTHING) },
    { title: "Failure", of: (a) => (a.failure ? html`<span className="ss-long">${a.failure}</span>` : NOTHING) },
  ];
}

function outcome(attempt, lease) {
  if (attempt.outcome) return html`<${State} text=${attempt.outcome} />`;
  const isAtWork = lease?.driver_id === attempt.driver_id && ["live", "unknown"].includes(lease.liveness);
  if (isAtWork && attempt.exit_code === null) return html`<${State} text="running" />`;
  return html`<${State} text="killed" />`;
}

function application(attempt) {
  const name = attempt.application_id ?? "Spark UI";
  if (attempt.ui_url)
    return html`<a href=${attempt.ui_url} target="_blank" rel="noopener noreferrer">${name} ↗</a>`;
  return attempt.application_id ?? NOTHING;
}
