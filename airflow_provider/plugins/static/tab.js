// A tab that an entry point names: its sections, each with a heading, a text, facts and a table.
import { html } from "./host.js";
import { jobPath, useData } from "./api.js";
import { NOTHING, bytes, moment, whole } from "./format.js";
import { Facts, Note, Table, Waiting } from "./parts.js";

const LEAST_MS = 30_000; // it may read many files

export function Tab({ task, name }) {
  const { data, error } = useData(jobPath(task, `tabs/${encodeURIComponent(name)}`), { leastMs: LEAST_MS });
  if (!data) return html`<${Waiting} error=${error} />`;
  return html`<div>
    <${Note} error=${error} />
    ${data.sections.map((section, i) => html`<${Section} key=${i} section=${section} />`)}
  </div>`;
}

function Section({ section }) {
  const { title, detail, is_nested: isNested, text, table } = section;
  const heading = html`${title}${detail ? html` <small>${detail}</small>` : null}`;
  const facts = Object.entries(section.facts).filter(([, value]) => value !== null);
  return html`<section aria-label=${title ?? undefined}>
    ${title ? (isNested ? html`<h3>${heading}</h3>` : html`<h2>${heading}</h2>`) : null}
    ${text ? html`<p className="ss-muted">${text}</p>` : null}
    ${facts.length ? html`<${Facts} facts=${facts.map(([name, value]) => [name, shown(value)])} />` : null}
    ${table ? html`<${Table} caption=${title ?? "Table"} rows=${table.rows} columns=${table.columns.map(column)} />` : null}
  </section>`;
}

const column = (title, i) => ({ title, of: (row) => shown(row[i]) });

function shown(value) {
  if (value === null || value === undefined || value === "") return NOTHING;
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "number") return Number.isInteger(value) ? whole(value) : String(value);
  if (typeof value === "string") return value.includes("\n") ? value.split("\n").map((line, i) => html`<div key=${i} className="ss-long">${line}</div>`) : value;
  if ("bytes" in value) return bytes(value.bytes);
  if ("at" in value) return moment(value.at);
  return html`<a href=${value.url} target="_blank" rel="noreferrer">${value.text}</a>`;
}
