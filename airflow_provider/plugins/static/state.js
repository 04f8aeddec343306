// The state of a stream: its operators and tables with their sizes.
import { html } from "./host.js";
import { jobPath, useData } from "./api.js";
import { NOTHING, bytes, moment, whole } from "./format.js";
import { Facts, Note, Table, Waiting } from "./parts.js";

const LEAST_MS = 30_000; // it lists all files of the state

export function StateTables({ task }) {
  const { data, error } = useData(jobPath(task, "state"), { leastMs: LEAST_MS });
  if (!data) return html`<${Waiting} error=${error} />`;
  return html`<div>
    <${Note} error=${error} />
    <${Note} error=${data.problem} tone="calm" />
    ${data.queries.map((query) => html`<${Query} key=${query.name} query=${query} />`)}
    <p className="ss-muted">How it grows from savepoint to savepoint is shown with the savepoints. Its rows are read by <code>spark-stream state query</code>.</p>
  </div>`;
}

function Query({ query }) {
  const at = moment(query.watermark);
  return html`<section className="ss-query" aria-label=${`State of ${query.name}`}>
    <h2>${query.name} <small>after batch ${query.batch}${at === NOTHING ? "" : `, watermark ${at}`}</small></h2>
    ${query.operators.map((operator) => html`<${Operator} key=${operator.name} operator=${operator} />`)}
    ${query.operators.length ? null : html`<p className="ss-muted">This query keeps no state.</p>`}
  </section>`;
}

function Operator({ operator }) {
  const facts = [
    ["Operator", operator.title.startsWith(operator.does) ? null : operator.does],
    ["Size", bytes(operator.bytes)],
    ["Partitions", whole(operator.partitions)],
    ["Store", operator.provider],
    ["Input", INPUTS[operator.mark] ?? null],
  ];
  return html`<div>
    <h3>${operator.title}</h3>
    <${Facts} facts=${facts} />
    <${Table} caption=${`Tables of ${operator.title}`} rows=${operator.tables} keyOf=${(t) => t.name} columns=${COLUMNS} />
  </div>`;
}

// By how close its sources are to their end.
const INPUTS = { running: "still open", partly_finished: "some sources have ended", finished: "ended" };

const COLUMNS = [
  { title: "Table", of: (t) => html`<strong>${t.name}</strong>` },
  { title: "Rows are", of: (t) => t.rows_are },
  { title: "Keys", of: (t) => columnsOf(t, true) },
  { title: "Values", of: (t) => columnsOf(t, false) },
  { title: "Expires", of: (t) => (t.has_ttl ? "yes" : "no") },
];

const columnsOf = (table, isKey) =>
  table.columns.filter((c) => c.is_key === isKey).map((c) => html`<div key=${c.name} className="ss-long"><code>${c.name}</code> <small>${c.type}</small></div>`);
