// The savepoints of a stream.
import { React, html } from "./host.js";
import { Ask } from "./actions.js";
import { jobPath, useData } from "./api.js";
import { NOTHING, bytes, duration, moment } from "./format.js";
import { Copy, Note, Table, Waiting } from "./parts.js";

const VERIFY = ["Verify", "Every file is compared with its size and checksum; of a large state this takes its time."];
const DISPOSE = ["Dispose", "The savepoint is removed. What newer ones share with it stays."];

export function Savepoints({ task, overview }) {
  const { data, error, reload } = useData(jobPath(task, "savepoints"));
  const [asked, setAsked] = React.useState(null);
  if (!data) return html`<${Waiting} error=${error} />`;
  const may = overview.data?.may_act;
  const [title, text] = asked?.action === "dispose" ? DISPOSE : VERIFY;
  return html`<div>
    <${Note} error=${error} />
    <${Table} caption="Savepoints" rows=${data.savepoints} keyOf=${(s) => s.name} columns=${columnsOf(may, setAsked)} empty="No savepoint lies in the job's own folder." />
    ${asked
      ? html`<${Ask} task=${task} token=${overview.data?.job.lease?.token ?? null} action=${asked.action} title=${`${title} ${asked.name}`} text=${text} typed=${asked.action === "dispose" ? asked.name : null} savepoint=${asked.name} close=${() => {
          setAsked(null);
          reload();
        }} />`
      : null}
  </div>`;
}

function columnsOf(may, ask) {
  return [
    { title: "Name", of: (s) => html`<div className="ss-two"><strong>${s.name}</strong>${s.problem ? html`<small className="ss-long">${s.problem}</small>` : null}</div>` },
    { title: "Origin", of: (s) => s.origin ?? NOTHING },
    { title: "Taken", of: (s) => (s.taken ? html`<div className="ss-two"><span>${duration(s.age_s)} ago</span><small>${moment(s.taken)}</small></div>` : NOTHING) },
    { title: "Aligned", of: (s) => (s.is_aligned === null ? NOTHING : s.is_aligned ? "yes" : "no, with a batch in flight") },
    { title: "Size", isNumber: true, of: (s) => bytes(s.bytes) },
    { title: "Queries", of: (s) => (s.queries.length ? s.queries.map((q) => `${q.name} after batch ${q.batch}`).join(", ") : NOTHING) },
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
