// The entry: the list of streams, or one of them where the address names a task instance.
import { Job } from "./job.js";
import { html, isComplete, register, useSearchParams } from "./host.js";
import { showPlainTable } from "./plain.js";
import { Streams } from "./streams.js";
import { useStyles } from "./styles.js";

function App() {
  useStyles();
  const [params] = useSearchParams();
  const one = params.get("dag_id") && params.get("task_id") && params.get("run_id");
  return html`<div className="ss">${one ? html`<${Job} />` : html`<${Streams} />`}</div>`;
}

function Plain() {
  showPlainTable();
  return null;
}

register("Streams", isComplete ? App : Plain);
