"""The contracts of storages and of copies on a real NameNode and DataNode, by WebHDFS."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from airflow_provider.runtime.api.storages import Storage
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.storage.file_tree import (
    facts_under,
    files_under,
    folders_in,
    remove_if_empty,
    remove_tree,
)
from airflow_provider.runtime.storage.open import open_storage
from airflow_provider.runtime.testing.storages import SharedStorageContract
from tests.real.hadoop.daemons import await_that
from tests.real.hadoop.hdfs import Hdfs

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[3]
LEASE_RACERS = 8
TAKING = """
import sys
from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.base.host import ProcessIdentity
from airflow_provider.runtime.errors import LeaseHeldError
from airflow_provider.runtime.jobdir.lease import acquire_lease
from airflow_provider.runtime.storage.open import open_storage

storage, machine = open_storage(sys.argv[1]), sys.argv[2]
owner = ProcessIdentity(host=machine, space=f"{machine}/boot", processes=((1, 1),))
storage.exists("anything")
print("ready", flush=True)
sys.stdin.readline()
try:
    lease = acquire_lease(
        storage, run_id="r", driver_id=machine, owner=owner, clock=SystemClock(),
        timeout_s=8.0, heartbeat_s=1.0,
    )
    print(lease.token, flush=True)
except LeaseHeldError:
    print("held", flush=True)
sys.stdin.readline()
"""


class TestRealHdfs(SharedStorageContract):
    """A NameNode and a DataNode."""

    names = ("*", "[ab]", "a b", "a%20b", "k=é")
    racing_processes = 4

    @pytest.fixture
    def storage(self, hdfs: Hdfs) -> Storage:
        return open_storage(f"{hdfs.url}/contract/{uuid.uuid4().hex}")

    def test_trees(self, storage: Storage) -> None:
        """Files, sizes, what tells one version from the next, folders; and their removal."""
        for path in ("d/b/2", "d/b/c/3", "d/1"):
            storage.put(path, path.encode())
        url = f"{storage.url}/d"
        before = facts_under(url)
        storage.put("d/1", b"new")

        assert [("1", 3), ("b/2", 5), ("b/c/3", 7)] == files_under(url)
        assert ["b"] == folders_in(url)
        assert [] == folders_in(f"{url}/none")
        changed = {path for path, facts in facts_under(url).items() if before[path] != facts}
        assert {"1"} == changed
        remove_if_empty(url)
        assert storage.exists("d/b")
        remove_tree(url)
        assert not storage.exists("d")

    def test_a_put_over_a_folder_and_below_a_file_is_refused(self, storage: Storage) -> None:
        """Neither loses what is there, and no temporary file stays."""
        storage.put("d/1", b"1")
        for path in ("d", "d/1/x"):
            with pytest.raises(OSError, match=storage.url):
                storage.put(path, b"2")

        assert b"1" == storage.read("d/1")
        assert [("d/1", 1)] == files_under(storage.url)
        assert ["d"] == storage.list("")

    def test_a_name_that_hdfs_cannot_have(self, storage: Storage) -> None:
        """It is refused before HDFS is asked."""
        with pytest.raises(ConfigError, match="HDFS has no name 'a:b'"):
            storage.put("d/a:b", b"1")

    def test_a_file_of_several_megabytes(self, storage: Storage) -> None:
        """It is streamed by the DataNode both ways."""
        data = os.urandom(3 * 2**20 + 1)
        storage.put("large", data)

        assert data == storage.read("large")

    def test_nobody_sees_a_name_twice_while_it_is_replaced(self, storage: Storage) -> None:
        """A listing during renames over a name has that name exactly once, and no other one."""
        storage.put("doc", b"0")
        ended = threading.Event()

        def look_on() -> set[tuple[str, ...]]:
            seen = set()
            while not ended.is_set():
                seen.add(tuple(storage.list("")))
            return seen

        with ThreadPoolExecutor(1) as pool:
            looking = pool.submit(look_on)
            for number in range(20):
                storage.put("doc", b"%d" % number)
            ended.set()

        assert {("doc",)} == looking.result()


def test_one_of_racing_machines_has_the_lease(hdfs: Hdfs, tmp_path: Path) -> None:
    """Drivers of several machines ask at once: one has it, and all others know."""
    job = f"{hdfs.url}/race/{uuid.uuid4().hex}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", TAKING, job, f"machine-{number}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for number in range(LEASE_RACERS)
    ]
    try:
        for racer in racers:
            assert racer.stdout is not None
            assert "ready\n" == racer.stdout.readline()
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
        won = [racer.stdout.readline().strip() for racer in racers if racer.stdout is not None]
    finally:
        for racer in racers:
            racer.kill()
            racer.communicate()

    assert ["1"] == [answer for answer in won if answer != "held"]
    assert ["1.json"] == open_storage(job).list("leases")


@pytest.mark.usefixtures("calm")
class TestOutages:
    """Each is a ``ConnectionError``, which is retried, and never the absence of a document."""

    @pytest.fixture
    def storage(self, hdfs: Hdfs) -> Storage:
        storage = open_storage(f"{hdfs.url}/outages/{uuid.uuid4().hex}")
        storage.put("there", b"1")
        return storage

    def test_a_namenode_in_safe_mode(self, hdfs: Hdfs, storage: Storage) -> None:
        """It answers readers and refuses writers for as long as it is in it; then all goes on."""
        hdfs.set_safe_mode(is_on=True)
        read = storage.read("there"), storage.list(""), storage.exists("missing")
        for write in (
            lambda: storage.put("there", b"2"),
            lambda: storage.put_if_absent("new", b"2"),
            lambda: storage.delete("there"),
        ):
            with pytest.raises(ConnectionError, match="SafeModeException"):
                write()
        hdfs.set_safe_mode(is_on=False)

        assert (b"1", ["there"], False) == read
        assert b"1" == storage.read("there")
        assert storage.put_if_absent("new", b"2") is True

    def test_a_namenode_that_leaves_safe_mode_is_waited_for(
        self, hdfs: Hdfs, storage: Storage
    ) -> None:
        """A write that begins in it, and whose retries last longer, is done."""
        hdfs.set_safe_mode(is_on=True)
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(storage.put_if_absent, "new", b"2")
            hdfs.set_safe_mode(is_on=False)

            assert writing.result() is True
        assert b"2" == storage.read("new")

    def test_a_namenode_that_is_killed_and_starts_again(self, hdfs: Hdfs, storage: Storage) -> None:
        """What was acknowledged is there; until then nothing is taken for missing."""
        for number in range(20):
            storage.put_if_absent(f"leases/{number}", b"mine")
        hdfs.namenode.kill()
        for ask in (
            lambda: storage.read("there"),
            lambda: storage.exists("missing"),
            lambda: storage.list("leases"),
            lambda: storage.put_if_absent("new", b"2"),
        ):
            with pytest.raises(ConnectionError, match="HDFS did not answer"):
                ask()
        hdfs.namenode.start()
        answers = []

        def answer() -> bool:
            try:
                answers.append(storage.read("there"))
            except ConnectionError:
                return False
            return True

        await_that("the document is read", answer)
        hdfs.wait()

        assert [b"1"] == answers
        assert 20 == len(storage.list("leases"))
        assert all(b"mine" == storage.read(f"leases/{number}") for number in range(20))
        assert storage.put_if_absent("leases/0", b"theirs") is False

    def test_a_datanode_that_is_gone(self, hdfs: Hdfs, storage: Storage) -> None:
        """Names are there without bytes: an outage of reads and writes, and no empty document."""
        hdfs.datanode.kill()
        await_that("the NameNode knows", lambda: hdfs.datanodes() == 0)
        for ask in (
            lambda: storage.read("there"),
            lambda: storage.put("there", b"2"),
            lambda: storage.put_if_absent("new", b"2"),
        ):
            with pytest.raises(ConnectionError):
                ask()
        names = storage.list("")
        hdfs.datanode.start()
        hdfs.wait()

        assert ["there"] == names
        assert b"1" == storage.read("there")
        assert storage.put_if_absent("new", b"2") is True

    def test_a_namenode_that_stands_still(self, hdfs: Hdfs, storage: Storage) -> None:
        """A request that it has not answered is answered when it goes on."""
        hdfs.namenode.pause()
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(storage.put_if_absent, "new", b"2")
            with pytest.raises(TimeoutError):
                writing.result(timeout=3)
            hdfs.namenode.resume()

            assert writing.result() is True
