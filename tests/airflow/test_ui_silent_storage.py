"""A storage that takes connections and never answers, beside the page and Airflow's own API."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from handmade_page import PageJob
from page_server import page_server, silent_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from page_server import PageServer

PAGES = 10
HANGING = 12  # more than a location has threads
IN_TIME_S = 4.0  # on a machine that does much else; a thread of Airflow's that hung would take 60

pytestmark = [pytest.mark.whole, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    """Give an API server with a job on a disk and some in a bucket that never answers."""
    folder: Path = tmp_path_factory.mktemp("silent")
    job = PageJob(folder / "job").fail()
    hanging = [("page", f"hangs_{i}", "deferred", f"s3://hangs/{i}", True) for i in range(HANGING)]
    with silent_store() as silent, page_server(folder, **silent) as started:
        started.put([("page", "failed", "failed", job.url, True), *hanging])
        yield started


def test_a_bucket_that_never_answers_holds_nobody(server: PageServer) -> None:
    """
    Ten pages get the others in time, with who did not answer; meanwhile Airflow's own API answers
    as before.
    """
    lists: list[tuple[float, dict[str, Any]]] = []
    own: list[float] = []
    ended = threading.Event()

    def be_a_page() -> None:
        with client(server) as http:
            while not ended.is_set():
                lists.append(timed(http, "/spark-stream/api/jobs"))
                ended.wait(1.0)

    threads = [threading.Thread(target=be_a_page) for _ in range(PAGES)]
    for thread in threads:
        thread.start()
    try:
        with client(server) as http:
            for _ in range(30):
                own += [timed(http, f"/api/v2/{path}")[0] for path in ("version", "dags")]
                ended.wait(0.3)
            last = timed(http, "/spark-stream/api/jobs")[1]
    finally:
        ended.set()
        for thread in threads:
            thread.join()

    assert max(own) < IN_TIME_S
    assert max(took for took, _ in lists) < IN_TIME_S
    first = {job["task"]["task_id"]: job for job in lists[0][1]["jobs"]}
    assert ("failed", HANGING + 1) == (first["failed"]["state"], len(first))
    said = {job["task"]["task_id"]: job["reason"] for job in last["jobs"]}
    assert "CAST_INVALID_INPUT" in said.pop("failed")
    assert {"storage does not answer"} == set(said.values())


def client(server: PageServer) -> httpx.Client:
    return httpx.Client(
        base_url=f"http://127.0.0.1:{server.port}",
        headers={"Authorization": f"Bearer {server.token}"},
        timeout=60,
        trust_env=False,
    )


def timed(http: httpx.Client, path: str) -> tuple[float, Any]:
    began = time.monotonic()
    answer = http.get(path).raise_for_status()
    return time.monotonic() - began, answer.json()
