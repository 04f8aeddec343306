// Calls of the API. What was read stays in this module: the host mounts the page more than once.
import { React, addressOf } from "./host.js";

const EVERY_MS = 5000; // until Airflow's configuration has said it
const SOON_MS = 500; // while a part of the answer is only being read
const MOST_KEPT = 100;
const kept = new Map();
const asked = new Map(); // what is on its way; a page that is mounted again waits for the same
let settings = null;

/** The task instance that an address names; null where it names none. */
export function taskIn(params) {
  const [dag_id, run_id, task_id] = ["dag_id", "run_id", "task_id"].map((name) => params.get(name));
  if (!dag_id || !run_id || !task_id) return null;
  return { dag_id, run_id, task_id, map_index: Number(params.get("map_index") ?? -1) };
}

/** What the first view of this address asks for. */
export function firstPaths() {
  const task = taskIn(new URLSearchParams(location.search));
  return task ? ["overview", "tabs"].map((view) => jobPath(task, view)) : ["jobs"];
}

export function jobPath(task, view, query = {}) {
  const parts = ["dags", task.dag_id, "runs", task.run_id, "tasks", task.task_id, task.map_index];
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined);
  const search = given.length ? `?${new URLSearchParams(given)}` : "";
  return `${parts.map((part) => encodeURIComponent(part)).join("/")}/${view}${search}`;
}

async function answerOf(response) {
  const body = await response.json().catch(() => ({}));
  if (response.ok) return body;
  if (response.status === 401) throw new Error("Your session has ended: sign in again.");
  if (response.status === 403) throw new Error("You may not see or do this.");
  throw new Error(typeof body.detail === "string" ? body.detail : `error ${response.status}`);
}

/** What the API answers; who asks while that is on its way gets the same. */
export function get(path) {
  if (!asked.has(path)) asked.set(path, fresh(path));
  return asked.get(path);
}

async function fresh(path) {
  try {
    const data = await answerOf(await fetch(addressOf(`spark-stream/api/${path}`)));
    kept.delete(path);
    kept.set(path, data);
    if (kept.size > MOST_KEPT) kept.delete(kept.keys().next().value);
    return data;
  } finally {
    asked.delete(path);
  }
}

export async function post(path, body) {
  const headers = { "Content-Type": "application/json", "X-Spark-Streaming": "1" };
  const sent = { method: "POST", headers, body: JSON.stringify(body) };
  return answerOf(await fetch(addressOf(`spark-stream/api/${path}`), sent));
}

/** How often the page asks again; one call for all views. */
export async function refreshMs() {
  settings ??= get("settings");
  try {
    return (await settings).refresh_s * 1000;
  } catch (error) {
    settings = null;
    throw error;
  }
}

/**
 * What the API answers, again and again while the page is visible; only once where it is said, and
 * no more often than every *leastMs*.
 */
export function useData(path, { once = false, leastMs = 0 } = {}) {
  const [state, setState] = React.useState({ path, data: kept.get(path), error: null });
  const [turn, setTurn] = React.useState(0);
  React.useEffect(() => {
    let isOver = false;
    let timer;
    async function look() {
      let every = EVERY_MS;
      if (!document.hidden) {
        try {
          const data = await get(path);
          if (isOver) return;
          setState({ path, data, error: null });
          if (!once) every = Math.max(leastMs, await refreshMs());
          if (data.is_complete === false) every = SOON_MS;
        } catch (error) {
          if (isOver) return;
          setState({ path, data: kept.get(path), error: error.message });
        }
      }
      clearTimeout(timer); // of another look that a wake has begun
      if (!once && !isOver) timer = setTimeout(look, every);
    }
    const wake = () => {
      if (document.hidden) return;
      clearTimeout(timer);
      look();
    };
    if (!once) document.addEventListener("visibilitychange", wake);
    look();
    return () => {
      isOver = true;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", wake);
    };
  }, [path, once, leastMs, turn]);
  const reload = () => {
    asked.delete(path); // what is on its way may be from before
    setTurn((n) => n + 1);
  };
  // Of another path nothing is shown, not even for a moment.
  if (state.path !== path) return { data: kept.get(path), error: null, reload };
  return { ...state, reload };
}
