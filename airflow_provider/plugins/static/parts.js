// Parts that several views share: badges, tables, sparklines, notes, what can be copied.
import { React, html } from "./host.js";
import { NOTHING, millis } from "./format.js";

// Of each state of a run, in the order of attention.
const TONES = {
  failed: "bad",
  killed: "bad",
  damaged: "bad",
  missing: "bad",
  unverified: "bad",
  unhealthy: "warning",
  unknown: "none",
  rewound: "none",
  absent: "none",
  starting: "running",
  running: "running",
  waiting: "none",
  cancelled: "warning",
  suspended: "calm",
  finished: "good",
};
export const STATES = Object.keys(TONES);
export const toneOf = (state) => TONES[(state ?? "").toLowerCase()] ?? "none";
export const isBad = (state) => toneOf(state) === "bad";

const TAIL = 26; // the moment and the digest of a run's id: where two of them differ

/** A run's id, or another long name: never broken, and cut in its middle. */
export function Id({ text }) {
  const at = Math.max(text.length - TAIL, 0);
  return html`<code className="ss-id" title=${text} tabIndex="0"><span className="ss-id-head">${text.slice(0, at)}</span><span>${text.slice(at)}</span></code>`;
}

export function State({ text }) {
  return html`<span className=${`ss-state ss-${toneOf(text)}`}>${(text ?? "unknown").toLowerCase()}</span>`;
}

const NARROW = 6; // so many columns fit a window of half a screen

/**
 * A table; on a narrow page its rows are cards. Columns: title, of(row), isNumber.
 * The roles are said because cards are no table by their display, and still are to a screen reader.
 */
export function Table({ caption, columns, rows, keyOf, empty = "nothing yet" }) {
  if (!rows.length) return html`<p className="ss-muted">${empty}</p>`;
  return html`<div className="ss-scroll">
    <table role="table" className=${`ss-table ${columns.length > NARROW ? "ss-wide" : ""}`}>
      <caption className="ss-hidden">${caption}</caption>
      <thead role="rowgroup">
        <tr role="row">
          ${columns.map(
            (c) =>
              html`<th key=${c.title} role="columnheader" scope="col" className=${c.isNumber ? "ss-number" : ""}>${c.title}</th>`,
          )}
        </tr>
      </thead>
      <tbody role="rowgroup">
        ${rows.map(
          (row, i) =>
            html`<tr key=${keyOf ? keyOf(row) : i} role="row">
              ${columns.map((c) => {
                const value = c.of(row);
                const kind = `${c.isNumber ? "ss-number " : ""}${value === NOTHING ? "ss-empty" : ""}`;
                return html`<td key=${c.title} role="cell" data-title=${c.title} className=${kind}>${value}</td>`;
              })}
            </tr>`,
        )}
      </tbody>
    </table>
  </div>`;
}

export function Sparkline({ values, label }) {
  if (values.length < 2) return html`<span className="ss-muted">${NOTHING}</span>`;
  const most = Math.max(...values, 1);
  const points = values.map((v, i) => `${(i / (values.length - 1)) * 100},${23 - (v / most) * 21}`);
  const last = millis(values[values.length - 1]);
  const text = `${label}: last ${last}, longest ${millis(most)}`;
  return html`<svg className="ss-spark" viewBox="0 0 100 24" preserveAspectRatio="none" role="img" aria-label=${text}>
    <title>${text}</title>
    <polyline points=${points.join(" ")} />
  </svg>`;
}

export function Note({ error, tone = "bad" }) {
  return error ? html`<p role="alert" className=${`ss-note ss-note-${tone}`}>${error}</p>` : null;
}

export function Copy({ text, label }) {
  const [isDone, setDone] = React.useState(false);
  async function copy() {
    await put(text);
    setDone(true);
    setTimeout(() => setDone(false), 2000);
  }
  return html`<button type="button" className="ss-button ss-small" onClick=${copy} title=${text}>
    <span aria-live="polite">${isDone ? "copied" : label}</span>
  </button>`;
}

/** Put a text on the clipboard; without https browsers have only the old way. */
async function put(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea");
  const focused = document.activeElement;
  area.value = text;
  area.className = "ss-hidden";
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
  focused?.focus();
}

export function Facts({ facts }) {
  return html`<dl className="ss-facts">
    ${facts
      .filter(([, value]) => value !== null && value !== undefined)
      .map(
        ([name, value]) =>
          html`<div key=${name}>
            <dt>${name}</dt>
            <dd>${value}</dd>
          </div>`,
      )}
  </dl>`;
}

/** What is shown while there is no data: why, or that it is on its way. */
export function Waiting({ error }) {
  return error
    ? html`<${Note} error=${error} />`
    : html`<p role="status" className="ss-muted">reading …</p>`;
}
