"""A store that is away for a while: who goes on, who stops, and that nobody is taken for dead."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.jobdir.lease import LeaseObserver, Liveness
from airflow_provider.runtime.storage.open import open_storage
from tests.contract.conftest import StoreServer, forget_clients
from tests.unit.small_driver import TIMEOUT_S

ROOT = Path(__file__).parents[2]
UNAVAILABLE = "503|SERVICE UNAVAILABLE"  # the second is what Azure's library says


class Driver:
    """A driver of a job in the store, as a process."""

    def __init__(self, tmp_path: Path, url: str) -> None:
        self._end = tmp_path / "end"
        self._published = tmp_path / "published"
        environment = {
            **os.environ,
            "END": str(self._end),
            "PUBLISHED": str(self._published),
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        arguments = [url, "r1", "d1"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.unit.small_driver", *arguments],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )

    def published(self) -> int:
        return len(self._published.read_text().splitlines()) if self._published.exists() else 0

    def await_more(self, than: int) -> None:
        await_that(lambda: self.published() > than)

    def stop(self) -> tuple[int, str]:
        self._end.touch()
        said = self.process.communicate(timeout=60)[1]
        return self.process.returncode, said


def await_that(what, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Onlooker(threading.Thread):
    """Looks at the lease all the time, as a trigger does, and counts what it sees."""

    def __init__(self, url: str) -> None:
        super().__init__(name="onlooker", daemon=True)
        self._observer = LeaseObserver(open_storage(url), SystemClock())
        self._ended = threading.Event()
        self.seen: list[Liveness | None] = []

    def run(self) -> None:
        while not self._ended.wait(0.05):
            try:
                self.seen.append(self._observer.look()[1])
            except OSError:
                self.seen.append(None)

    def end(self) -> list[Liveness | None]:
        self._ended.set()
        if self.is_alive():
            self.join(60)
        return self.seen


@pytest.fixture(
    params=["s3", *(pytest.param(store, marks=pytest.mark.whole) for store in ("azurite", "hdfs"))]
)
def server(request) -> StoreServer:
    return request.getfixturevalue(request.param)


@pytest.fixture
def job(server, monkeypatch) -> Iterator[str]:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")  # an outage need not be waited for five times
    forget_clients()
    yield f"{server.url}/{uuid.uuid4().hex}"
    server.be_calm()
    forget_clients()


@pytest.fixture
def driver(server, job, tmp_path):
    started = Driver(tmp_path, job)
    yield started
    server._process.send_signal(signal.SIGCONT)  # also after a failure
    started.process.kill()
    started.process.communicate()


@pytest.fixture
def onlooker(server, job) -> Iterator[Onlooker]:
    looking = Onlooker(job)
    yield looking
    server._process.send_signal(signal.SIGCONT)
    server.be_calm()
    looking.end()


@pytest.mark.long
def test_a_store_that_hangs_for_longer_than_the_timeout_makes_nobody_dead(
    server, job, driver, onlooker
):
    """
    A store that answers nobody for twice the timeout, and then does: the driver publishes nothing
    meanwhile, goes on with the same lease, and no onlooker has taken it for dead.
    """
    driver.await_more(0)
    onlooker.start()
    await_that(lambda: Liveness.LIVE in onlooker.seen)
    server._process.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    while time.monotonic() - began < 0.2:  # a look that was answered before may lead to one more
        time.sleep(0.01)
    before = driver.published()
    while time.monotonic() - began < 2 * TIMEOUT_S:
        assert before == driver.published()
        time.sleep(0.05)
    server._process.send_signal(signal.SIGCONT)
    driver.await_more(before)
    seen = onlooker.end()
    code, said = driver.stop()

    assert 0 == code, said
    assert Liveness.DEAD not in seen
    assert ["1.json"] == open_storage(job).list("leases")


@pytest.mark.long
def test_a_store_that_fails_for_longer_than_the_timeout_ends_the_driver(
    server, job, driver, onlooker
):
    """
    A store that fails for a moment is borne; one that fails until others may take over ends the driver,
    which says so, and whoever comes next has the lease at once.
    """
    driver.await_more(0)
    onlooker.start()
    await_that(lambda: Liveness.LIVE in onlooker.seen)
    server.disturb("unavailable", times=3, methods="GET PUT")
    driver.await_more(driver.published())
    server.disturb("unavailable", times=1_000_000, methods="GET PUT")
    code = driver.process.wait(60)
    said = driver.stop()[1]
    with pytest.raises(OSError, match=UNAVAILABLE):
        LeaseObserver(open_storage(job), SystemClock()).look()
    server.be_calm()
    await_that(lambda: Liveness.DEAD in onlooker.seen)
    onlooker.end()

    assert 3 == code, said
    assert re.search(UNAVAILABLE, said)
    assert ["1.json"] == open_storage(job).list("leases")
