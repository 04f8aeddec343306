// The overview of a stream: what it is made of, and how it goes.
import { html } from "./host.js";
import { RowCounts } from "./row_counts.js";
import { RunPlots } from "./by_run.js";
import { NOTHING, count, duration, lateRows, lostRows, moment, rate, sentence, short, sliceName, whole, words } from "./format.js";
import { Facts, Id, Waiting } from "./parts.js";
import { Plots, batchPlots, hourPlots } from "./plots.js";

export function Overview({ task, overview, params, go }) {
  const { data, error } = overview;
  if (!data) return html`<${Waiting} error=${error} />`;
  const { job, histories } = data;
  const queries = queriesOf(data);
  const name = params.get("query");
  const history = histories.find((h) => h.query === name) ?? histories[0];
  return html`<div>
    ${data.unfinished ? html`<p className="ss-note ss-note-warning">${sentence(data.unfinished)}</p>` : null}
    <${Upgrade} upgrade=${data.upgrade} />
    <${Facts} facts=${factsOf(job)} />
    ${queries.map((query) => html`<${Query} key=${query.name} query=${query} go=${go} />`)}
    ${histories.length > 1
      ? html`<${Choice} label="Plots of the query" chosen=${history.query} names=${histories.map((h) => [h.query, h.query])} choose=${(query) => go({ query })} />`
      : null}
    ${history?.batches.length
      ? html`<${History} history=${history} isLive=${job.is_live} marks=${data.marks} span=${params.get("span")} go=${go} />`
      : html`<p className="ss-muted">${isDriven(job) || job.state === "starting" ? "No history yet: the plots begin with the first batches that the driver records." : "This run has no history of batches."}</p>
          <${RunPlots} task=${task} />`}
  </div>`;
}

const UPGRADES = {
  stopping: "An upgrade is under way: this version is stopped, and then the one in",
  trial: "An upgrade is under way: on trial is the version in",
  accepted: "Another version has taken over, and this one does not start any more. It is in",
  rejected: "An upgrade was rejected, and what it has written is being reverted. Its version is in",
  "rolled back": "An upgrade was rejected, and this version continues. The other one is in",
};

function Upgrade({ upgrade }) {
  if (!upgrade) return null;
  const { step, to, began, reason } = upgrade;
  return html`<p className=${`ss-note ss-note-${step === "rejected" || step === "rolled back" ? "warning" : "calm"}`}>
    ${UPGRADES[step] ?? `An upgrade is ${step}: the other version is in`} <code>${to}</code> (begun ${moment(began)}).
    ${reason ? ` ${sentence(reason)}` : ""}
  </p>`;
}

function History({ history, isLive, marks, span, go }) {
  const isByHour = span === "hours" && history.hours.length > 0;
  const { times, plots } = isByHour ? hourPlots(history) : batchPlots(history, isLive);
  const names = [["batches", "the last batches"], ["hours", "hours before them"]];
  return html`<div>
    ${history.hours.length
      ? html`<${Choice} label="Plots of" chosen=${isByHour ? "hours" : "batches"} names=${names} choose=${(name) => go({ span: name })} />`
      : null}
    <${Plots} key=${isByHour} times=${times} plots=${plots} marks=${marks} sync=${history.query} revision=${history.updated} />
  </div>`;
}

function Choice({ label, names, chosen, choose }) {
  return html`<div className="ss-row ss-choice" role="group" aria-label=${label}>
    ${names.map(([name, title]) => html`<button key=${name} type="button" className="ss-button ss-small" aria-pressed=${name === chosen} onClick=${() => choose(name)}>${title}</button>`)}
  </div>`;
}

const isDriven = ({ lease }) => lease && ["live", "unknown"].includes(lease.liveness);

function factsOf(job) {
  const watermark = moment(job.watermark);
  const behind = job.watermark_lag_s === null ? "" : ` (${duration(job.watermark_lag_s)} behind)`;
  const age = job.last_commit_age_s;
  return [
    ["Job", job.job === job.task.task_id ? null : job.job],
    ["Slice", job.slice ? sliceName(job.slice) : null],
    ["Rows read", job.rows_read === null ? null : count(job.rows_read, job.rows_minimum)],
    ["Rows written", job.rows_written === null ? null : count(job.rows_written, job.rows_minimum)],
    ["Rate", job.rows_per_second === null ? null : rate(job.rows_per_second)],
    ["Backlog", job.backlog === null ? null : whole(job.backlog)],
    ["Watermark", watermark === NOTHING ? null : watermark + behind],
    ["State", job.state_rows === null ? null : `${short(job.state_rows)} rows`],
    ["Late rows", lateRows(job)],
    ["Lost rows", lostRows(job)],
    ["Last commit", age === null ? null : `${duration(age)} ago`],
    ["Mode", job.mode ? words(job.mode) : null],
    ["Duration", job.duration_s === null ? null : duration(job.duration_s)],
    ["Run", job.spark_run_id ? html`<${Id} text=${job.spark_run_id} />` : null],
    ["Attempts", job.attempts ? whole(job.attempts) : null],
    ["Restarts", job.restarts ? whole(job.restarts) : null],
    ["Driver", isDriven(job) ? `${job.lease.host}, lease ${job.lease.token} (${job.lease.liveness})` : null],
    ["Job directory", html`<${Id} text=${job.job_dir} />`],
  ];
}

/** The queries of the newest run: as its final checkpoint has them, else as its driver has reported. */
function queriesOf({ progress, final, does }) {
  const [reported, ended] = [progress?.queries ?? {}, final?.queries ?? {}];
  const names = new Set([...Object.keys(reported), ...Object.keys(ended)]);
  const bound = (final ?? progress)?.late_minimum ? "at least " : "";
  return [...names].map((name) => {
    const [last, end] = [reported[name] ?? {}, ended[name]];
    const now = end ?? last;
    return {
      name,
      phase: end ? (end.finished ? "finished" : "suspended") : last.phase,
      batch: (end ? end.batch_id : last.batch) ?? null,
      backlog: (end ? null : last.backlog) ?? {},
      idle: (end ? null : last.idle) ?? [],
      batch_sizing: end || !last.batch_sizing ? null : batchSizingOf(last.batch_sizing),
      sources: (now.sources ?? []).map((part) => partOf(part, end)),
      operators: (now.operators ?? []).map((part) => ({ ...partOf(part, end), ...operatorOf(part, does, bound) })),
      sinks: (now.sinks ?? []).map((part) => ({ name: part.name ?? "?", detail: Number.isInteger(part.rows) ? `${whole(part.rows)} ${part.quarantine ? "quarantined rows" : "rows"}` : null })),
      rowCounts: now.row_counts ?? null,
    };
  });
}

const partOf = ({ name, finish_state: state }, end) => ({ name: name ?? "?", finish_state: end && state === "running" ? null : state });

/** A stateful operator by the name that the job gave it, or by what it does. */
function operatorOf({ name, id, kind, state_rows: rows, late_rows: late, ignored_timers: ignored }, does, bound) {
  const number = id ?? name;
  const hasName = name && !/^\d+$/.test(name) && name !== `op${number}`;
  const action = does[kind] ?? kind;
  const facts = [
    hasName && !name.startsWith(action) ? action : null,
    Number.isInteger(rows) ? `${whole(rows)} state rows` : null,
    late ? `${bound}${whole(late)} late rows` : null,
    ignored ? `${whole(ignored)} ignored timers` : null,
  ];
  return { name: hasName ? name : `${action} (${number})`, detail: facts.filter(Boolean).join(", ") || null };
}

function batchSizingOf({ decision, reason, target_s: target, sources }) {
  const limits = Object.entries(sources).map(([name, { limit, unit }]) => `${whole(limit)} ${unit} of ${name}`);
  return `${decision}: ${reason} (target ${target} s)${limits.length ? `; a batch reads ${limits.join(", ")}` : ""}`;
}

function Query({ query, go }) {
  const backlog = Object.entries(query.backlog).map(([name, value]) => `${measure(name)} ${whole(value)}`).join(", ");
  const said = [
    query.phase ? words(query.phase) : null,
    query.batch === null ? null : `batch ${query.batch}`,
    backlog ? `backlog ${backlog}` : null,
    query.idle.length ? `idle: ${query.idle.join(", ")}` : null,
  ].filter(Boolean);
  return html`<section className="ss-query" aria-label=${`Query ${query.name}`}>
    <h2>${query.name} <small>${said.join(" · ")}</small></h2>
    <div className="ss-flow">
      <${Column} title="Sources" parts=${query.sources} />
      <span className="ss-arrow" aria-hidden="true">→</span>
      ${query.operators.length
        ? html`<${Column} title="Stateful operators" parts=${query.operators} /><span className="ss-arrow" aria-hidden="true">→</span>`
        : null}
      <${Column} title="Sinks" parts=${query.sinks} none=${query.batch === null ? "nothing is committed yet" : `batch ${query.batch}`} />
    </div>
    <${RowCounts} counts=${query.rowCounts} name=${query.name} go=${go} />
    ${query.batch_sizing ? html`<p className="ss-muted">Batch size ${query.batch_sizing}</p>` : null}
  </section>`;
}

/** A measure of Spark's in words: maxOffsetsBehindLatest, numFilesOutstanding. */
const measure = (name) => words(name.replace(/^num(?=[A-Z])/, "").replaceAll(/([a-z])([A-Z])/g, "$1 $2"));

function Column({ title, parts, none = NOTHING }) {
  return html`<div className="ss-column">
    <h3>${title}</h3>
    ${parts.length
      ? html`<ul>
          ${parts.map(
            (p, i) =>
              html`<li key=${i}>
                <strong>${p.name}</strong>
                ${p.finish_state ? html`<span className="ss-mark">${words(p.finish_state)}</span>` : null}
                ${p.detail ? html`<small>${p.detail}</small>` : null}
              </li>`,
          )}
        </ul>`
      : html`<p className="ss-muted">${none}</p>`}
  </div>`;
}
