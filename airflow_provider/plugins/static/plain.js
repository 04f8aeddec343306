// A plain table for a host that does not share what the page is made of.
import { addressOf } from "./host.js";

const COLUMNS = ["DAG", "task", "state", "reason"];
const BAR_PX = 80; // Airflow's own bar stays in reach
let place = null;

export async function showPlainTable() {
  if (place) return;
  place = document.createElement("section");
  place.style.cssText = `position: fixed; inset: 0 0 0 ${BAR_PX}px; padding: 16px; overflow: auto;
    background: var(--chakra-colors-bg); color: var(--chakra-colors-fg)`;
  const note = document.createElement("p");
  note.textContent =
    "This version of Airflow does not share what the page Streams is made of, so this is a plain table.";
  place.append(note);
  document.body.append(place);
  removeWithThePage(location.pathname);
  const answer = await fetch(addressOf("spark-stream/api/jobs"));
  const { jobs } = await answer.json();
  const table = document.createElement("table");
  addRow(table, COLUMNS);
  for (const job of jobs)
    addRow(table, [job.task.dag_id, job.task.task_id, job.state ?? "?", job.reason ?? ""]);
  place?.append(table);
}

/** Without the host's React nothing says that the reader has left the page. */
function removeWithThePage(path) {
  const timer = setInterval(() => {
    if (location.pathname === path) return;
    clearInterval(timer);
    place.remove();
    place = null;
  }, 300);
}

function addRow(table, texts) {
  const row = table.insertRow();
  for (const text of texts) row.insertCell().textContent = text;
}
