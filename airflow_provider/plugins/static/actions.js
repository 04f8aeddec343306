// Actions on a stream; each goes with the lease that the reader sees.
import { React, html } from "./host.js";
import { get, jobPath, post } from "./api.js";

const POLL_MS = 1000;
const ON_DRIVER = {
  stop: ["Stop", "The driver ends the batch in flight, and then the run. The state stays: the next run continues from it."],
  "stop-savepoint": ["Stop with savepoint", "The driver ends the batch in flight and the run, and takes a savepoint of it."],
  drain: ["Drain", "Ends the job for good: all windows and timers are flushed. The job cannot run again after this."],
  cancel: ["Cancel", "The driver ends at once; the batch in flight runs again when the run resumes."],
};
const TAKE = ["Take savepoint", "A copy of the state, taken while the stream runs on."];

export function Actions({ task, overview, reload }) {
  const { job } = overview;
  const runs = job.lease && ["live", "unknown"].includes(job.lease.liveness);
  const [asked, setAsked] = React.useState(null);
  if (!overview.may_act || overview.newest) return null; // they are about the job as it is now
  const names = Object.entries(runs ? { ...ON_DRIVER, take: TAKE } : job.attempts ? { take: TAKE } : {});
  return html`<div className="ss-actions">
    ${names.map(
      ([name, [title]]) =>
        html`<button key=${name} type="button" className=${`ss-button ${name === "drain" ? "ss-grave" : ""}`} onClick=${() => setAsked(name)}>${title} …</button>`,
    )}
    ${asked
      ? html`<${Ask} task=${task} token=${job.lease?.token ?? null} action=${asked.replace("-savepoint", "")} title=${(ON_DRIVER[asked] ?? TAKE)[0]} text=${(ON_DRIVER[asked] ?? TAKE)[1]} typed=${asked === "drain" ? job.job : null} named=${asked === "stop-savepoint" ? `stop-${stamp()}` : null} close=${() => {
          setAsked(null);
          reload();
        }} />`
      : null}
  </div>`;
}

const stamp = () => new Date().toISOString().replaceAll(/[-:]|\.\d+Z/g, "");

/** A dialog that asks, sends, and says what has become of it. */
export function Ask({ task, token, action, title, text, typed, named, savepoint, close }) {
  const dialog = React.useRef(null);
  const [confirmed, setConfirmed] = React.useState("");
  const [name, setName] = React.useState(named ?? "");
  const [said, setSaid] = React.useState(null);
  React.useEffect(() => dialog.current?.showModal?.(), []);
  async function send(event) {
    event.preventDefault();
    setSaid({ message: "sent …", is_done: false, is_ok: true });
    try {
      const body = { token, confirmed: confirmed || null, savepoint: savepoint ?? (name || null) };
      let answer = await post(jobPath(task, `actions/${action}`), body);
      setSaid(answer);
      while (!answer.is_done && dialog.current?.open) {
        await new Promise((wake) => setTimeout(wake, POLL_MS));
        answer = await get(jobPath(task, `requests/${encodeURIComponent(answer.request_id)}`));
        setSaid(answer);
      }
    } catch (error) {
      setSaid({ message: error.message, is_done: true, is_ok: false });
    }
  }
  const id = `ss-ask-${action}`;
  return html`<dialog ref=${dialog} className="ss-dialog" aria-labelledby=${id} onClose=${close}>
    <form onSubmit=${send}>
      <h2 id=${id}>${title}</h2>
      <p>${text}</p>
      ${named === null || named === undefined ? null : html`<label><span>Name of the savepoint</span> <input value=${name} required onChange=${(e) => setName(e.target.value)} /></label>`}
      ${typed ? html`<label><span>Type <code>${typed}</code> to confirm</span> <input value=${confirmed} autoComplete="off" onChange=${(e) => setConfirmed(e.target.value)} /></label>` : null}
      <p role="status" aria-live="polite" className=${said && !said.is_ok ? "ss-note ss-note-bad" : "ss-said"}>${said?.message ?? ""}</p>
      <div className="ss-row">
        ${said?.is_ok ? null : html`<button type="submit" className="ss-button ss-main" disabled=${(said && !said.is_done) || (typed && confirmed !== typed)}>${title}</button>`}
        <button type="button" className="ss-button" onClick=${() => dialog.current.close()}>${said ? "Close" : "Not now"}</button>
      </div>
    </form>
  </dialog>`;
}
