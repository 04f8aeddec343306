// The failures of the newest runs, by root cause.
import { html } from "./host.js";
import { jobPath, useData } from "./api.js";
import { NOTHING, moment, sentence, words } from "./format.js";
import { Id, Note, Table, Waiting, isBad } from "./parts.js";

export function Failures({ task, go, overview }) {
  const { data, error } = useData(jobPath(task, "failures"));
  if (!data) return html`<${Waiting} error=${error} />`;
  const isOwn = ({ occurrences }) => !data.shown || occurrences.some((o) => o.run_id === data.shown);
  const [own, others] = [data.failures.filter(isOwn), data.failures.filter((cause) => !isOwn(cause))];
  const causes = (some) => some.map((cause) => html`<${Cause} key=${cause.reason} cause=${cause} go=${go} />`);
  return html`<div>
    <${Note} error=${error} />
    ${causes(own)}
    ${others.length ? html`<h2>${own.length ? "Of other runs" : "This run has no failure of its own; other runs have"}</h2>` : null}
    ${causes(others)}
    ${data.failures.length ? null : html`<p className="ss-muted">${isBad(overview.data?.job.state) ? "No driver has recorded a failure: the reason is above." : "The newest runs have no failure."}</p>`}
  </div>`;
}

function Cause({ cause: { failure, reason: title, helps, occurrences }, go }) {
  const times = occurrences.length;
  const isOver = occurrences.every((o) => o.recovered);
  return html`<section className="ss-query" aria-label=${title}>
    <h2 className="ss-long">${title}</h2>
    <p><span className=${`ss-state ss-${failure.failure_class === "NON_RECOVERABLE" ? "bad" : "warning"}`}>${words(failure.failure_class)}</span>
      ${" "}${times === 1 ? "once" : `${times} times`}${failure.rule ? `: ${failure.rule}` : ""}${isOver ? ", recovered since" : ""}</p>
    <p className="ss-note ss-note-calm"><strong>${isOver ? "If it happens again: " : "What to do: "}</strong>${failure.remedy ? `${sentence(failure.remedy)} ` : ""}${helps}</p>
    ${failure.root_cause && failure.root_cause !== title ? html`<details><summary>Why</summary><pre className="ss-pre">${failure.root_cause}</pre></details>` : null}
    <${Table} caption=${`When it happened: ${title}`} rows=${occurrences} columns=${COLUMNS} />
    <button type="button" className="ss-button ss-small" onClick=${() => go({ tab: "log", spark_run_id: occurrences[0].run_id, driver_id: occurrences[0].driver_id })}>Driver log</button>
  </section>`;
}

const COLUMNS = [
  { title: "When", of: (o) => (o.at ? moment(o.at) : NOTHING) },
  { title: "Run", of: (o) => html`<${Id} text=${o.run_id} />` },
  { title: "Attempt", isNumber: true, of: (o) => o.attempt ?? NOTHING },
  { title: "Query", of: (o) => o.failure.query ?? NOTHING },
  { title: "Batch", isNumber: true, of: (o) => o.failure.batch ?? NOTHING },
  { title: "Where", of: (o) => (o.location ? html`<span className="ss-long">${o.location}</span>` : NOTHING) },
  { title: "Host", of: (o) => o.failure.host || NOTHING },
  { title: "What followed", of: (o) => html`<div className="ss-two"><span>${o.is_restarted ? "restart in the driver" : "end of the attempt"}</span>${o.recovered ? html`<small>recovered: the run ended well ${moment(o.recovered)}</small>` : null}</div>` },
  { title: "Details", of: (o) => (o.failure.details ? html`<span className="ss-long">${o.failure.details}</span>` : NOTHING) },
];
