"""The contract on object stores, spoken to by HTTP, and what only they can do wrong."""

from __future__ import annotations

import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator

import pytest

from airflow_provider.runtime.api.storages import Storage
from airflow_provider.runtime.errors import (
    EXIT_USAGE,
    ConfigError,
    LeaseHeldError,
    UnsupportedStorageError,
)
from airflow_provider.runtime.jobdir.lease import LeaseObserver, Liveness
from airflow_provider.runtime.jobdir.lease_records import last_token
from airflow_provider.runtime.storage.buckets import S3Bucket, open_s3
from airflow_provider.runtime.storage.file_tree import (
    files_under,
    folders_in,
    remove_if_empty,
    remove_tree,
)
from airflow_provider.runtime.storage.objects import ObjectStorage
from airflow_provider.runtime.storage.open import open_storage
from airflow_provider.runtime.testing.storages import SharedStorageContract, StorageContract
from tests.contract.conftest import BUCKET, StoreServer, serve_s3
from tests.pipes import stdin_of, stdout_of
from tests.unit.support import FakeClock, take_lease

FORKING_PROCESS = """
import os, sys, warnings
from airflow_provider.runtime.storage.open import open_storage

warnings.simplefilter("ignore")
storage = open_storage(sys.argv[1])
storage.put("parent", b"1")
child = os.fork()
storage.put(f"child" if child == 0 else "parent again", b"2")
if child:
    sys.exit(os.waitpid(child, 0)[1])
os._exit(0)
"""
LEASING_PROCESS = """
import sys
from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.errors import LeaseHeldError
from airflow_provider.runtime.jobdir.lease import acquire_lease
from airflow_provider.runtime.base.host import identify_this
from airflow_provider.runtime.storage.open import open_storage

storage = open_storage(sys.argv[1])
storage.exists("anything")
print("ready", flush=True)
sys.stdin.readline()
try:
    lease = acquire_lease(
        storage, run_id=sys.argv[2], driver_id=sys.argv[2], owner=identify_this(),
        clock=SystemClock(),
    )
    print("won", lease.token, flush=True)
except LeaseHeldError:
    print("held", flush=True)
sys.stdin.readline()
"""


class DriversContract:
    """What drivers and their children do in a location; a subclass gives a fresh ``storage``."""

    @pytest.mark.slow
    def test_a_child_process_has_its_own_connections(self, storage: Storage):
        """A storage that was used before a fork works in the child and in the parent."""
        command = [sys.executable, "-c", FORKING_PROCESS, storage.url]
        subprocess.run(command, check=True, timeout=30)

        assert ["child", "parent", "parent again"] == storage.list("")

    @pytest.mark.long
    def test_one_of_racing_drivers_gets_the_lease(self, storage: Storage):
        """Of drivers that start together one gets the lease, and its heart beats there."""
        drivers = [
            subprocess.Popen(
                [sys.executable, "-c", LEASING_PROCESS, storage.url, f"r{number}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(2)
        ]
        assert ["ready\n"] * 2 == [stdout_of(driver).readline() for driver in drivers]
        for driver in drivers:
            stdin_of(driver).write("go\n")
            stdin_of(driver).flush()
        told = [stdout_of(driver).readline().strip() for driver in drivers]
        lease, liveness = LeaseObserver(storage, FakeClock()).look()
        for driver in drivers:
            driver.communicate("end\n", timeout=10)

        assert ["held", "won 1"] == sorted(told)
        assert lease is not None
        assert f"r{told.index('won 1')}" == lease.run_id
        assert liveness is Liveness.UNKNOWN
        assert ["1.json"] == storage.list("heartbeats")

    def test_a_lease_is_held_fenced_and_released(self, storage: Storage):
        """A lease keeps others out while it is held; who takes the next one fences its holder."""
        clock = FakeClock()
        first = take_lease(storage, clock)
        observer = LeaseObserver(storage, clock)
        observer.look()
        first.beat()
        assert Liveness.LIVE is observer.look()[1]
        first.check()
        first.release()
        second = take_lease(storage, clock, run_id="r2")

        assert 2 == second.token == last_token(storage)
        assert first.is_lost()
        second.beat()
        with pytest.raises(LeaseHeldError, match="another driver is running this job"):
            take_lease(storage, _Beating(clock, second), run_id="r3")
        second.release()


class ObjectStoreContract(SharedStorageContract):
    """What is added by having requests, pages, and folders that are only a way of naming.

    Attributes:
        condition: what a request says that writes only where nothing is.
    """

    condition: str

    @pytest.fixture
    def storage(self, server: StoreServer) -> Iterator[Storage]:
        yield open_storage(f"{server.url}/{uuid.uuid4().hex}")
        server.be_calm()

    def test_what_an_operation_costs(self, storage: ObjectStorage, server: StoreServer):
        """Every operation asks the store as often as the documents say, and for nothing twice."""
        storage.put_if_absent("proven", b"1")
        costs = {
            "put": lambda: storage.put("a/1", b"1"),
            "put_if_absent, won": lambda: storage.put_if_absent("a/2", b"1"),
            "put_if_absent, lost": lambda: storage.put_if_absent("a/2", b"2"),
            "read": lambda: storage.read("a/1"),
            "read small": lambda: storage.read_small("a/1", at_most_bytes=9),
            "exists": lambda: storage.exists("a/1"),
            "exists not": lambda: storage.exists("a/3"),
            "list": lambda: storage.list("a"),
            "delete": lambda: storage.delete("a/1"),
            "delete nothing": lambda: storage.delete("a/1"),
        }
        counted = {}
        for name, call in costs.items():
            server.requests()
            call()
            counted[name] = len(server.requests())

        assert {
            "put": 1,
            "put_if_absent, won": 1,
            "put_if_absent, lost": 2,
            "read": 1,
            "read small": 1,
            "exists": 1,
            "exists not": 1,
            "list": 1,
            "delete": 2,
            "delete nothing": 1,
        } == counted

    def test_only_put_if_absent_has_a_condition(self, storage: ObjectStorage, server: StoreServer):
        """The store is asked by its own condition to write only where nothing is, and only then."""
        storage.put_if_absent("proven", b"1")
        server.requests()
        storage.put_if_absent("a", b"1")
        storage.put("a", b"2")

        conditions = [
            request["if_none_match"] or request["query"].get("ifGenerationMatch")
            for request in server.requests()
        ]
        assert [self.condition, None] == conditions

    def test_a_lost_answer_is_no_lost_race(self, storage: ObjectStorage, server: StoreServer):
        """
        A writer whose answer got lost, and whose library then finds the object there, has won.
        """
        storage.put_if_absent("proven", b"1")
        server.requests()
        server.disturb("lost")

        assert storage.put_if_absent("lease", b"mine") is True
        assert storage.put_if_absent("lease", b"theirs") is False
        assert b"mine" == storage.read("lease")
        assert len(server.requests()) > 3

    def test_a_store_that_ignores_the_condition_is_refused(self, storage, server: StoreServer):
        """A store that lets every writer win is found out by the first one."""
        server.disturb("careless", times=9)

        with pytest.raises(UnsupportedStorageError, match="does not heed the condition") as raised:
            storage.put_if_absent("lease", b"mine")

        assert EXIT_USAGE == raised.value.exit_code

    def test_a_write_in_parts_is_proven_as_well(self, storage, server: StoreServer):
        """
        A large object is sent otherwise, and its condition may be ignored where others are heeded.
        """
        storage._bucket.parts_from_bytes = 5
        for data in (b"1", b"12", b"large 1", b"large 2"):
            server.requests()
            assert storage.put_if_absent(f"document of {len(data)} {data!r}", data)
            sent = [r for r in server.requests() if r["method"] in {"POST", "PUT"}]
            assert (2 if data in {b"1", b"large 1"} else 1) == len(sent)

    def test_folder_marks_are_no_objects(self, storage: ObjectStorage):
        """
        Empty objects that consoles and Hadoop write for folders are folders, and go with them.
        """
        for mark in ("d/", "d/sub/", "d/empty/"):
            storage._bucket.write(f"{storage._key('')}/{mark}", b"")
        storage.put("d/sub/x", b"1")

        assert ["empty", "sub"] == storage.list("d")
        assert [] == storage.list("d/empty")
        assert storage.exists("d/empty")
        assert [("d/sub/x", 1)] == files_under(storage.url)
        assert ["empty", "sub"] == folders_in(f"{storage.url}/d")
        storage.delete("d")
        assert not storage.exists("d")

    def test_pages_are_turned(self, storage: ObjectStorage):
        """What does not fit into one answer of the store is asked for until all is there."""
        names = [f"{number:02}" for number in range(8)]
        for name in names:
            storage.put(f"d/{name}/part", b"12")

        assert names == storage.list("d")
        assert [(f"{name}/part", 2) for name in names] == files_under(f"{storage.url}/d")
        assert names == folders_in(f"{storage.url}/d")
        remove_tree(f"{storage.url}/d")
        remove_tree(f"{storage.url}/d")
        assert [] == files_under(storage.url)
        assert [] == folders_in(f"{storage.url}/d")

    def test_a_missing_bucket_is_named(self, server: StoreServer):
        """Writing to and listing a bucket that does not exist says so, and what to do."""
        storage = open_storage(server.url.replace(BUCKET, "another"))

        with pytest.raises(ConfigError, match="/jobs/a: the bucket or container does not exist"):
            storage.put("a", b"1")
        with pytest.raises(ConfigError, match="create it, or correct the address"):
            storage.list("")

    def test_a_refused_request_is_named(self, storage: ObjectStorage, server: StoreServer):
        """What the store forbids is a permission error with the location's address."""
        server.disturb("denied", methods="GET PUT POST", times=2)

        with pytest.raises(PermissionError, match="may not create here; check the credentials"):
            storage.put_if_absent("a", b"1")
        with pytest.raises(PermissionError, match="may not read here") as raised:
            storage.read("a")
        assert f"{storage.url}/a" == raised.value.filename

    def test_a_whole_bucket_is_not_removed(self, server: StoreServer):
        """An address that names no more than a bucket cannot be a folder to remove."""
        root = server.url.removesuffix("/jobs")

        with pytest.raises(ConfigError, match="a whole bucket"):
            remove_tree(root)


class TestS3Storage(DriversContract, ObjectStoreContract):
    """Amazon S3, as moto imitates it."""

    condition = "*"

    @pytest.fixture
    def server(self, s3: StoreServer) -> StoreServer:
        return s3

    @pytest.fixture
    def clocked(self, storage: ObjectStorage) -> tuple[ObjectStorage, FakeClock]:
        clock = FakeClock()
        bucket, key = open_s3(storage.url)
        return ObjectStorage(bucket, key, f"s3://{BUCKET}", clock=clock), clock

    def test_writers_in_each_others_way_try_again(self, clocked, server: StoreServer):
        """S3 answers 409 to conditional writes that met; the write is repeated after a pause."""
        storage, clock = clocked
        server.disturb("conflict", times=3)

        assert storage.put_if_absent("lease", b"mine") is True
        assert b"mine" == storage.read("lease")
        assert 0.35 == pytest.approx(clock.time)

    def test_writers_in_each_others_way_for_ever_give_up(self, clocked, server: StoreServer):
        """When the store never decides, the writer is told that it is not known who won."""
        storage, clock = clocked
        server.disturb("conflict", times=99)

        with pytest.raises(OSError, match="other writes interfered all the time"):
            storage.put_if_absent("lease", b"mine")
        assert clock.time < 5

    def test_a_busy_store_is_asked_again(self, storage: ObjectStorage, server: StoreServer):
        """The library repeats what failed for the moment."""
        server.disturb("unavailable")
        storage.put("a", b"1")

        assert b"1" == storage.read("a")

    def test_a_store_that_does_not_answer(self, storage, monkeypatch):
        """A store that cannot be reached is a connection error with the location's address."""
        from s3fs import S3FileSystem

        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))  # and never listens
            endpoint = f"http://127.0.0.1:{taken.getsockname()[1]}"
            monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
            bucket = S3Bucket(
                BUCKET, lambda: S3FileSystem(endpoint_url=endpoint, skip_instance_cache=True)
            )
            unreachable = ObjectStorage(bucket, "job", f"s3://{BUCKET}")

            with pytest.raises(ConnectionError, match="the store did not answer") as raised:
                unreachable.read("a")

        assert f"s3://{BUCKET}/job/a" == raised.value.filename

    def test_without_credentials(self, storage, monkeypatch):
        """Having no credentials is a permission error that says so."""
        from s3fs import S3FileSystem

        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
        monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
        bucket = S3Bucket(BUCKET, lambda: S3FileSystem(skip_instance_cache=True))

        with pytest.raises(PermissionError, match="NoCredentialsError"):
            ObjectStorage(bucket, "job", f"s3://{BUCKET}").put("a", b"1")


@pytest.fixture(scope="class")
def folders_stay() -> Iterator[StoreServer]:
    yield from serve_s3("s3folders")


class TestS3WithFolders(StorageContract):
    """A store with S3's protocol that goes on listing the names of empty folders."""

    @pytest.fixture
    def storage(self, folders_stay: StoreServer) -> Storage:
        return open_storage(f"{folders_stay.url}/{uuid.uuid4().hex}")

    def test_a_removed_tree_is_listed_no_more(self, storage: Storage, folders_stay: StoreServer):
        """Its folders go with what was in them, by the same request; one that is empty goes, too."""
        for path in ("d/a", "d/b/c/x", "d/b/y", "empty/x", "other/x"):
            storage.put(path, b"1")
        storage.delete("empty/x")
        assert storage.exists("empty")
        folders_stay.requests()

        storage.delete("d")
        storage.delete("empty")

        assert ["GET", "GET", "POST"] * 2 == [each["method"] for each in folders_stay.requests()]
        assert ["other"] == storage.list("")

    def test_a_folder_is_removed_if_it_is_empty(self, storage: Storage):
        """Of a folder with an object nothing is removed, and one that is not there is no error."""
        for path in ("full/x", "full/mark/", "empty/x", "empty/y"):
            storage.put(path, b"1")
        storage.delete_all(["empty/x", "empty/y"])
        assert ["empty", "full"] == storage.list("")

        for name in ("full", "empty", "none"):
            remove_if_empty(f"{storage.url}/{name}")

        assert ["full"] == storage.list("")
        assert ["mark", "x"] == storage.list("full")


class _Beating(FakeClock):
    """A clock under which a lease's holder beats whenever somebody waits."""

    def __init__(self, clock: FakeClock, lease) -> None:
        super().__init__(clock.wall)
        self.during_sleep = lease.beat


class TestGcsStorage(ObjectStoreContract):
    """Google Cloud Storage, by the documents of its API."""

    condition = "0"

    @pytest.fixture
    def server(self, gcs: StoreServer) -> StoreServer:
        return gcs


class TestAzureStorage(ObjectStoreContract):
    """Azure Blob Storage, by the documents of its API."""

    condition = "*"

    @pytest.fixture
    def server(self, azure: StoreServer) -> StoreServer:
        return azure


@pytest.mark.whole
class TestAzuriteStorage(DriversContract, ObjectStoreContract):
    """Azure Blob Storage, as Microsoft's own emulator has it; it decides between racing writers."""

    condition = "*"

    @pytest.fixture
    def server(self, azurite: StoreServer) -> StoreServer:
        return azurite

    def test_a_store_that_ignores_the_condition_is_refused(self, storage, server: StoreServer):
        """
        Here nobody on the way can take the condition from a request, as the signature covers it.
        """
        server.disturb("careless", times=9)

        with pytest.raises(PermissionError, match="AuthorizationFailure"):
            storage.put_if_absent("lease", b"mine")
        assert [] == storage.list("")
