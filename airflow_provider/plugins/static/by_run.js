// The runs of a job that continues from run to run: what each has read, written, dropped and quarantined.
import { Link, html } from "./host.js";
import { jobQuery } from "./addresses.js";
import { jobPath, useData } from "./api.js";
import { NOTHING, count, duration, moment, sliceName, whole } from "./format.js";
import { Id, Note, State, Table, Waiting } from "./parts.js";
import { Plots, runPlots } from "./plots.js";

const LEAST_MS = 30_000; // it reads some documents of each run

const useRuns = (task) => useData(jobPath(task, "history"), { leastMs: LEAST_MS });

export function ByRun({ task }) {
  const { data, error } = useRuns(task);
  if (!data) return html`<${Waiting} error=${error} />`;
  return html`<div>
    <${Note} error=${error} />
    <${Charts} runs=${data.runs} />
    <${Table} caption="Runs" rows=${data.runs} keyOf=${(run) => run.run_id} columns=${columnsOf(data.shown)} empty="no run has begun" />
  </div>`;
}

/** The plots alone, where a run has none of its own. */
export function RunPlots({ task }) {
  const { data } = useRuns(task);
  return data ? html`<${Charts} runs=${data.runs} />` : null;
}

function Charts({ runs }) {
  if (runs.length < 2) return null;
  const { times, plots } = runPlots([...runs].reverse());
  return html`<${Plots} times=${times} plots=${plots} sync="runs" revision=${`${runs.length} ${runs[0].run_id} ${runs[0].rows_read}`} />`;
}

const rowsOf = (value, { rows_minimum: isMinimum }) => count(value, isMinimum);

function columnsOf(shown) {
  return [
    { title: "Run", of: (run) => html`<div className="ss-two"><${Name} run=${run} />${run.run_id === shown ? html`<small>the run of this task</small>` : null}</div>` },
    { title: "State", of: ({ state }) => html`<${State} text=${state} />` },
    { title: "Rows read", isNumber: true, of: (run) => rowsOf(run.rows_read, run) },
    { title: "Rows written", isNumber: true, of: (run) => rowsOf(run.rows_written, run) },
    { title: "Late", isNumber: true, of: ({ late_rows: late }) => whole(late) },
    { title: "Quarantined", isNumber: true, of: ({ quarantined_rows: rows }) => whole(rows) },
    { title: "Started", of: ({ started }) => moment(started) },
    { title: "Took", isNumber: true, of: ({ duration_s: seconds }) => (seconds === null ? NOTHING : duration(seconds)) },
  ];
}

function Name({ run: { run_id: id, interval, task } }) {
  const name = interval ? sliceName({ start: interval[0], end: interval[1] }) : html`<${Id} text=${id} />`;
  return task ? html`<${Link} to=${jobQuery(task)} title=${id}>${name}</${Link}>` : html`<span title=${id}>${name}</span>`;
}
