// The runs of a stream and their attempts.
import { html } from "./host.js";
import { jobPath, useData } from "./api.js";
import { NOTHING, count, isNothing, lateRows, lostRows, moment, whole, words } from "./format.js";
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
    ${data.runs.map((run) => html`<${Run} key=${run.run_id} run=${run} isShown=${run.run_id === data.shown} lease=${lease} go=${go} />`)}
    ${data.runs.length ? null : html`<p className="ss-muted">No run has begun.</p>`}
  </div>`;
}

function Run({ run, isShown, lease, go }) {
  const { condition, record, counted } = run;
  const facts = [
    ["Since", condition.since ? moment(condition.since) : null],
    ["Last error", condition.error && !run.problem ? html`<span className="ss-long">${condition.error}</span>` : null],
    ["Next", html`<span className="ss-long">${condition.next_step}</span>`],
    ["Mode", record ? words(record.options.mode) : null],
    ["Until", record?.options.until],
    ["Interval", record?.interval ? record.interval.map(moment).join(" to ") : null],
    ["Rows read", isNothing(counted?.rows_read) ? null : count(counted.rows_read, counted.rows_minimum)],
    ["Rows written", run.rows_written === null ? null : count(run.rows_written, counted.rows_minimum)],
    ["Late rows", counted ? lateRows(counted) : null],
    ["Lost rows", counted ? lostRows(counted) : null],
    ["Ignored timers", counted?.ignored_timers ? whole(counted.ignored_timers) : null],
    ["Started", record ? moment(record.started) : null],
    ["Committed", run.committed ? moment(run.committed) : null],
    ["From savepoint", record?.from_savepoint ? html`<code>${record.from_savepoint}</code>` : null],
    ["Parameters", record && Object.keys(record.params).length ? html`<code>${paramsOf(record)}</code>` : null],
    ["Launcher", run.launch],
    ["Job", record ? html`<code>${record.entry}</code>` : null],
  ];
  return html`<section className="ss-query" aria-label=${`Run ${run.run_id}`}>
    <h2 className="ss-row"><${Id} text=${run.run_id} /> <${State} text=${condition.state} />${isShown ? html`<span className="ss-mark">the run of this task</span>` : null} <button type="button" className="ss-button ss-small" aria-label=${`batches of run ${run.run_id}`} onClick=${() => go({ tab: "batches", spark_run_id: run.run_id })}>batches</button></h2>
    <${Note} error=${run.problem} />
    <${Facts} facts=${facts} />
    <${Table} caption=${`Attempts of run ${run.run_id}`} rows=${run.attempts} keyOf=${(a) => a.record.attempt} columns=${columnsOf(run, lease, go)} empty="no attempt yet" />
  </section>`;
}

const paramsOf = ({ params }) =>
  Object.keys(params).sort().map((name) => `${name}=${JSON.stringify(params[name])}`).join(", ");

function columnsOf(run, lease, go) {
  return [
    { title: "Attempt", isNumber: true, of: ({ record }) => record.attempt },
    { title: "Outcome", of: (a) => outcome(a, lease) },
    { title: "Host", of: ({ record }) => `${record.host}, pid ${record.pid}` },
    { title: "Lease", isNumber: true, of: ({ record }) => record.token },
    { title: "Started", of: ({ record }) => moment(record.started) },
    { title: "Ended", of: ({ record }) => moment(record.ended) },
    { title: "Exit code", isNumber: true, of: (a) => (a.exit_code === null ? NOTHING : a.exit_code) },
    { title: "Restarts", isNumber: true, of: ({ record }) => (record.restarts?.count ? whole(record.restarts.count) : NOTHING) },
    { title: "Application", of: ({ record }) => application(record) },
    { title: "Log", of: (a) => (a.has_log ? html`<button type="button" className="ss-button ss-small" onClick=${() => go({ tab: "log", spark_run_id: run.run_id, driver_id: a.record.driver_id })}>log</button>` : NOTHING) },
    { title: "Failure", of: (a) => (a.failure ? html`<span className="ss-long">${a.failure}</span>` : NOTHING) },
  ];
}

function outcome({ record, exit_code }, lease) {
  if (record.outcome) return html`<${State} text=${record.outcome} />`;
  const isAtWork = lease?.driver_id === record.driver_id && ["live", "unknown"].includes(lease.liveness);
  return html`<${State} text=${isAtWork && exit_code === null ? "running" : "killed"} />`;
}

function application({ application_id: id, ui_url: url }) {
  const name = id ?? "Spark UI";
  if (url)
    return html`<a href=${url} target="_blank" rel="noopener noreferrer">${name} ↗</a>`;
  return id ?? NOTHING;
}
