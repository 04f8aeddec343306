// The list of all streams, trouble first.
import { Link, html, useSearchParams } from "./host.js";
import { useData } from "./api.js";
import { NOTHING, duration, moment, rate, short, whole } from "./format.js";
import { Note, Sparkline, State, Table, Waiting } from "./parts.js";

const CATEGORIES = ["running", "unhealthy", "failed", "suspended", "finished"];

export function jobQuery(task, tab = "overview") {
  return `?${new URLSearchParams({ ...task, tab })}`;
}

export function Streams() {
  const [params, setParams] = useSearchParams();
  const { data, error } = useData("jobs");
  const chosen = params.get("state");
  const wanted = (params.get("search") ?? "").toLowerCase();
  const change = (name, value) =>
    setParams((now) => {
      if (value) now.set(name, value);
      else now.delete(name);
      return now;
    }, { replace: true });
  const jobs = (data?.jobs ?? []).filter(
    (job) =>
      (!chosen || job.category === chosen) &&
      `${job.task.dag_id} ${job.task.task_id} ${job.job ?? ""}`.toLowerCase().includes(wanted),
  );
  return html`<div className="ss-page">
    <header className="ss-head">
      <h1>Streams</h1>
      <label className="ss-search">
        <span className="ss-hidden">Search by DAG, task or job</span>
        <input type="search" placeholder="DAG, task or job" value=${wanted} onChange=${(e) => change("search", e.target.value)} />
      </label>
    </header>
    <${Counters} counters=${data?.counters ?? {}} chosen=${chosen} choose=${(c) => change("state", c)} />
    <${Note} error=${data && error} />
    ${data
      ? html`<${Table} caption="Streams" columns=${COLUMNS} rows=${jobs} keyOf=${keyOf} empty=${data.jobs.length ? "no stream like this" : "No task of this provider has run yet."} />`
      : html`<${Waiting} error=${error} />`}
  </div>`;
}

function Counters({ counters, chosen, choose }) {
  const shown = counters.unknown || chosen === "unknown" ? [...CATEGORIES, "unknown"] : CATEGORIES;
  return html`<div className="ss-counters" role="group" aria-label="Show only streams that are">
    ${shown.map(
      (c) =>
        html`<button key=${c} type="button" aria-pressed=${chosen === c} className=${`ss-counter ss-edge-${c}`} onClick=${() => choose(chosen === c ? null : c)}>
          <strong>${counters[c] ?? 0}</strong> ${c}
        </button>`,
    )}
  </div>`;
}

const keyOf = ({ task, job_dir }) => `${task.dag_id}/${task.run_id}/${task.task_id}/${task.map_index}/${job_dir}`;

function Name({ job }) {
  const { dag_id, task_id, map_index, run_id } = job.task;
  const mapped = map_index >= 0 ? ` [${map_index}]` : "";
  return html`<div className="ss-name">
    <${Link} to=${jobQuery(job.task)}><strong>${job.job ?? task_id}</strong></${Link}>
    <span>
      <${Link} to=${`/dags/${encodeURIComponent(dag_id)}`}>${dag_id}</${Link}>
      ${" › "}
      <${Link} to=${taskPath(job.task)} title=${run_id}>${task_id}${mapped}</${Link}>
    </span>
  </div>`;
}

export function taskPath({ dag_id, run_id, task_id, map_index }) {
  const mapped = map_index >= 0 ? `/mapped/${map_index}` : "";
  const [dag, run, task] = [dag_id, run_id, task_id].map(encodeURIComponent);
  return `/dags/${dag}/runs/${run}/tasks/${task}${mapped}`;
}

function Trouble({ job }) {
  return html`<div className="ss-trouble">
    <${State} text=${job.category === "unhealthy" ? "unhealthy" : job.state} category=${job.category} />
    ${job.reason ?? (job.category === "failed" ? job.next_step : null) ? html`<span title=${job.reason ?? job.next_step}>${job.reason ?? job.next_step}</span>` : null}
  </div>`;
}

function Watermark({ job }) {
  if (!job.watermark || moment(job.watermark) === NOTHING) return NOTHING;
  const distance = job.watermark_lag_s === null ? "" : `${duration(job.watermark_lag_s)} behind`;
  return html`<div className="ss-two"><span>${distance || moment(job.watermark)}</span>
    ${distance ? html`<small>${moment(job.watermark)}</small>` : null}</div>`;
}

const COLUMNS = [
  { title: "Stream", of: (job) => html`<${Name} job=${job} />` },
  { title: "State", of: (job) => html`<${Trouble} job=${job} />` },
  { title: "Rows", isNumber: true, of: (job) => rate(job.rows_per_second) },
  { title: "Backlog", isNumber: true, of: (job) => short(job.backlog) },
  { title: "Watermark", of: (job) => (job.watermark && moment(job.watermark) !== NOTHING ? html`<${Watermark} job=${job} />` : NOTHING) },
  { title: "State rows", isNumber: true, of: (job) => short(job.state_rows) },
  { title: "Last commit", isNumber: true, of: (job) => (job.last_commit_age_s === null ? NOTHING : html`<span className="ss-when" title=${moment(job.last_commit)}>${duration(job.last_commit_age_s)} ago</span>`) },
  { title: "Restarts", isNumber: true, of: (job) => (job.restarts ? whole(job.restarts) : NOTHING) },
  { title: "Savepoint", of: (job) => (job.newest_savepoint ? html`<${Link} to=${jobQuery(job.task, "savepoints")} title=${job.newest_savepoint} className="ss-when">${moment(job.newest_savepoint_taken)}</${Link}>` : NOTHING) },
  { title: "Batch time", of: (job) => (job.batch_ms.length > 1 ? html`<${Sparkline} values=${job.batch_ms} label="batch time" />` : NOTHING) },
];
