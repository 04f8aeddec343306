// The page: the list of streams; the slices of a task, or one stream, where the address names it.
import { slicedTaskIn } from "./addresses.js";
import { taskIn } from "./api.js";
import { React, html, useSearchParams } from "./host.js";
import { Waiting } from "./parts.js";
import { Slices } from "./slices.js";
import { Streams } from "./streams.js";
import { useStyles } from "./styles.js";

const LATER_MS = 2000; // when the list is there; a click on a stream then finds its view
const askForJob = () => import("./job.js");
const Job = React.lazy(async () => ({ default: (await askForJob()).Job }));

export function Page() {
  useStyles();
  const [params] = useSearchParams();
  // A view keeps the task of its own address: it may render once more when the address has changed.
  const [job, sliced] = [taskIn(params), slicedTaskIn(params)];
  const shown = job ? html`<${Job} task=${job} />` : sliced ? html`<${Slices} task=${sliced} />` : html`<${Streams} />`;
  React.useEffect(() => {
    const timer = setTimeout(askForJob, LATER_MS);
    return () => clearTimeout(timer);
  }, []);
  return html`<div className="ss"><${React.Suspense} fallback=${html`<${Waiting} />`}>${shown}</${React.Suspense}></div>`;
}
