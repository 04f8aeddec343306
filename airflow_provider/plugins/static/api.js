// Calls of the API. What was read stays in this module: the host mounts the page more than once.
import { React, addressOf } from "./host.js";

const EVERY_MS = 5000; // until Airflow's configuration has said it
const SOON_MS = 500; // while a part of the answer is only being read
const MOST_KEPT = 100;
const kept = new Map();
let settings = null;

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

export async function get(path, signal) {
  return answerOf(await fetch(addressOf(`spark-streaming/api/${path}`), { signal }));
}

export async function post(path, body) {
  const headers = { "Content-Type": "application/json", "X-Spark-Streaming": "1" };
  const sent = { method: "POST", headers, body: JSON.stringify(body) };
  return answerOf(await fetch(addressOf(`spark-streaming/api/${path}`), sent));
}

/** How often the page asks again; one call for all views. */
async function refreshMs() {
  settings ??= get("settings");
  try {
    return (await settings).refresh_s * 1000;
  } catch (error) {
    settings = null;
    throw error;
  }
}

/** What the API answers, again and again while the page is visible; only once where it is said. */
export function useData(path, { once = false } = {}) {
  const [state, setState] = React.useState({ path, data: kept.get(path), error: null });
  const [turn, setTurn] = React.useState(0);
  React.useEffect(() => {
    const abort = new AbortController();
    let timer;
    async function look() {
      let every = EVERY_MS;
      if (!document.hidden) {
        try {
          const data = await get(path, abort.signal);
          kept.delete(path);
          kept.set(path, data);
          if (kept.size > MOST_KEPT) kept.delete(kept.keys().next().value);
          setState({ path, data, error: null });
          if (!once) every = await refreshMs();
          if (data.is_complete === false) every = SOON_MS;
        } catch (error) {
          if (abort.signal.aborted) return;
          setState({ path, data: kept.get(path), error: error.message });
        }
      }
      if (!once && !abort.signal.aborted) timer = setTimeout(look, every);
    }
    const wake = () => {
      if (document.hidden) return;
      clearTimeout(timer);
      look();
    };
    if (!once) document.addEventListener("visibilitychange", wake);
    look();
    return () => {
      abort.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", wake);
    };
  }, [path, once, turn]);
  const reload = () => setTurn((n) => n + 1);
  // Of another path nothing is shown, not even for a moment.
  if (state.path !== path) return { data: kept.get(path), error: null, reload };
  return { ...state, reload };
}
