"""The contract on HDFS, spoken to by WebHDFS, and what only HDFS can do wrong."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterator

import pytest

from airflow_provider.extensions.hdfs.storage import HdfsStorage
from airflow_provider.extensions.hdfs.webhdfs import NameNode
from airflow_provider.runtime.api.storages import Storage
from airflow_provider.runtime.errors import ConfigError, UnsupportedStorageError
from airflow_provider.runtime.storage.file_tree import (
    facts_under,
    files_under,
    folders_in,
    remove_if_empty,
    remove_tree,
)
from airflow_provider.runtime.storage.open import open_storage
from airflow_provider.runtime.testing.storages import SharedStorageContract
from tests.contract.conftest import StoreServer
from tests.contract.test_object_storage import DriversContract
from tests.unit.support import FakeClock

RENAME = "op=RENAME"
DATANODE = "namenoderpcaddress"  # what only a datanode is asked

pytestmark = pytest.mark.slow  # a namenode


def namenode_of(server: StoreServer) -> NameNode:
    """Return a namenode of which nothing is known yet."""
    host, _, port = server.address.removeprefix("http://").rpartition(":")
    return NameNode(host, int(port))


class TestHdfsStorage(DriversContract, SharedStorageContract):
    """HDFS, as the documents of WebHDFS and the sources of its namenode say."""

    names = ("*", "[ab]", "a b", "a%20b", "k=é")

    @pytest.fixture
    def server(self, hdfs: StoreServer) -> StoreServer:
        return hdfs

    @pytest.fixture
    def storage(self, server: StoreServer) -> Iterator[Storage]:
        yield open_storage(f"{server.url}/{uuid.uuid4().hex}")
        server.be_calm()

    @pytest.fixture
    def clocked(self, server: StoreServer) -> Iterator[tuple[HdfsStorage, FakeClock]]:
        clock = FakeClock()
        root = f"/jobs/{uuid.uuid4().hex}"
        yield HdfsStorage(namenode_of(server), root, clock=clock), clock
        server.be_calm()

    def test_what_an_operation_costs(self, storage: Storage, server: StoreServer):
        """Every operation asks as often as the documents say, and for nothing twice."""
        storage.put_if_absent("proven", b"1")
        costs = {
            "put": lambda: storage.put("a/1", b"1"),
            "put_if_absent, won": lambda: storage.put_if_absent("a/2", b"1"),
            "put_if_absent, lost": lambda: storage.put_if_absent("a/2", b"2"),
            "read": lambda: storage.read("a/1"),
            "exists": lambda: storage.exists("a/1"),
            "list": lambda: storage.list("a"),
            "delete": lambda: storage.delete("a"),
            "delete nothing": lambda: storage.delete("a"),
        }
        counted = {}
        for name, call in costs.items():
            server.requests()
            call()
            counted[name] = len(server.requests())

        assert {
            "put": 3,
            "put_if_absent, won": 3,
            "put_if_absent, lost": 6,
            "read": 2,
            "exists": 1,
            "list": 1,
            "delete": 1,
            "delete nothing": 1,
        } == counted

    def test_a_file_is_whole_before_it_has_its_name(self, storage: Storage, server: StoreServer):
        """
        Bytes go to a hidden name, which is renamed: with a name that must be free, or is replaced.
        """
        storage.put_if_absent("proven", b"1")
        server.requests()
        storage.put_if_absent("a", b"1")
        storage.put("a", b"2")

        asked = server.requests()
        written = {r["path"].rpartition("/")[2] for r in asked if r["query"]["op"] == "CREATE"}
        renames = [r["query"]["renameoptions"] for r in asked if r["query"]["op"] == "RENAME"]
        assert ["NONE", "OVERWRITE"] == renames
        assert 2 == len(written)
        assert all(name.startswith(".tmp-") for name in written)
        assert {"airflow"} == {request["query"]["user.name"] for request in asked}

    @pytest.mark.parametrize("is_there", [False, True])
    def test_a_lost_answer_is_no_lost_race(self, clocked, server: StoreServer, is_there):
        """
        A writer whose rename got no answer finds that it was done, and one that lost that it was not.
        """
        storage, _ = clocked
        storage.put_if_absent("proven", b"1")
        if is_there:
            storage.put("lease", b"theirs")
        server.disturb("lost", methods="PUT", query=RENAME)

        assert storage.put_if_absent("lease", b"mine") is not is_there
        assert (b"theirs" if is_there else b"mine") == storage.read("lease")
        assert ["lease", "proven"] == storage.list("")

    def test_a_lost_answer_of_a_put(self, clocked, server: StoreServer):
        """
        A document that was replaced without an answer is not replaced twice, and not an error.
        """
        storage, clock = clocked
        storage.put("doc", b"1")
        server.disturb("lost", methods="PUT", query=RENAME)
        storage.put("doc", b"2")

        assert b"2" == storage.read("doc")
        assert 0.5 == clock.time

    def test_half_a_file_is_never_seen(self, clocked, server: StoreServer):
        """
        A datanode that breaks off has half the bytes under a name that nobody reads; the next try
        has another name, and the half is removed.
        """
        storage, _ = clocked
        server.disturb("cut", query=DATANODE)
        server.requests()

        assert storage.put_if_absent("final.json", b"0123456789") is True
        assert b"0123456789" == storage.read("final.json")
        assert [("final.json", 10)] == files_under(storage.url)
        asked = server.requests()
        removed = [r["path"] for r in asked if r["method"] == "DELETE"]
        halves = [r["path"] for r in asked if r["query"]["op"] == "CREATE"][:1]
        assert halves[0] in removed

    def test_half_an_answer_is_not_the_file(self, clocked, server: StoreServer, tmp_path):
        """
        A datanode that breaks off in its answer is asked again, for documents and for large files.
        """
        storage, clock = clocked
        storage.put("doc", b"0123456789")
        server.disturb("short", methods="GET", times=2, query=DATANODE)

        assert b"0123456789" == storage.read("doc")
        assert 1.5 == clock.time
        server.disturb("short", methods="GET", query=DATANODE)
        storage.fetch("doc", str(tmp_path / "doc"), go_on=lambda: None)
        assert b"0123456789" == (tmp_path / "doc").read_bytes()

    def test_what_replaces_although_it_may_not_is_refused(self, clocked, server: StoreServer):
        """A namenode that gives a name twice is found out by the first writer."""
        storage, _ = clocked
        server.disturb("careless", times=9)

        with pytest.raises(UnsupportedStorageError, match="cannot decide between two drivers"):
            storage.put_if_absent("lease", b"mine")

    def test_a_gateway_without_such_a_rename_is_refused(self, httpfs: StoreServer):
        """HttpFS reads no option of a rename, and would move a file into a folder of that name."""
        storage = open_storage(httpfs.url)

        for write in (storage.put, storage.put_if_absent):
            with pytest.raises(UnsupportedStorageError, match="such as an HttpFS gateway"):
                write("a", b"1")

    def test_what_a_crash_left_half_written_is_not_listed(self, storage: Storage):
        """The hidden file of a writer that died is not among the names, nor among the files."""
        storage.put("d/whole", b"1")
        storage.put(f"d/.tmp-{uuid.uuid4().hex}", b"hal")

        assert ["whole"] == storage.list("d")
        assert [("d/whole", 1)] == files_under(storage.url)

    def test_a_name_that_hdfs_cannot_have(self, storage: Storage):
        """A colon is refused before anything is asked, by the name that has it."""
        with pytest.raises(ConfigError, match="HDFS has no name 'a:b'"):
            storage.put("d/a:b", b"1")

    def test_trees(self, storage: Storage):
        """
        The files of a tree, their sizes, what tells one version from the next, and the folders.
        """
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

    def test_an_empty_folder_is_removed_by_itself(self, storage: Storage):
        """
        HDFS keeps a folder when its last file goes, and so it can be removed when it is empty.
        """
        storage.put("d/1", b"1")
        storage.delete("d/1")
        assert storage.exists("d")
        remove_if_empty(f"{storage.url}/d")

        assert not storage.exists("d")

    def test_all_of_hdfs_is_not_removed(self, server: StoreServer):
        """An address that names the root cannot be a folder to remove."""
        with pytest.raises(ConfigError, match="this is all of HDFS"):
            remove_tree(server.url.removesuffix("/jobs"))

    def test_a_refused_request_is_named(self, storage: Storage, server: StoreServer):
        """What HDFS forbids is a permission error with the file's address and what to look at."""
        server.disturb("denied", methods="GET PUT", times=2)

        with pytest.raises(PermissionError, match="check HADOOP_USER_NAME"):
            storage.put_if_absent("a", b"1")
        with pytest.raises(PermissionError) as raised:
            storage.read("a")
        assert f"{storage.url}/a" == raised.value.filename

    def test_hdfs_that_is_away_for_a_moment(self, clocked, server: StoreServer):
        """What fails for the moment is asked for again, after a pause."""
        storage, clock = clocked
        storage.put("a", b"1")
        server.disturb("unavailable", times=2, methods="GET")

        assert b"1" == storage.read("a")
        assert 1.5 == clock.time

    def test_hdfs_that_is_away(self, clocked, server: StoreServer):
        """HDFS that does not answer is a connection error with the file's address."""
        storage, clock = clocked
        server.disturb("unavailable", times=99, methods="GET PUT DELETE")

        with pytest.raises(ConnectionError, match="HDFS did not answer .HTTP 503") as raised:
            storage.read("a")
        assert f"{storage.url}/a" == raised.value.filename
        with pytest.raises(ConnectionError):
            storage.put("a", b"1")
        assert clock.time < 10

    def test_a_namenode_without_datanodes_is_away(self, clocked, server: StoreServer):
        """Documents whose bytes nobody has for the moment are waited for, and never missing."""
        storage, clock = clocked
        storage.put("a", b"1")
        server.disturb("no datanode", times=2, methods="GET")
        assert b"1" == storage.read("a")
        assert 1.5 == clock.time
        server.disturb("no datanode", times=99, methods="GET PUT", query="op=")

        with pytest.raises(ConnectionError, match="No active and not excluded nodes"):
            storage.read("a")
        with pytest.raises(ConnectionError, match="Failed to find datanode"):
            storage.put_if_absent("b", b"1")
        assert ["a"] == storage.list("")

    def test_nobody_listens_there(self):
        """A port at which nobody listens is a connection error, too."""
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))  # and never listens
            namenode = NameNode("127.0.0.1", taken.getsockname()[1])
            with pytest.raises(ConnectionError, match="HDFS did not answer .127.0.0.1:"):
                HdfsStorage(namenode, "/job", clock=FakeClock()).read("a")

    def test_a_server_that_speaks_no_webhdfs(self, s3: StoreServer):
        """The port of another server is named as what it is, with the one that was meant."""
        url = s3.address.replace("http://", "webhdfs://")

        with pytest.raises(ConfigError, match="no WebHDFS answers there .HTTP 404.; name the port"):
            open_storage(f"{url}/job").read("a")
