"""Measure the page "Streams": what it costs the API server, and how soon it is on the screen.

An API server on PostgreSQL, and job directories as drivers leave them, whose leases this process
renews: a history of three hundred batches and three savepoints each. Ten readers ask for the list
as ten open pages do, each every five seconds. Beside them Airflow's own API is asked for its
version, its DAGs and the runs of a grid. Then some more jobs lie in a bucket whose server takes
connections and never answers. A browser opens the list, once before the server has read any job.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx
import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "airflow")]

from handmade_page import PageJob, reporting
from page_browser import open_browser
from page_server import page_server, silent_store

from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.base.host import identify
from airflow_provider.runtime.jobdir.lease import acquire_lease
from airflow_provider.runtime.storage.local import LocalStorage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from page_server import PageServer

MEMORY = Path("/dev/shm")  # noqa: S108 - the heartbeats of the jobs are no test of a disk
PAGES = 10
EVERY_S = 5.0
SAVEPOINTS = 3
HANGING = 20
OWN = ("/api/v2/version", "/api/v2/dags?limit=50", "/ui/grid/runs/idle?limit=14")
SHOWN = """count => {
    const mark = () => {
        if (document.querySelectorAll(".ss-table tbody tr").length < count) return;
        window.shownAt ??= performance.now();
    };
    new MutationObserver(mark).observe(document, { childList: true, subtree: true });
}"""
BEGAN = """() => performance.getEntriesByType("resource")
    .find((e) => e.name.endsWith("/app.js") && e.name.includes("spark-stream")).startTime"""
DAG = """
from airflow.sdk import dag
from airflow.providers.standard.operators.empty import EmptyOperator

@dag(schedule=None)
def idle():
    EmptyOperator(task_id="nothing")

idle()
"""
AIM_SHOWN_S = 1.0


class Shown(NamedTuple):
    """When all rows were on the screen, in seconds.

    Attributes:
        after_s: since the address was opened.
        own_s: since Airflow's own page asked for the first file of this one.
    """

    after_s: float
    own_s: float


class Load(NamedTuple):
    """What was measured while some pages were open; times in milliseconds.

    Attributes:
        own: of calls of Airflow's own API.
        page: of calls of the page's.
        cores: what the API server has used of one core.
    """

    own: list[float]
    page: list[float]
    cores: float


def main() -> int:
    """Measure, print tables; 1 when the page is not shown in time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each load")
    arguments = parser.parse_args()
    parent = MEMORY if MEMORY.is_dir() else None
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="p", dir=parent)))
        (folder / "dags").mkdir()
        (folder / "dags" / "idle.py").write_text(DAG)
        silent = stack.enter_context(silent_store())
        jobs = stack.enter_context(at_work(folder / "jobs", arguments.jobs))
        server = stack.enter_context(page_server(folder, PYTHONPATH=str(ROOT), **silent))
        server.put([("streams", f"job_{i}", "deferred", job.url, True) for i, job in jobs])
        shown = measure_browser(server, arguments.jobs)
        loads = {"no page": measure(server, 0, arguments.seconds)}
        loads[f"{PAGES} pages"] = measure(server, PAGES, arguments.seconds)
        hanging = [
            ("hangs", f"job_{i}", "deferred", f"s3://hangs/{i}", True) for i in range(HANGING)
        ]
        server.put(hanging)
        loads[f"{PAGES} pages, {HANGING} jobs hang"] = measure(server, PAGES, arguments.seconds)
        unread = list_of(server)
        operations = count_operations([job for _, job in jobs])
    report(loads, shown, operations, unread, arguments.jobs)
    return 0 if all(each.own_s < AIM_SHOWN_S for each in shown) else 1


# --- jobs ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def at_work(location: Path, count: int) -> Iterator[list[tuple[int, PageJob]]]:
    """Give jobs whose drivers live and report."""
    me = identify([psutil.Process().pid])
    jobs = []
    with contextlib.ExitStack() as stack:
        for number in range(count):
            job = PageJob(location / f"job_{number}", name=f"job_{number}").history()
            for saved in range(SAVEPOINTS):
                job.savepoint(f"periodic-{saved}", seconds_ago=600.0 * (SAVEPOINTS - saved))
            lease = acquire_lease(
                job.storage,
                run_id=job.run_id,
                driver_id="driver",
                owner=me,
                clock=SystemClock(),
                heartbeat_s=5.0,
                timeout_s=20.0,
            )
            stack.callback(lease.release)
            jobs.append((number, job.at_work()))
        stack.enter_context(reporting([job for _, job in jobs]))
        yield jobs


# --- measurements -------------------------------------------------------------------------------


def measure(server: PageServer, pages: int, seconds: float) -> Load:
    """Ask Airflow's own API for so long, while so many pages are open."""
    own: list[float] = []
    page: list[float] = []
    ended = threading.Event()
    threads = [
        threading.Thread(target=_be_a_page, args=(server, EVERY_S * i / PAGES, page, ended))
        for i in range(pages)
    ]
    for thread in threads:
        thread.start()
    ended.wait(EVERY_S * 2)  # until each has its second list
    page.clear()
    before, began = _cpu_s(server), time.monotonic()
    with _client(server) as http:
        while time.monotonic() - began < seconds:
            own += [_timed(http, path) for path in OWN]
            ended.wait(0.1)
    cores = (_cpu_s(server) - before) / (time.monotonic() - began)
    ended.set()
    for thread in threads:
        thread.join()
    return Load(own, page, cores)


def _be_a_page(
    server: PageServer, begin_s: float, took: list[float], ended: threading.Event
) -> None:
    with _client(server) as http:
        wait_s = begin_s
        while not ended.wait(wait_s):
            took.append(_timed(http, "/spark-stream/api/jobs"))
            wait_s = EVERY_S


def list_of(server: PageServer) -> Counter[str]:
    """Return why jobs are not shown, and of how many."""
    with _client(server) as http:
        jobs = http.get("/spark-stream/api/jobs").json()["jobs"]
    return Counter(str(job["reason"]) for job in jobs)


def measure_browser(server: PageServer, count: int) -> list[Shown]:
    """Return when all rows are on the screen, the first time and later."""
    found = []
    with open_browser(server) as browser:
        browser.page.add_init_script(f"({SHOWN})({count})")
        for _ in range(6):
            browser.open()
            browser.page.wait_for_function("() => window.shownAt")
            at_s = browser.page.evaluate("window.shownAt") / 1000
            found.append(Shown(at_s, at_s - browser.page.evaluate(BEGAN) / 1000))
    return found


def count_operations(jobs: list[PageJob]) -> dict[str, float]:
    """Return the storage operations of one row, read once more."""
    from airflow_provider.plugins.service import StreamService
    from airflow_provider.plugins.task_index import IndexedTask, TaskInstanceAddress

    found: Counter[str] = Counter()
    service = StreamService(SystemClock())
    address = TaskInstanceAddress(dag_id="d", run_id="r", task_id="t", map_index=-1)
    tasks = [IndexedTask(address, "deferred", job.url) for job in jobs]
    for task in tasks:
        service.summaries.read(task)
    for name in ("read", "list", "exists"):
        setattr(LocalStorage, name, _counting(found, name, getattr(LocalStorage, name)))
    for task in tasks:
        service.summaries.read(task)
    return {name: count / len(jobs) for name, count in found.items()}


def _counting(found: Counter[str], name: str, inner: Callable[..., Any]) -> Callable[..., Any]:
    def count(*args: Any) -> Any:
        found[name] += 1
        return inner(*args)

    return count


def _client(server: PageServer) -> httpx.Client:
    return httpx.Client(
        base_url=f"http://127.0.0.1:{server.port}",
        headers={"Authorization": f"Bearer {server.token}"},
        timeout=60,
        trust_env=False,
    )


def _timed(http: httpx.Client, path: str) -> float:
    began = time.perf_counter()
    http.get(path).raise_for_status()
    return (time.perf_counter() - began) * 1000


def _cpu_s(server: PageServer) -> float:
    first = psutil.Process(server.processes["api-server"].pid)
    times = [each.cpu_times() for each in (first, *first.children(recursive=True))]
    return sum(each.user + each.system for each in times)


# --- report -------------------------------------------------------------------------------------


def report(
    loads: dict[str, Load],
    shown: list[Shown],
    operations: dict[str, float],
    unread: Counter[str],
    jobs: int,
) -> None:
    """Print what was measured."""
    print(f"\n{jobs} jobs; p50 / p95 in ms\n")
    print("| open | Airflow's own API | the page's | API server, cores |\n|---|---|---|---|")
    for name, load in loads.items():
        print(f"| {name} | {_middle(load.own)} | {_middle(load.page)} | {load.cores:.2f} |")
    first, *later = shown
    own_s = statistics.median(each.own_s for each in later)
    after_s = statistics.median(each.after_s for each in later)
    print(f"\nall rows on the screen: {first.after_s:.2f} s, {first.own_s:.2f} s of it the page's;")
    print(f"later {after_s:.2f} s, {own_s:.2f} s of it the page's")
    counted = ", ".join(f"{count:.1f} {name}" for name, count in sorted(operations.items()))
    print(f"storage operations of a row: {counted}")
    print(f"rows that say why: {dict(unread)}")


def _middle(took: list[float]) -> str:
    if not took:
        return ""
    known = sorted(took)
    p95 = known[max(0, math.ceil(0.95 * len(known)) - 1)]
    return f"{statistics.median(known):.0f} / {p95:.0f} ({len(known)} calls)"


if __name__ == "__main__":
    sys.exit(main())
