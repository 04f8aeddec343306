// The end of a driver's log.
import { React, html } from "./host.js";
import { jobPath, useData } from "./api.js";
import { Note, Waiting } from "./parts.js";

export function DriverLog({ task, params, go }) {
  const runs = useData(jobPath(task, "runs"), { once: true });
  if (!runs.data) return html`<${Waiting} error=${runs.error} />`;
  const drivers = runs.data.runs.flatMap((run) =>
    run.attempts.filter((a) => a.has_log).map((a) => ({ run: run.run_id, driver: a.record.driver_id, attempt: a.record.attempt })),
  );
  const { shown } = runs.data;
  const chosen = drivers.find((d) => d.driver === params.get("driver_id")) ?? drivers.find((d) => !shown || d.run === shown);
  if (!drivers.length) return html`<p className="ss-muted">No driver of this stream has a log.</p>`;
  return html`<div>
    <label>Attempt
      <select value=${chosen?.driver ?? ""} onChange=${(e) => go({ driver_id: e.target.value })}>
        ${chosen ? null : html`<option value="">none of this run has a log</option>`}
        ${drivers.map((d) => html`<option key=${d.driver} value=${d.driver}>${d.attempt} of ${d.run}</option>`)}
      </select>
    </label>
    ${chosen ? html`<${Tail} key=${chosen.driver} task=${task} chosen=${chosen} />` : null}
  </div>`;
}

function Tail({ task, chosen }) {
  const query = { spark_run_id: chosen.run, driver_id: chosen.driver };
  const { data, error } = useData(jobPath(task, "log", query));
  const place = React.useRef(null);
  const last = data?.lines.at(-1);
  React.useEffect(() => {
    if (place.current) place.current.scrollTop = place.current.scrollHeight;
  }, [last]);
  if (!data) return html`<${Waiting} error=${error} />`;
  return html`<div>
    <${Note} error=${error} />
    <${Note} error=${data.problem} tone="warning" />
    ${data.is_cut ? html`<p className="ss-muted">The end of it; the task's log has all.</p>` : null}
    ${data.lines.length ? html`<pre className="ss-pre" tabIndex="0" ref=${place}>${data.lines.join("\n")}</pre>` : null}
  </div>`;
}
