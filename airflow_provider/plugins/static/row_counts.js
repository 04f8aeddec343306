// The row counts of a query: a bar from what was read to what was kept, and the parts taken out.
import { html } from "./host.js";
import { isNothing, whole } from "./format.js";

const TAB = "quarantine"; // the one of the extension that reads quarantined rows

/** The parts of the row counts; null of one that takes nothing out. */
export function partsOf(counts) {
  if (!counts || isNothing(counts.rows_read)) return null;
  const records = Object.values(counts.rejected ?? {});
  const rejected = records.reduce((sum, each) => sum + each.broken, 0);
  const [broke, late] = [counts.taken ?? 0, lateOf(counts)];
  if (!records.length && !Object.keys(counts.rules ?? {}).length && !late) return null;
  return [
    { name: "kept", rows: Math.max(counts.rows_read - rejected - broke - late, 0), tone: "good" },
    { name: "rejected", rows: rejected, tone: "bad" },
    { name: "broke a rule", rows: broke, tone: "warning" },
    { name: "late", rows: late, tone: "calm" },
  ].filter((part) => part.rows || part.name === "kept");
}

const lateOf = (counts) => Object.values(counts.late ?? {}).reduce((sum, rows) => sum + (rows ?? 0), 0);

export function RowCounts({ counts, name, go }) {
  const parts = partsOf(counts);
  const unknown = counts?.uncounted ?? [];
  if (!parts && !unknown.length) return null;
  return html`<div className="ss-row-counts">
    ${parts ? html`<${Bar} counts=${counts} parts=${parts} name=${name} go=${go} />` : null}
    ${unknown.length
      ? html`<details className="ss-muted"><summary>Not counted</summary><ul>${unknown.map((each, i) => html`<li key=${i}>${each}</li>`)}</ul></details>`
      : null}
  </div>`;
}

function Bar({ counts, parts, name, go }) {
  const counted = Object.entries(counts.rules ?? {}).filter(([, each]) => each.broken && each.on !== "quarantine");
  return html`<div>
    <div className="ss-bar" role="group" aria-label=${`Rows of query ${name}`}>
      ${parts.map(
        (part) =>
          html`<button key=${part.name} type="button" className=${`ss-part ss-${part.tone}`} style=${{ flexGrow: part.rows }} title=${`${part.name}: ${whole(part.rows)}`} aria-label=${`${part.name}: ${whole(part.rows)} rows`} disabled=${part.name === "kept"} onClick=${() => go({ tab: TAB })}></button>`,
      )}
    </div>
    <p className="ss-muted">
      ${[`${whole(counts.rows_read)} read`, ...parts.map((part) => `${whole(part.rows)} ${part.name}`), ...counted.map(([rule, each]) => `${whole(each.broken)} kept although they broke ${rule}`)].join(" · ")}
      ${counts.quarantined ? html`${" · "}<button type="button" className="ss-link" onClick=${() => go({ tab: TAB })}>${whole(counts.quarantined)} quarantined</button>` : null}
    </p>
  </div>`;
}
