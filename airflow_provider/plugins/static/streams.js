// The list of all streams, trouble first.
import { Link, html, useSearchParams } from "./host.js";
import { dagPath, jobQuery, seriesOf, slicesQuery, streamName, taskPath } from "./addresses.js";
import { useData } from "./api.js";
import { NOTHING, duration, moment, rate, short, sliceName, whole } from "./format.js";
import { Note, STATES, Sparkline, State, Table, Waiting, isBad, toneOf } from "./parts.js";
import { SeriesState, rowsOf } from "./slices.js";

const ALWAYS = ["running", "unhealthy", "failed", "suspended", "finished"];

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
      (!chosen || job.state === chosen || (chosen === "failed" && job.failed_count)) &&
      textOf(job).toLowerCase().includes(wanted),
  );
  return html`<div className="ss-page">
    <header className="ss-head">
      <h1>Streams</h1>
      <label className="ss-search">
        <span className="ss-hidden">Search by DAG, task or job</span>
        <input type="search" placeholder="DAG, task or job" value=${wanted} onChange=${(e) => change("search", e.target.value)} />
      </label>
    </header>
    <${Counters} counters=${data?.counters ?? {}} chosen=${chosen} choose=${(state) => change("state", state)} />
    <${Note} error=${data && error} />
    ${data
      ? html`<${Table} caption="Streams" columns=${COLUMNS} rows=${rowsOf(jobs)} keyOf=${keyOf} empty=${data.jobs.length ? "no stream like this" : "No task of this provider has run yet."} />`
      : html`<${Waiting} error=${error} />`}
  </div>`;
}

function Counters({ counters, chosen, choose }) {
  const others = STATES.filter((state) => !ALWAYS.includes(state) && (counters[state] || chosen === state));
  const shown = [...ALWAYS, ...others];
  return html`<div className="ss-counters" role="group" aria-label="Show only streams that are">
    ${shown.map(
      (state) =>
        html`<button key=${state} type="button" aria-pressed=${chosen === state} className=${`ss-counter ss-edge-${toneOf(state)}`} onClick=${() => choose(chosen === state ? null : state)}>
          <strong>${counters[state] ?? 0}</strong> ${state}
        </button>`,
    )}
  </div>`;
}

/** What the search looks at. */
const textOf = ({ task, job, slice }) =>
  `${task.dag_id} ${task.task_id} ${job ?? ""} ${slice ? `${sliceName(slice)} ${slice.name}` : ""}`;

const keyOf = ({ job, slices }) => (slices ? seriesOf(job.task) : `${seriesOf(job.task)} ${job.task.run_id} ${job.job_dir}`);

function Name({ job, slices }) {
  const { task } = job;
  return html`<div className="ss-name">
    <${Link} to=${slices ? slicesQuery(task) : jobQuery(task)}><strong>${streamName(task)}</strong></${Link}>
    <span>
      <${Link} to=${dagPath(task.dag_id)}>${task.dag_id}</${Link}>
      ${slices
        ? ` › ${slices.length === 1 ? "1 slice" : `${whole(slices.length)} slices`}`
        : html` › <${Link} to=${taskPath(task)} title=${task.run_id}>task</${Link}>${job.job && job.job !== task.task_id ? ` › job ${job.job}` : ""}`}
    </span>
  </div>`;
}

function Trouble({ job }) {
  const said = job.reason ?? (isBad(job.state) || job.state === "starting" ? job.next_step : null);
  return html`<div className="ss-trouble">
    <${State} text=${job.state} />
    ${said ? html`<span title=${said}>${said}</span>` : null}
    <${Failed} job=${job} />
  </div>`;
}

/** The failed tasks of a stream that continued after them. */
function Failed({ job: { failed_tasks: failed, failed_count: count } }) {
  if (!count) return null;
  const more = count - failed.length;
  return html`<div className="ss-failed"><strong>${count === 1 ? "1 failed task" : `${whole(count)} failed tasks`}</strong>${" "}
    ${failed.map(({ task, slice }, i) => html`<span key=${task.run_id}>${i ? ", " : ""}<${Link} to=${jobQuery(task)} title=${task.run_id}>${slice ? sliceName(slice) : task.run_id}</${Link}></span>`)}
    ${more ? ` and ${whole(more)} before` : ""}
  </div>`;
}

function Watermark({ job }) {
  if (!job.watermark || moment(job.watermark) === NOTHING) return NOTHING;
  const distance = job.watermark_lag_s === null ? "" : `${duration(job.watermark_lag_s)} behind`;
  return html`<div className="ss-two"><span>${distance || moment(job.watermark)}</span>
    ${distance ? html`<small>${moment(job.watermark)}</small>` : null}</div>`;
}

/** A cell of a stream for itself; slices say theirs in a view of their own. */
const ofOne = (say) => ({ job, slices }) => (slices ? NOTHING : say(job));

const COLUMNS = [
  { title: "Stream", of: (row) => html`<${Name} ...${row} />` },
  { title: "State", of: ({ job, slices }) => (slices ? html`<${SeriesState} slices=${slices} />` : html`<${Trouble} job=${job} />`) },
  { title: "Rows", isNumber: true, of: ofOne((job) => rate(job.rows_per_second)) },
  { title: "Backlog", isNumber: true, of: ofOne((job) => short(job.backlog)) },
  { title: "Watermark", of: ofOne((job) => (job.watermark && moment(job.watermark) !== NOTHING ? html`<${Watermark} job=${job} />` : NOTHING)) },
  { title: "State rows", isNumber: true, of: ofOne((job) => short(job.state_rows)) },
  { title: "Last commit", isNumber: true, of: ofOne((job) => (job.last_commit_age_s === null ? NOTHING : html`<span className="ss-when" title=${moment(job.last_commit)}>${duration(job.last_commit_age_s)} ago</span>`)) },
  { title: "Restarts", isNumber: true, of: ofOne((job) => (job.restarts ? whole(job.restarts) : NOTHING)) },
  { title: "Savepoint", of: ofOne((job) => (job.newest_savepoint ? html`<${Link} to=${jobQuery(job.task, "savepoints")} title=${job.newest_savepoint} className="ss-when">${moment(job.newest_savepoint_taken)}</${Link}>` : NOTHING)) },
  { title: "Batch time", of: ofOne((job) => (job.batch_ms.length > 1 ? html`<${Sparkline} values=${job.batch_ms} label="batch time" />` : NOTHING)) },
];
