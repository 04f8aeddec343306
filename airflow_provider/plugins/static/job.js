// One stream: its head, the actions, and the views as tabs.
import { Link, React, html, useSearchParams } from "./host.js";
import { Actions } from "./actions.js";
import { dagPath, dagRunPath, jobQuery, slicesQuery, streamName, taskPath } from "./addresses.js";
import { jobPath, useData } from "./api.js";
import { Batches } from "./batches.js";
import { ByRun } from "./by_run.js";
import { moment, sentence, sliceName } from "./format.js";
import { Failures } from "./failures.js";
import { DriverLog } from "./log.js";
import { Overview } from "./overview.js";
import { Id, Note, State, Waiting, isBad } from "./parts.js";
import { Raw } from "./raw.js";
import { Runs } from "./runs.js";
import { Savepoints } from "./savepoints.js";
import { Tab } from "./tab.js";

const OURS = [
  ["overview", "Overview", Overview],
  ["history", "By run", ByRun],
  ["runs", "Runs and attempts", Runs],
  ["failures", "Failures", Failures],
  ["savepoints", "Savepoints", Savepoints],
];
const FOR_EXPERTS = [
  ["batches", "Batches", Batches],
  ["log", "Driver log", DriverLog],
  ["raw", "Raw", Raw],
];
const OF_A_VIEW = ["query", "span", "path", "spark_run_id", "driver_id"];

export function Job({ task }) {
  const [params, setParams] = useSearchParams();
  const found = useData(jobPath(task, "tabs"), { once: true });
  const others = (found.data?.tabs ?? []).map(({ name, title }) => [name, title, Tab]);
  const own = [...OURS, ...FOR_EXPERTS].map(([name]) => name);
  const tabs = [...OURS, ...others.filter(([name]) => !own.includes(name)), ...FOR_EXPERTS];
  const asked = params.get("tab");
  // Until the tabs of other packages are known, the address may name one of them.
  const isOpen = asked && !found.data && !found.error && !tabs.some(([name]) => name === asked);
  const tab = isOpen || tabs.some(([name]) => name === asked) ? asked : "overview";
  const overview = useData(jobPath(task, "overview"));
  const View = isOpen ? Waiting : tabs.find(([name]) => name === tab)[2];
  const go = (changes) =>
    setParams((now) => {
      if (changes.tab) for (const name of OF_A_VIEW) now.delete(name);
      for (const [name, value] of Object.entries(changes)) {
        if (value === null) now.delete(name);
        else now.set(name, value);
      }
      return now;
    });
  const job = overview.data?.job;
  return html`<div className="ss-page">
    <nav aria-label="Way back" className="ss-crumbs">
      <${Link} to="?">Streams</${Link}>${" › "}
      <${Link} to=${dagPath(task.dag_id)}>${task.dag_id}</${Link}>${" › "}
      ${job?.is_slice ? html`<${Link} to=${slicesQuery(task)}>all slices</${Link}>${" › "}` : null}
      <${Link} to=${taskPath(task)}>task</${Link}>${" of run "}<${Id} text=${task.run_id} />
    </nav>
    <header className="ss-head">
      <h1>${streamName(task)}${job?.is_slice ? ` › ${sliceName(job.slice)}` : ""}</h1>
      ${job ? html`<${State} text=${job.state} />` : null}
      ${job?.since ? html`<span className="ss-muted">since ${moment(job.since)}</span>` : null}
      ${overview.data ? html`<${Actions} task=${task} overview=${overview.data} reload=${overview.reload} />` : null}
    </header>
    <${Newest} newest=${overview.data?.newest} tab=${tab} />
    <${Trouble} job=${job} />
    <${Note} error=${overview.data && overview.error} />
    <${Tabs} tabs=${tabs} tab=${tab} choose=${(name) => go({ tab: name })} />
    <section role="tabpanel" id="ss-panel" aria-labelledby=${`ss-tab-${tab}`} tabIndex="0">
      <${View} key=${tab} name=${tab} task=${task} overview=${overview} params=${params} go=${go} />
    </section>
  </div>`;
}

/** The job's newest run, where another one is shown. */
function Newest({ newest, tab }) {
  if (!newest) return null;
  const { interval, spark_run_id: run, task, dag_id: dag } = newest;
  const name = interval ? sliceName({ start: interval[0], end: interval[1] }) : run;
  const of = dag ? html` of DAG <${Link} to=${dagRunPath(dag, newest.dag_run_id)}>${dag}</${Link}>` : "";
  return html`<p role="status" className="ss-note ss-note-calm">${task ? html`<${Link} to=${jobQuery(task, tab)} title=${run}>${name}</${Link}>` : html`Run <${Id} text=${run} />${of}`} is newer, begun ${moment(newest.started)}.</p>`;
}

/** Why a stream is not well, and what to do; of one without a reason nothing. */
function Trouble({ job }) {
  if (["starting", "cancelled"].includes(job?.state) && !job.reason) return html`<p role="status" className="ss-note ss-note-calm">${sentence(job.next_step)}</p>`;
  if (!job?.reason && !isBad(job?.state)) return null;
  const next = job.next_step && job.next_step !== job.reason ? sentence(job.next_step) : null;
  return html`<div role="alert" className=${`ss-note ss-note-${isBad(job.state) ? "bad" : "warning"}`}>
    ${job.reason ? sentence(job.reason) : ""}
    ${next && isBad(job.state) ? html`<div className="ss-muted">${next}</div>` : null}
  </div>`;
}

function Tabs({ tabs, tab, choose }) {
  const bar = React.useRef(null);
  const names = tabs.map(([name]) => name);
  React.useEffect(() => {
    const chosen = bar.current.querySelector('[aria-selected="true"]');
    chosen?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [tab, tabs.length]);
  function onKeyDown(event) {
    // From where the focus is, which moves at once: the address follows later.
    const [at, count] = [names.indexOf(event.target.id.replace("ss-tab-", "")), names.length];
    const keys = { ArrowRight: (at + 1) % count, ArrowLeft: (at + count - 1) % count, Home: 0, End: count - 1 };
    const next = names[keys[event.key]];
    if (!next) return;
    event.preventDefault();
    choose(next);
    bar.current.querySelector(`#ss-tab-${next}`).focus();
  }
  return html`<div role="tablist" aria-label="Views" className="ss-tabs" ref=${bar} onKeyDown=${onKeyDown}>
    ${tabs.map(
      ([name, title]) =>
        html`<button key=${name} id=${`ss-tab-${name}`} type="button" role="tab" aria-selected=${tab === name} aria-controls="ss-panel" tabIndex=${tab === name ? 0 : -1} onClick=${() => choose(name)}>
          ${title}
        </button>`,
    )}
  </div>`;
}
