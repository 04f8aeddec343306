"""The contract of a storage, as tests: subclass :class:`SharedStorageContract` for one of your own.

::

    class TestMyStorage(SharedStorageContract):
        @pytest.fixture
        def storage(self):
            return open_storage("mine://a/new/folder")

Its processes open the storage by its address, as drivers do. It needs ``pytest``.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import IO, TYPE_CHECKING

import pytest

from airflow_provider.runtime.errors import CorruptDocumentError

if TYPE_CHECKING:
    from airflow_provider.runtime.api.storages import Storage

_RACERS = 8
_RACING_PROCESS = """
import sys
from airflow_provider.runtime.storage.open import open_storage

storage, racer = open_storage(sys.argv[1]), sys.argv[2]
storage.exists("anything")  # whatever is connected at the first use is connected now
print("ready", flush=True)
sys.stdin.readline()
for name in range(20):
    if storage.put_if_absent(f"leases/{name}", racer.encode()):
        print(name)
"""


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


class StorageContract:
    """The promises; a subclass gives a fresh, empty ``storage``.

    Attributes:
        names: what a name may be there.
    """

    names: tuple[str, ...] = ("*", "2026-01-01T00:00:00+00:00", "[ab]", "a b", "a%20b", "k=é")

    def test_what_was_put_is_read_back(self, storage: Storage) -> None:
        """An object is read back byte for byte, under folders that nobody has made before."""
        storage.put("a/b/c.json", b"\x00one\n")

        assert b"\x00one\n" == storage.read("a/b/c.json")

    def test_put_replaces(self, storage: Storage) -> None:
        """A second put takes the place of the first, also when it is shorter."""
        storage.put("a", b"a long first object")
        storage.put("a", b"2")

        assert b"2" == storage.read("a")

    def test_an_empty_object_is_an_object(self, storage: Storage) -> None:
        """An object without bytes exists and is read as no bytes."""
        storage.put("a", b"")

        assert storage.exists("a")
        assert b"" == storage.read("a")

    def test_a_larger_object_is_not_read(self, storage: Storage) -> None:
        """A reader states the most bytes that it takes; an empty object is read as any other."""
        storage.put("a", b"1234")
        storage.put("empty", b"")

        assert b"1234" == storage.read_small("a", at_most_bytes=4)
        assert b"" == storage.read_small("empty", at_most_bytes=4)
        with pytest.raises(CorruptDocumentError, match=r"a: has .* bytes, and at most"):
            storage.read_small("a", at_most_bytes=3)
        with pytest.raises(FileNotFoundError):
            storage.read_small("missing", at_most_bytes=4)

    def test_reading_what_is_not_there(self, storage: Storage) -> None:
        """Reading a missing object says so, whether or not its folder exists."""
        storage.put("a/there", b"1")

        with pytest.raises(FileNotFoundError):
            storage.read("a/missing")
        with pytest.raises(FileNotFoundError):
            storage.read("b/missing")

    def test_put_if_absent_writes_once(self, storage: Storage) -> None:
        """The first put-if-absent writes and says so; the second changes nothing and says so."""
        assert storage.put_if_absent("a/1", b"first") is True
        assert storage.put_if_absent("a/1", b"second") is False
        assert b"first" == storage.read("a/1")

    def test_put_if_absent_respects_a_plain_put(self, storage: Storage) -> None:
        """An object that an ordinary put wrote is not absent."""
        storage.put("a", b"put")

        assert storage.put_if_absent("a", b"other") is False
        assert b"put" == storage.read("a")

    def test_a_deleted_object_is_absent_again(self, storage: Storage) -> None:
        """After a delete, put-if-absent writes."""
        storage.put("a", b"1")
        storage.delete("a")

        assert storage.put_if_absent("a", b"2") is True
        assert b"2" == storage.read("a")

    @pytest.mark.parametrize("round_", range(5))
    def test_one_of_racing_threads_wins(self, storage: Storage, round_: int) -> None:
        """Of racing threads one learns that it won, and its bytes are the object."""
        start = threading.Barrier(_RACERS)

        def race(racer: int) -> bool:
            start.wait()
            return storage.put_if_absent(f"leases/{round_}.json", f"racer {racer}".encode())

        with ThreadPoolExecutor(_RACERS) as pool:
            won = list(pool.map(race, range(_RACERS)))

        assert 1 == won.count(True)
        assert f"racer {won.index(True)}".encode() == storage.read(f"leases/{round_}.json")

    def test_a_reader_never_sees_a_part(self, storage: Storage) -> None:
        """While an object is replaced again and again, every read gives one version, whole."""
        versions = [bytes([65 + i]) * 50_000 for i in range(8)]
        storage.put("doc", versions[0])
        ended = threading.Event()

        def read_all() -> set[bytes]:
            seen = set()
            while not ended.is_set():
                seen.add(storage.read("doc"))
                seen.update(storage.read(name) for name in storage.list(""))
            return seen

        with ThreadPoolExecutor(2) as pool:
            reading = [pool.submit(read_all) for _ in range(2)]
            for version in versions * 5:
                storage.put("doc", version)
            ended.set()
            seen = set().union(*(reader.result() for reader in reading))

        assert seen
        assert seen <= set(versions)

    def test_list_is_sorted_and_shallow(self, storage: Storage) -> None:
        """A listing gives the names directly under a folder, of objects and folders, sorted."""
        for path in ("d/b.json", "d/a.json", "d/sub/x", "d/10", "other"):
            storage.put(path, b"1")

        assert ["10", "a.json", "b.json", "sub"] == storage.list("d")
        assert ["d", "other"] == storage.list("")

    def test_listing_shows_what_was_just_put(self, storage: Storage) -> None:
        """A listing is never behind the writes before it."""
        listings = []
        for number in range(5):
            storage.put_if_absent(f"d/{number}", b"")
            listings.append(len(storage.list("d")))

        assert [1, 2, 3, 4, 5] == listings

    def test_list_of_nothing_is_empty(self, storage: Storage) -> None:
        """A folder that does not exist has no names."""
        assert [] == storage.list("nowhere")
        assert [] == storage.list("")

    def test_exists_tells_of_objects_and_folders(self, storage: Storage) -> None:
        """Objects and the folders they lie in exist, other names do not."""
        storage.put("a/b", b"1")

        assert storage.exists("a/b")
        assert storage.exists("a")
        assert not storage.exists("a/c")
        assert not storage.exists("b")

    def test_delete_removes_an_object_only(self, storage: Storage) -> None:
        """Deleting an object leaves its neighbours."""
        storage.put("a/1", b"1")
        storage.put("a/2", b"2")
        storage.delete("a/1")

        assert ["2"] == storage.list("a")

    def test_many_objects_are_deleted_at_once(self, storage: Storage) -> None:
        """Those that are named go, also where some are gone already, and no other."""
        for name in ("a", "b", "c", "d/a"):
            storage.put(name, b"x")
        storage.delete_all(["a", "c", "none", "d/a"])
        storage.delete_all([])

        assert ["b"] == [name for name in storage.list("") if storage.exists(name) and name != "d"]
        assert [] == storage.list("d")

    def test_delete_removes_a_tree(self, storage: Storage) -> None:
        """Deleting a folder removes all in it, and nothing beside it."""
        for path in ("a/1", "a/b/2", "ab/3"):
            storage.put(path, b"1")
        storage.delete("a")

        assert not storage.exists("a")
        assert not storage.exists("a/b/2")
        assert storage.exists("ab/3")

    def test_names_that_begin_alike_are_different(self, storage: Storage) -> None:
        """A name that is the beginning of another one is not that other one."""
        for path in ("a/10", "a/1-x", "a/1.json", "a/100/x"):
            storage.put(path, b"1")
        storage.delete("a/1")

        assert not storage.exists("a/1")
        assert [] == storage.list("a/1")
        assert ["1-x", "1.json", "10", "100"] == storage.list("a")

    def test_names_of_any_kind(self, storage: Storage) -> None:
        """Blanks, patterns, escapes and letters of any alphabet are parts of a name."""
        names = list(self.names)
        for name in names:
            storage.put(f"d/{name}", name.encode())

        assert names == storage.list("d")
        assert [name.encode() for name in names] == [storage.read(f"d/{name}") for name in names]
        storage.delete("d/*")
        assert names[1:] == storage.list("d")

    def test_delete_of_nothing_is_done(self, storage: Storage) -> None:
        """Deleting what is not there is no error, twice neither."""
        storage.delete("nowhere/1")
        storage.delete("nowhere/1")

        assert not storage.exists("nowhere")

    def test_at_is_the_same_location(self, storage: Storage) -> None:
        """A storage at a folder reads and writes the same objects by shorter paths."""
        below = storage.at("runs/r1")
        below.put("run.json", b"1")
        storage.put("runs/r1/final.json", b"2")

        assert b"1" == storage.read("runs/r1/run.json")
        assert ["final.json", "run.json"] == below.list("")
        assert b"2" == storage.at("runs").at("r1").read("final.json")
        assert f"{storage.url}/runs/r1" == below.url

    def test_the_url_has_no_slash_at_the_end(self, storage: Storage) -> None:
        """An address can be extended with a slash and a path."""
        assert not storage.url.endswith("/")


class SharedStorageContract(StorageContract):
    """The promises of a location that several processes see."""

    racing_processes = 2

    @pytest.mark.slow
    def test_one_of_racing_processes_wins(self, storage: Storage) -> None:
        """Of racing processes one wins each name, and each sees the names of the others."""
        assert [] == storage.list("leases")
        command = [sys.executable, "-c", _RACING_PROCESS, storage.url]
        racers = [
            subprocess.Popen(
                [*command, str(racer)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for racer in range(self.racing_processes)
        ]
        for process in racers:
            assert "ready\n" == _pipe(process.stdout).readline()
        for process in racers:
            _pipe(process.stdin).write("go\n")
            _pipe(process.stdin).flush()
        won = {str(racer): process.communicate()[0].split() for racer, process in enumerate(racers)}

        names = sorted((name for mine in won.values() for name in mine), key=int)
        assert [str(name) for name in range(20)] == names
        assert won == {
            racer: [n for n in mine if storage.read(f"leases/{n}").decode() == racer]
            for racer, mine in won.items()
        }
        assert sorted(names) == storage.list("leases")

    def test_other_processes_see_it(self, storage: Storage) -> None:
        """The location is shared with the driver and its executors."""
        assert storage.shared is True
