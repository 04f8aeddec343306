// The page: the list of streams, or one of them where the address names a task instance.
import { taskIn } from "./api.js";
import { React, html, useSearchParams } from "./host.js";
import { Waiting } from "./parts.js";
import { Streams } from "./streams.js";
import { useStyles } from "./styles.js";

const LATER_MS = 2000; // when the list is there; a click on a stream then finds its view
const askForJob = () => import("./job.js");
const Job = React.lazy(async () => ({ default: (await askForJob()).Job }));

export function Page() {
  useStyles();
  const [params] = useSearchParams();
  const isOne = taskIn(params) !== null;
  React.useEffect(() => {
    const timer = setTimeout(askForJob, LATER_MS);
    return () => clearTimeout(timer);
  }, []);
  const shown = isOne ? html`<${Job} />` : html`<${Streams} />`;
  return html`<div className="ss"><${React.Suspense} fallback=${html`<${Waiting} />`}>${shown}</${React.Suspense}></div>`;
}
