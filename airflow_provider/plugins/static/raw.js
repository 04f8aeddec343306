// Any document of the job directory, from its listing.
import { html } from "./host.js";
import { jobPath, useData } from "./api.js";
import { Note, Waiting } from "./parts.js";

export function Raw({ task, params, go }) {
  const path = params.get("path") ?? "";
  const isDocument = path.endsWith(".json");
  const folder = isDocument ? path.split("/").slice(0, -1).join("/") : path;
  const { data, error } = useData(jobPath(task, "folder", { path: folder }), { once: true });
  const parts = folder ? folder.split("/") : [];
  const open = (to) => go({ path: to || null });
  return html`<div className="ss-raw">
    <div>
      <nav aria-label="Folder" className="ss-crumbs">
        <button type="button" className="ss-link" onClick=${() => open("")}>job directory</button>
        ${parts.map((part, i) => html`<span key=${i}>${" / "}<button type="button" className="ss-link" onClick=${() => open(parts.slice(0, i + 1).join("/"))}>${part}</button></span>`)}
      </nav>
      ${data
        ? html`<ul className="ss-files">
            ${[...data.folders.map((n) => [n, `${n}/`]), ...data.documents.map((n) => [n, n])].map(
              ([name, shown]) =>
                html`<li key=${shown}><button type="button" className="ss-link" aria-current=${path === join(folder, name)} onClick=${() => open(join(folder, name))}>${shown}</button></li>`,
            )}
          </ul>`
        : html`<${Waiting} error=${error} />`}
    </div>
    ${isDocument ? html`<${Document} key=${path} task=${task} path=${path} />` : html`<p className="ss-muted">Choose a document.</p>`}
  </div>`;
}

const join = (folder, name) => (folder ? `${folder}/${name}` : name);

function Document({ task, path }) {
  const { data, error } = useData(jobPath(task, "document", { path }));
  if (!data) return html`<${Waiting} error=${error} />`;
  return html`<div>
    <${Note} error=${error} />
    ${data.is_cut ? html`<p className="ss-muted">Only its beginning is shown.</p>` : null}
    <pre className="ss-pre" tabIndex="0" aria-label=${path}>${pretty(data)}</pre>
  </div>`;
}

function pretty({ text, is_cut }) {
  if (is_cut) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
