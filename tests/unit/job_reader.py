"""A reader of job directories, written from docs/internals/job-directory.md alone.

It imports nothing of the package. Where its answer differs from ``spark-stream status``, either
that page or the package is wrong.
"""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

FORMAT = 2
OPEN_STEPS = {"stopping", "trial", "rejected"}
PAGE = Path(__file__).parents[2] / "docs/internals/job-directory.md"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+=-]{0,199}")
_NUMBER = re.compile(r"(0|[1-9][0-9]*)(?:\.json)?")
_OTHER_FILES = (
    r"runs/[^/]+/logs/[^/]+\.log",
    r"queries/[^/]+/checkpoint(-[1-9][0-9]*)?/.+",
    r"queries/[^/]+/markers/[^/]+/[^/]+",
    r"savepoints/[^/]+/queries/.+",
)


# --- documents ----------------------------------------------------------------------------------


def read(path: Path) -> dict[str, Any] | None:
    """Return a document; None where none is."""
    try:
        found: Any = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    if not isinstance(found, dict) or not isinstance(found.get("version"), int):
        raise ValueError(f"{path}: no document")  # noqa: TRY004 - as text that is no JSON
    return dict(found)


def names(folder: Path) -> list[str]:
    """Return the names in a folder that count."""
    return sorted(filter(_NAME.fullmatch, os.listdir(folder))) if folder.is_dir() else []


def numbers(folder: Path) -> list[int]:
    """Return the numbers that name documents or log entries in a folder, ascending."""
    return sorted(int(match[1]) for name in names(folder) if (match := _NUMBER.fullmatch(name)))


def patterns() -> list[re.Pattern[str]]:
    """Return the paths of the page's table."""
    rows = PAGE.read_text().partition("<!-- the documents -->")[2].splitlines()
    cells = [row.split(" | ")[0] for row in rows if row.startswith("| `")]
    paths = [path for cell in cells for path in re.findall(r"`([^`]+)`", cell)]
    return [re.compile(re.sub(r"<[^>]+>", "[^/]+?", path.replace(".", r"\."))) for path in paths]


def strays(job: Path) -> list[str]:
    """Return the files of a job directory that the page does not know."""
    known = [*patterns(), *map(re.compile, _OTHER_FILES)]
    walk = os.walk(job)  # a folder that Spark removes meanwhile is skipped
    files = (os.path.relpath(os.path.join(at, n), job) for at, _, here in walk for n in here)
    nested = re.compile(r"^(?:bootstraps/[^/]+/)?(?:savepoints/[^/]+/(?!queries/))?")
    found = [name for name in files if not any(p.startswith(".") for p in name.split("/"))]
    return [n for n in found if not any(each.fullmatch(nested.sub("", n)) for each in known)]


# --- processes and leases -----------------------------------------------------------------------


def _space() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return "/".join([boot, *(os.readlink(f"/proc/self/ns/{name}") for name in ("pid", "time"))])


def are_gone(owner: dict[str, Any], processes: list[list[int]] | None = None) -> bool:
    """Whether all processes have certainly ended."""
    processes = owner["processes"] if processes is None else processes
    return bool(processes) and owner["space"] == _space() and not any(map(_lives, processes))


def _lives(process: list[int]) -> bool:
    try:
        state, *fields = Path(f"/proc/{process[0]}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return False
    return int(fields[18]) == process[1] and state not in {"Z", "X"}


def newest_lease(job: Path) -> dict[str, Any] | None:
    """Return the newest lease, also one that a listing does not show yet."""
    lease, token = None, max(numbers(job / "leases"), default=0)
    while (found := read(job / f"leases/{token}.json")) is not None:
        lease, token = found, token + 1
    return lease


def is_held(job: Path, lease: dict[str, Any] | None) -> bool:
    """Whether the holder of a lease is alive; takes the lease's timeout at most."""
    if lease is None:
        return False
    first = read(job / f"heartbeats/{lease['token']}.json") or {"beat": 0}
    if first.get("released") or are_gone(lease["owner"]):
        return False
    ends = time.monotonic() + lease["timeout_s"]
    while time.monotonic() < ends:
        beat = read(job / f"heartbeats/{lease['token']}.json") or {"beat": 0}
        if beat["beat"] != first["beat"]:
            return not beat.get("released")
        time.sleep(0.05)
    return False


# --- runs ---------------------------------------------------------------------------------------


def _by(attempt: dict[str, Any] | None, otherwise: str) -> str:
    if attempt is None:
        return otherwise
    known = {"FAILED": "failed", "CANCELLED": "cancelled"}
    return known.get(str(attempt["outcome"]), "killed")


def state_of(run: Path, lease: dict[str, Any] | None, *, held: bool) -> str:
    """Return the state of a run: the first row of the page's table that fits."""
    attempts, final = numbers(run / "attempts"), read(run / "final.json")
    last = read(run / f"attempts/{attempts[-1]}.json") if attempts else None
    submission = last_submission(run)
    driver = submission["driver_id"] if submission else None
    own = last if last is not None and last["driver_id"] == driver else None
    has_lease = lease is not None and lease["driver_id"] == driver
    rows = (
        (read(run / "rewound.json"), "rewound"),
        (final, str((final or {}).get("outcome")).lower()),
        (held and (lease or {})["run_id"] == run.name, "running"),
        (held or submission is None, _by(last, "absent")),
        (has_lease or has_ended(run, submission or {}, own), _by(own, "failed")),
        ((end_of(run, driver) or {}).get("waited_s") is not None, "failed"),
    )
    return next((state for holds, state in rows if holds), "starting")


def last_submission(run: Path) -> dict[str, Any] | None:
    """Return the submission that counts; None when there is none."""
    intents = [name for name in names(run / "submissions") if name.count(".") == 1]
    found = [each for name in intents if (each := read(run / "submissions" / name))]
    return max(found, key=lambda each: (each["number"], each["driver_id"]), default=None)


def end_of(run: Path, driver: str | None) -> dict[str, Any] | None:
    """Return what is known of a driver's end; None when nothing is."""
    return read(run / f"submissions/{driver}.end.json")


def has_ended(run: Path, submission: dict[str, Any], own: dict[str, Any] | None) -> bool:
    """Whether a submission's driver, which does not have the lease, has ended, or never begins."""
    if not submission:
        return False
    end = end_of(run, submission["driver_id"])
    may_come = submission["is_remote"] and own is None
    if end is not None and end["state"] in {"ended", "gone"}:
        return True
    process = read(run / f"submissions/{submission['driver_id']}.process.json")
    if process is None or process["is_revoked"]:
        return process is not None
    owner = process["identity"]
    return not may_come and (are_gone(owner) or are_gone(owner, owner["processes"][1:]))


def read_run(run: Path, lease: dict[str, Any] | None, *, held: bool) -> dict[str, Any]:
    """Return what a run's documents say; a damaged one makes it ``damaged``."""
    try:
        attempts, final = numbers(run / "attempts"), read(run / "final.json") or {}
        return {
            "state": state_of(run, lease, held=held),
            "attempts": max(attempts, default=0),
            "last": read(run / f"attempts/{attempts[-1]}.json") if attempts else None,
            "savepoint": final.get("savepoint"),
            "ended": {name: q["batch_id"] for name, q in final.get("queries", {}).items()},
            "token": (read(run / "run.json") or {"token": -1})["token"],
        }
    except (KeyError, TypeError, ValueError):
        return {
            "state": "damaged",
            "attempts": 0,
            "last": None,
            "savepoint": None,
            "ended": {},
            "token": -1,
        }


# --- queries ------------------------------------------------------------------------------------


def published(records: Path) -> int:
    """Return the newest published epoch of a query id; -1 for none."""
    spans = [re.fullmatch(r"[0-9]+-([0-9]+)(\.packed)?\.json", name) for name in names(records)]
    return max([-1, *numbers(records), *(int(span[1]) for span in spans if span)])


def read_query(job: Path, name: str, locations: dict[str, int]) -> dict[str, Any]:
    """Return how far a query has come."""
    query, location = job / "queries" / name, locations.get(name, 0)
    checkpoint = query / (f"checkpoint-{location}" if location else "checkpoint")
    metadata = checkpoint / "metadata"
    query_id = json.loads(metadata.read_bytes())["id"] if metadata.exists() else None
    records = query / "committables" / str(query_id)
    waiting = (re.fullmatch(r"([0-9]+)\.[0-9]+\.json", each) for each in names(records))
    committed, done = max(numbers(checkpoint / "commits"), default=-1), published(records)
    drain = read(query / f"drains/{query_id}.json")
    return {
        "query_id": query_id,
        "committed": committed,
        "planned": max(numbers(checkpoint / "offsets"), default=-1),
        "published": done,
        "waiting": any(each and done < int(each[1]) <= committed for each in waiting),
        "drained_by": drain["run_id"] if drain else None,
    }


# --- the job ------------------------------------------------------------------------------------


def read_job(job_dir: str | Path) -> dict[str, Any]:
    """Return the state of a job and of each of its runs, oldest first."""
    job = Path(job_dir)
    identity = read(job / "identity.json")
    if identity is None or identity["version"] != FORMAT:
        raise ValueError(f"{job}: no job directory of format {FORMAT}")
    lease = newest_lease(job)
    held = is_held(job, lease)
    found = {name: read_run(job / "runs" / name, lease, held=held) for name in names(job / "runs")}
    operations = read_operations(job)
    upgrades = read_upgrades(job)
    locations = operations[-1]["locations"] if operations else {}
    queries = {name: read_query(job, name, locations) for name in names(job / "queries")}
    record = read(job / "job.json")
    is_listed = {
        name: run["token"] >= 0 or run["state"] == "damaged" for name, run in found.items()
    }
    begun = {name: run for name, run in found.items() if is_listed[name] or record is None}
    runs = dict(sorted(begun.items(), key=lambda each: (each[1]["token"], each[0])))
    upgrades = upgrades or _trial_period(job, next(reversed(runs), ""))
    return {
        "job": record["name"] if record else None,
        "lease": lease,
        "held": held,
        "runs": runs,
        "state": next(reversed(runs.values()))["state"] if runs else "absent",
        "queries": queries,
        "savepoints": [
            n for n in names(job / "savepoints") if read(job / f"savepoints/{n}/savepoint.json")
        ],
        "upgrade": upgrades[-1] if upgrades else None,
        "unfinished": _unfinished(job, operations, upgrades[-1:], queries, runs),
    }


def read_upgrades(job: Path) -> list[dict[str, Any] | None]:
    """Return the steps of the upgrades from a version, ascending; None is one that is damaged."""
    return [read(job / f"upgrades/{n}.json") for n in numbers(job / "upgrades")]


def _trial_period(job: Path, newest: str) -> list[dict[str, Any] | None]:
    """Return the open upgrade to a version whose newest run is that upgrade's."""
    saved = (read(job / f"runs/{newest}/run.json") or {}).get("from_savepoint")
    others = read_upgrades(Path(saved.rpartition("/savepoints/")[0])) if saved else []
    steps = [step for step in others if step and step["id"] == newest]
    return [step for step in steps[-1:] if step["step"] in OPEN_STEPS]


def read_operations(job: Path) -> list[dict[str, Any]]:
    """Return the operations, each as far as it has come, ascending."""
    steps = (re.fullmatch(r"([0-9]+)\.([12])\.json", name) for name in names(job / "operations"))
    last = dict(sorted((int(step[1]), int(step[2])) for step in steps if step))
    return [read(job / f"operations/{n}.{step}.json") or {} for n, step in last.items()]


def _unfinished(
    job: Path,
    operations: list[dict[str, Any]],
    upgrade: list[dict[str, Any] | None],
    queries: dict[str, dict[str, Any]],
    runs: dict[str, dict[str, Any]],
) -> list[str]:
    newest = operations[-1:]
    if newest and not newest[0]["restore"]:
        newest = [each for each in operations if each["number"] == newest[0]["before"]]
    found = ["restore"] if newest and newest[0]["step"] == 1 else []
    if upgrade and upgrade[0] and upgrade[0]["step"] in OPEN_STEPS:
        found.append("upgrade")
    done = {"finished", "suspended", "rewound"}
    open_runs = {name for name, run in runs.items() if run["state"] not in done}
    drains = [query["drained_by"] for query in queries.values()]
    if drains and all(drains) and {*drains} & open_runs:
        found.append("drain")
    if any((job / f"runs/{name}/stop.json").exists() for name in open_runs):
        found.append("stop")
    return found + (["publish"] if any(query["waiting"] for query in queries.values()) else [])


# --- the comparison -----------------------------------------------------------------------------


def answers(job: dict[str, Any]) -> dict[str, Any]:
    """Return what :func:`read_job` and ``spark-stream status`` both say."""
    runs = job["runs"]
    return {
        "job": job["job"],
        "held": job["held"],
        "token": job["lease"]["token"] if job["lease"] else None,
        "states": {run_id: run["state"] for run_id, run in runs.items()},
        "attempts": {run_id: run["attempts"] for run_id, run in runs.items()},
        "savepoints": {i: run["savepoint"] for i, run in runs.items() if run["ended"]},
        "batches": {i: run["ended"] for i, run in runs.items() if run["ended"]},
        "upgrade": job["upgrade"]["step"] if job["upgrade"] else None,
        "is open": not job["held"] and "restore" in job["unfinished"],
    }


def answers_of_status(said: dict[str, Any]) -> dict[str, Any]:
    """Return the same of what ``spark-stream status --json`` has printed."""
    runs = {run["run_id"]: run for run in said["runs"]}
    finals = {run_id: run["final"] for run_id, run in runs.items() if run["final"]}
    return {
        "job": said["job"],
        "held": said["lease"] is not None and said["lease"]["holder"] == "live",
        "token": said["lease"]["token"] if said["lease"] else None,
        "states": {run_id: run["state"] for run_id, run in runs.items()},
        "attempts": {run_id: run["attempts"] for run_id, run in runs.items()},
        "savepoints": {run_id: final["savepoint"] for run_id, final in finals.items()},
        "batches": {
            run_id: {name: query["batch_id"] for name, query in final["queries"].items()}
            for run_id, final in finals.items()
        },
        "upgrade": said["upgrade"]["step"] if said["upgrade"] else None,
        "is open": said["unfinished"] is not None,
    }
