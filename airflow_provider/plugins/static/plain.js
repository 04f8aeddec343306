// A plain table for a host that does not share what the page is made of.
import { addressOf } from "./host.js";

const COLUMNS = ["dag_id", "task_id", "state", "reason"];
let isShown = false;

export async function showPlainTable() {
  if (isShown) return;
  isShown = true;
  const place = document.createElement("section");
  const note = document.createElement("p");
  note.textContent =
    "This version of Airflow does not share what the page Streams is made of, so this is a plain table.";
  place.append(note);
  document.body.append(place);
  const answer = await fetch(addressOf("spark-streaming/api/jobs"));
  const { jobs } = await answer.json();
  const table = document.createElement("table");
  addRow(table, COLUMNS);
  for (const job of jobs)
    addRow(table, [job.task.dag_id, job.task.task_id, job.state ?? "?", job.reason ?? ""]);
  place.append(table);
}

function addRow(table, texts) {
  const row = table.insertRow();
  for (const text of texts) row.insertCell().textContent = text;
}
