// The savepoints of a stream.
import { React, html } from "./host.js";
import { Ask } from "./actions.js";
import { jobPath, useData } from "./api.js";
import { NOTHING, bytes, duration, moment } from "./format.js";
import { Copy, Note, Table, Waiting } from "./parts.js";
import { Plots, growthPlots } from "./plots.js";

const VERIFY = ["Verify", "Every file is compared with its size and checksum; of a large state this takes its time."];
const DISPOSE = ["Dispose", "The savepoint is removed. What newer ones share with it stays."];

export function Savepoints({ task, overview }) {
  const { data, error, reload } = useData(jobPath(task, "savepoints"));
  const [asked, setAsked] = React.useState(null);
  if (!data) return html`<${Waiting} error=${error} />`;
  const may = overview.data?.may_act;
  const [title, text] = asked?.action === "dispose" ? DISPOSE : VERIFY;
  const { times, plots } = growthPlots(data.savepoints);
  return html`<div>
    <${Note} error=${error} />
    ${times.length > 1 ? html`<${Plots} times=${times} plots=${plots} sync="savepoints" revision=${`${times.length} ${times.at(-1)}`} />` : null}
    <${Table} caption="Savepoints" rows=${data.savepoints.map(withChange)} keyOf=${(s) => s.name} columns=${columnsOf(may, setAsked)} empty="No savepoint lies in the job's own folder." />
    ${asked
      ? html`<${Ask} task=${task} token=${overview.data?.job.lease?.token ?? null} action=${asked.action} title=${`${title} ${asked.name}`} text=${text} typed=${asked.action === "dispose" ? asked.name : null} savepoint=${asked.name} close=${() => {
          setAsked(null);
          reload();
        }} />`
      : null}
  </div>`;
}

/** A savepoint, and by how many bytes it is larger than the one before it. */
const withChange = (saved, at, all) => {
  const before = all[at + 1]?.bytes;
  return { ...saved, change: saved.bytes === null || before === null || before === undefined ? null : saved.bytes - before };
};

function columnsOf(may, ask) {
  return [
    { title: "Name", of: (s) => html`<div className="ss-two"><strong>${s.name}</strong>${s.problem ? html`<small className="ss-long">${s.problem}</small>` : null}</div>` },
    { title: "Origin", of: (s) => s.origin ?? NOTHING },
    { title: "Taken", of: (s) => (s.taken ? html`<div className="ss-two"><span>${duration(s.age_s)} ago</span><small>${moment(s.taken)}</small></div>` : NOTHING) },
    { title: "Aligned", of: (s) => (s.is_aligned === null ? NOTHING : s.is_aligned ? "yes" : "no, with a batch in flight") },
    { title: "Size", isNumber: true, of: (s) => bytes(s.bytes) },
    { title: "Change", isNumber: true, of: (s) => (s.change === null ? NOTHING : `${s.change < 0 ? "−" : "+"}${bytes(Math.abs(s.change))}`) },
    { title: "Queries", of: (s) => (s.queries.length ? s.queries.map((q) => html`<div key=${q.name} className="ss-two"><span>${q.name} after batch ${q.batch}</span>${moment(q.watermark) === NOTHING ? null : html`<small>watermark ${moment(q.watermark)}</small>`}</div>`) : NOTHING) },
    { title: "Labels", of: (s) => Object.entries(s.labels).map(([k, v]) => `${k}=${v}`).join(", ") || NOTHING },
    {
      title: "Use",
      of: (s) =>
        s.url
          ? html`<div className="ss-row">
              <${Copy} label="copy from_savepoint" text=${`from_savepoint=${JSON.stringify(s.url)}`} />
              ${may ? ["verify", "dispose"].map((action) => html`<button key=${action} type="button" className="ss-button ss-small" aria-label=${`${action} ${s.name}`} onClick=${() => ask({ action, name: s.name })}>${action} …</button>`) : null}
            </div>`
          : NOTHING,
    },
  ];
}
