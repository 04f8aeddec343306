// The account of a query's rows: a bar from what was read to what went on, and the parts taken out.
import { html } from "./host.js";
import { isNothing, whole } from "./format.js";

const TAB = "rejected"; // the one of the extension that reads kept rows

/** The parts of an account that counts its rows; null of one that takes nothing out. */
export function partsOf(account) {
  if (!account || isNothing(account.rows_read)) return null;
  const records = Object.values(account.rejected ?? {});
  const rejected = records.reduce((sum, each) => sum + each.broken, 0);
  const [broke, late] = [account.taken ?? 0, lateOf(account)];
  if (!records.length && !Object.keys(account.rules ?? {}).length && !late) return null;
  return [
    { name: "went on", rows: Math.max(account.rows_read - rejected - broke - late, 0), tone: "good" },
    { name: "rejected", rows: rejected, tone: "bad" },
    { name: "broke a rule", rows: broke, tone: "warning" },
    { name: "late", rows: late, tone: "calm" },
  ].filter((part) => part.rows || part.name === "went on");
}

const lateOf = (account) => Object.values(account.late ?? {}).reduce((sum, rows) => sum + (rows ?? 0), 0);

export function Account({ account, name, go }) {
  const parts = partsOf(account);
  const unknown = account?.uncounted ?? [];
  if (!parts && !unknown.length) return null;
  return html`<div className="ss-account">
    ${parts ? html`<${Bar} account=${account} parts=${parts} name=${name} go=${go} />` : null}
    ${unknown.length
      ? html`<details className="ss-muted"><summary>Not counted</summary><ul>${unknown.map((each, i) => html`<li key=${i}>${each}</li>`)}</ul></details>`
      : null}
  </div>`;
}

function Bar({ account, parts, name, go }) {
  const counted = Object.entries(account.rules ?? {}).filter(([, each]) => each.broken && each.on !== "keep");
  return html`<div>
    <div className="ss-bar" role="group" aria-label=${`Rows of query ${name}`}>
      ${parts.map(
        (part) =>
          html`<button key=${part.name} type="button" className=${`ss-part ss-${part.tone}`} style=${{ flexGrow: part.rows }} title=${`${part.name}: ${whole(part.rows)}`} aria-label=${`${part.name}: ${whole(part.rows)} rows`} disabled=${part.name === "went on"} onClick=${() => go({ tab: TAB })}></button>`,
      )}
    </div>
    <p className="ss-muted">
      ${[`${whole(account.rows_read)} read`, ...parts.map((part) => `${whole(part.rows)} ${part.name}`), ...counted.map(([rule, each]) => `${whole(each.broken)} broke ${rule} and went on`)].join(" · ")}
      ${account.kept ? html`${" · "}<button type="button" className="ss-link" onClick=${() => go({ tab: TAB })}>${whole(account.kept)} kept</button>` : null}
    </p>
  </div>`;
}
