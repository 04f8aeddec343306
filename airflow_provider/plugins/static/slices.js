// The slices of a task: a grid with a cell for each, and a table.
import { Link, React, html, useSearchParams } from "./host.js";
import { dagPath, jobQuery, seriesOf, streamName, taskPath } from "./addresses.js";
import { useData } from "./api.js";
import { NOTHING, count, duration, moment, sliceName, whole } from "./format.js";
import { Note, STATES, State, Table, Waiting, isBad, toneOf } from "./parts.js";

// Each state has a sign, so that the colour is not needed to tell them apart.
const SIGNS = {
  unhealthy: "!",
  rewound: "↶",
  starting: "▷",
  running: "▶",
  waiting: "○",
  cancelled: "⊘",
  suspended: "‖",
  finished: "✓",
};
const signOf = (state) => SIGNS[state] ?? (isBad(state) ? "✕" : "?");
const MOST_CELLS = 60; // in a row of the list; the view of the slices has all

const hasView = (job) => job.job_dir !== null && job.state !== "waiting";
const placeOf = (job) => (hasView(job) ? jobQuery(job.task) : taskPath(job.task));

/** The slices in the order of their data: by time, then by key. */
const inOrder = (slices) =>
  [...slices].sort((a, b) => {
    const [x, y] = [a, b].map(({ slice }) => slice.start ?? slice.key ?? slice.name);
    return x < y ? -1 : x > y ? 1 : 0;
  });

/** The streams as rows of the list: a job for itself, or a series with all of its slices. */
export function rowsOf(jobs) {
  const series = new Map();
  const rows = [];
  for (const job of jobs) {
    const key = job.is_slice ? seriesOf(job.task) : null;
    const known = series.get(key);
    if (known) known.slices.push(job);
    else {
      // The jobs come with trouble first, so the first slice is the one that needs attention most.
      const row = { job, slices: key === null ? null : [job] };
      if (key !== null) series.set(key, row);
      rows.push(row);
    }
  }
  return rows;
}

/** How many slices are in each state, in words. */
export function summary(slices) {
  const counts = STATES.map((state) => [state, slices.filter((job) => job.state === state).length]);
  return counts
    .filter(([, n]) => n)
    .map(([state, n]) => `${whole(n)} ${state}`)
    .join(", ");
}

/** A cell for each slice; the arrow keys, Home and End go from cell to cell. */
export function Grid({ slices, most = slices.length }) {
  const list = React.useRef(null);
  const shown = inOrder(slices).slice(-most);
  const [at, setAt] = React.useState(0);
  const current = Math.min(at, shown.length - 1);
  function onKeyDown(event) {
    const last = shown.length - 1;
    const keys = { ArrowRight: Math.min(current + 1, last), ArrowLeft: Math.max(current - 1, 0), Home: 0, End: last };
    const next = keys[event.key];
    if (next === undefined) return;
    event.preventDefault();
    setAt(next);
    list.current.querySelectorAll("a")[next].focus();
  }
  return html`<ol className="ss-grid" ref=${list} aria-label="Slices" onKeyDown=${onKeyDown}>
    ${shown.map((job, i) => {
      const said = `${sliceName(job.slice)}: ${job.state}${job.reason ? `, ${job.reason}` : ""}`;
      return html`<li key=${job.task.run_id + job.job_dir}>
        <${Link} to=${placeOf(job)} tabIndex=${i === current ? 0 : -1} onFocus=${() => setAt(i)} className=${`ss-cell ss-cell-${toneOf(job.state)}`} title=${said} aria-label=${said}><span aria-hidden="true">${signOf(job.state)}</span></${Link}>
      </li>`;
    })}
  </ol>`;
}

/** What the row of a series says instead of the state of one job. */
export function SeriesState({ slices }) {
  return html`<div className="ss-trouble">
    <${State} text=${slices[0].state} />
    <small>${summary(slices)}</small>
    <${Grid} slices=${slices} most=${MOST_CELLS} />
  </div>`;
}

export function Slices({ task }) {
  const [params, setParams] = useSearchParams();
  const { data, error } = useData("jobs");
  const chosen = params.get("state");
  const all = inOrder((data?.jobs ?? []).filter((job) => job.is_slice && seriesOf(job.task) === seriesOf(task)));
  const choose = (state) =>
    setParams((now) => {
      if (state) now.set("state", state);
      else now.delete("state");
      return now;
    }, { replace: true });
  const shown = chosen ? all.filter((job) => job.state === chosen) : all;
  return html`<div className="ss-page">
    <nav aria-label="Way back" className="ss-crumbs">
      <${Link} to="?">Streams</${Link}>${" › "}
      <${Link} to=${dagPath(task.dag_id)}>${task.dag_id}</${Link}>
    </nav>
    <header className="ss-head">
      <h1>${streamName(task)}</h1>
      ${data ? html`<span className="ss-muted">${all.length === 1 ? "1 slice" : `${whole(all.length)} slices`}</span>` : null}
    </header>
    <${Note} error=${data && error} />
    ${data
      ? html`<${Legend} slices=${all} chosen=${chosen} choose=${choose} />
          ${shown.length ? html`<${Grid} slices=${shown} />` : null}
          <${Table} caption="Slices" columns=${COLUMNS} rows=${[...shown].reverse()} keyOf=${(job) => job.task.run_id + job.job_dir} empty="This task has no slices like these." />`
      : html`<${Waiting} error=${error} />`}
  </div>`;
}

/** The legend of the grid; each sign shows only the slices in that state. */
function Legend({ slices, chosen, choose }) {
  const present = STATES.filter((state) => state === chosen || slices.some((job) => job.state === state));
  return html`<div className="ss-counters" role="group" aria-label="Show only slices that are">
    ${present.map(
      (state) =>
        html`<button key=${state} type="button" aria-pressed=${chosen === state} className=${`ss-counter ss-edge-${toneOf(state)}`} onClick=${() => choose(chosen === state ? null : state)}>
          <span className=${`ss-cell ss-cell-${toneOf(state)}`} aria-hidden="true">${signOf(state)}</span> <strong>${slices.filter((job) => job.state === state).length}</strong> ${state}
        </button>`,
    )}
  </div>`;
}

const COLUMNS = [
  { title: "Slice", of: (job) => html`<${Link} to=${placeOf(job)} title=${job.slice.name}><strong className="ss-when">${sliceName(job.slice)}</strong></${Link}>` },
  {
    title: "State",
    of: (job) =>
      html`<div className="ss-trouble"><${State} text=${job.state} />${job.reason ? html`<span title=${job.reason}>${job.reason}</span>` : null}</div>`,
  },
  { title: "Rows read", isNumber: true, of: (job) => count(job.rows_read, job.rows_minimum) },
  { title: "Rows written", isNumber: true, of: (job) => count(job.rows_written, job.rows_minimum) },
  { title: "Duration", isNumber: true, of: (job) => duration(job.duration_s) },
  { title: "Started", of: (job) => (job.started ? html`<span className="ss-when">${moment(job.started)}</span>` : NOTHING) },
  { title: "Ended", of: (job) => (job.ended ? html`<span className="ss-when">${moment(job.ended)}</span>` : NOTHING) },
  { title: "Attempts", isNumber: true, of: (job) => (job.attempts ? whole(job.attempts) : NOTHING) },
];
