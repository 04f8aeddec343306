// Addresses of the page and of Airflow's own, and what names a stream in them.

export function jobQuery(task, tab = "overview") {
  return `?${new URLSearchParams({ ...task, tab })}`;
}

/** What the task instances of one stream, or of its slices, share. */
export const seriesOf = ({ dag_id, task_id, map_index }) => JSON.stringify([dag_id, task_id, map_index]);

export const slicesQuery = ({ dag_id, task_id, map_index }) =>
  `?${new URLSearchParams({ dag_id, task_id, map_index, slices: "all" })}`;

/** The task whose slices an address asks for; null where it asks for none. */
export function slicedTaskIn(params) {
  const [dag_id, task_id] = ["dag_id", "task_id"].map((name) => params.get(name));
  if (!params.has("slices") || !dag_id || !task_id) return null;
  return { dag_id, task_id, map_index: Number(params.get("map_index") ?? -1) };
}

export function dagPath(dag_id) {
  return `/dags/${encodeURIComponent(dag_id)}`;
}

export const dagRunPath = (dag_id, run_id) => `${dagPath(dag_id)}/runs/${encodeURIComponent(run_id)}`;

export function taskPath({ dag_id, run_id, task_id, map_index }) {
  const mapped = map_index >= 0 ? `/mapped/${map_index}` : "";
  return `${dagRunPath(dag_id, run_id)}/tasks/${encodeURIComponent(task_id)}${mapped}`;
}

/** The one name of a stream: that of its task, which is known before its driver has begun. */
export const streamName = ({ task_id, map_index }) => (map_index >= 0 ? `${task_id} [${map_index}]` : task_id);
