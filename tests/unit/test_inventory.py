"""Inventory of a checkpoint: the files that a copy needs, every format by hand, every refusal."""

from __future__ import annotations

import dataclasses
import io
import json
import zipfile
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.runtime.checkpoint.inventory import (
    Inventory,
    NeededFile,
    StateOperator,
    StateProvider,
    take_inventory,
)
from airflow_provider.runtime.checkpoint.operators import readdress
from airflow_provider.runtime.errors import (
    CorruptDocumentError,
    MissingStateError,
    TruncatedStateError,
    UnknownFormatError,
)
from tests.unit.test_changelog import head, items, lz4

HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
JOIN_STORES = (
    "left-keyToNumValues",
    "left-keyWithIndexToValue",
    "right-keyToNumValues",
    "right-keyWithIndexToValue",
)
KEYED = b'\0\2v2\0\0\0\1\0\x57{"type":"struct","fields":[{"name":"k","type":"string"}]}'
KEYLESS = b'\0\2v2\0\0\0\1\0\x1d{"type":"struct","fields":[]}\0\0\0\1\0\x57{"type":"struct"}'
LIMIT = b'\0\2v2\0\0\0\1\0\x57{"type":"struct","fields":[{"name":"key","type":"void"}]}'
ROOT = "file:/warehouse/cp"


class Tree:
    """A checkpoint by hand: its files as bytes, and which of them were read."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.read_paths: list[str] = []

    def put(self, *paths: str, data: bytes = b"x") -> None:
        self.files.update(dict.fromkeys(paths, data))

    def read(self, path: str) -> bytes:
        self.read_paths.append(path)
        try:
            return self.files[path]
        except KeyError:
            raise FileNotFoundError(path) from None

    def listing(self) -> dict[str, int]:
        return {path: len(data) for path, data in self.files.items()}

    def copy(self, inventory: Inventory) -> Tree:
        """Return the checkpoint that has the inventory's files and no others."""
        copied = Tree()
        copied.files = {file.path: self.files[file.path] for file in inventory.files}
        return copied

    # --- what Spark writes ----------------------------------------------------------------------

    def log(
        self,
        *batches: int,
        conf: Mapping[str, str] | None = None,
        sources: Iterable[str] = ('{"offset":1}',),
        version: str = "v1",
    ) -> None:
        """Plan and commit batches, in checkpoint format 1."""
        self.put("metadata", data=b'v1\n{"id":"q"}')
        metadata = json.dumps({"batchWatermarkMs": 0, "conf": dict(conf or {})})
        for batch in batches:
            offsets = "\n".join([version, metadata, *sources])
            self.put(f"offsets/{batch}", data=offsets.encode())
            self.put(f"commits/{batch}", data=b'v1\n{"nextBatchWatermarkMs":0}')

    def log_ids(
        self, batch: int, ids: Mapping[int, list[list[str]]], *, version: str = "v2"
    ) -> None:
        """Plan and commit a batch in checkpoint format 2."""
        self.log(batch)
        commit = {"nextBatchWatermarkMs": 0, "stateUniqueIds": ids}
        self.put(f"commits/{batch}", data=f"{version}\n{json.dumps(commit)}".encode())

    def operator(
        self,
        number: int = 0,
        name: str = "stateStoreSave",
        *,
        stores: Iterable[str] = ("default",),
        partitions: int = 1,
        schema: bytes = KEYED,
    ) -> None:
        """Describe an operator whose state keeps its schema."""
        infos = [
            {"storeName": s, "numColsPrefixKey": 0, "numPartitions": partitions} for s in stores
        ]
        document = {
            "operatorInfo": {"operatorId": number, "operatorName": name},
            "stateStoreInfo": infos,
        }
        self.put(f"state/{number}/_metadata/metadata", data=f"v1\n{json.dumps(document)}".encode())
        for store in stores:
            folder = "" if store == "default" else f"{store}/"
            self.put(f"state/{number}/0/{folder}_metadata/schema", data=schema)

    def evolving_operator(self, number: int, *batches: int, partitions: int = 1) -> None:
        """Describe an operator whose schema may change; each batch began a run."""
        for batch in batches:
            schemas = [f"state/{number}/_stateSchema/default/{b}_s" for b in batches if b <= batch]
            store = {
                "storeName": "default",
                "numPartitions": partitions,
                "stateSchemaFilePaths": [f"{ROOT}/{path}" for path in schemas],
            }
            document = {
                "operatorInfo": {"operatorId": number, "operatorName": "transformWithStateExec"},
                "stateStoreInfo": [store],
                "operatorPropertiesJson": '{"timeMode":"EventTime"}',
            }
            self.put(*schemas)
            self.put(
                f"state/{number}/_metadata/v2/{batch}", data=f"v2\n{json.dumps(document)}".encode()
            )

    def deltas(self, *versions: int, folder: str = "state/0/0") -> None:
        self.put(*[f"{folder}/{version}.delta" for version in versions])

    def changelogs(self, *versions: int | str, folder: str = "state/0/0") -> None:
        self.put(*[f"{folder}/{version}.changelog" for version in versions])

    def zip(
        self,
        version: int | str,
        *ssts: str,
        logs: Iterable[str] = (),
        folder: str = "state/0/0",
        head: str = "v1",
    ) -> None:
        """Write a snapshot of RocksDB and the files that it names."""
        document: dict[str, Any] = {"sstFiles": [], "numKeys": 1}
        for sst in ssts:
            self.put(f"{folder}/SSTs/{sst}.sst", data=b"sst")
            entry = {"localFileName": "1.sst", "dfsSstFileName": f"{sst}.sst", "sizeBytes": 3}
            document["sstFiles"].append(entry)
        for log in logs:
            self.put(f"{folder}/logs/{log}.log", data=b"archived")
            entry = {"localFileName": "1.log", "dfsLogFileName": f"{log}.log", "sizeBytes": 8}
            document.setdefault("logFiles", []).append(entry)
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("CURRENT", b"MANIFEST-000005\n")
            file.writestr("metadata", f"{head}\n{json.dumps(document)}")
        self.put(f"{folder}/{version}.zip", data=archive.getvalue())

    # --- what is asked --------------------------------------------------------------------------

    def take(self, batch: int, **asked: Any) -> Inventory:
        return take_inventory(self.listing(), self.read, batch=batch, where="/cp", **asked)

    def taken(self, batch: int, *, under: str = "state", **asked: Any) -> list[str]:
        """Return the needed files under a folder, relative to it."""
        paths = [file.path for file in self.take(batch, **asked).files]
        return [path[len(under) + 1 :] for path in paths if path.startswith(f"{under}/")]

    def missing(self, batch: int, **asked: Any) -> tuple[str, ...]:
        with pytest.raises(MissingStateError) as raised:
            self.take(batch, **asked)
        return raised.value.paths


@pytest.fixture
def tree() -> Tree:
    return Tree()


def stateful(tree: Tree, *batches: int, **asked: Any) -> Tree:
    """Make a checkpoint of one operator with one partition, without its state."""
    tree.log(*batches)
    tree.operator(**asked)
    return tree


# --- the logs, and what is copied as it is ------------------------------------------------------


def test_a_query_without_state(tree):
    """
    The id, the last two entries of each log and what the sources keep; every file with its size.
    """
    tree.log(3, 4, 5, 6)
    tree.put("sources/0/0", "sources/1/7", data=b"12345")

    inventory = tree.take(5)

    assert ["commits/4", "commits/5", "metadata", "offsets/4", "offsets/5", "sources/0/0"] == [
        file.path for file in inventory.files[:-1]
    ]
    assert NeededFile("sources/1/7", 5) == inventory.files[-1]
    assert (5, False, 1, (), ()) == (
        inventory.batch,
        inventory.planned,
        inventory.format_version,
        inventory.operators,
        inventory.addressed,
    )
    assert sum(len(tree.files[file.path]) for file in inventory.files) == inventory.size_bytes


def test_the_first_batch_has_none_before_it(tree):
    """After batch 0 there is one entry in each log."""
    tree.log(0)

    assert ["commits/0", "metadata", "offsets/0"] == [file.path for file in tree.take(0).files]


def test_a_planned_batch_is_taken_when_asked_for(tree):
    """
    The plan of the batch in flight makes the copy unaligned; its run then begins with that batch.
    """
    tree.log(0, 1)
    tree.put("offsets/2", data=tree.files["offsets/1"])

    assert ["0", "1"] == tree.taken(1, under="offsets")
    assert ["0", "1", "2"] == tree.taken(1, under="offsets", planned=True)
    assert tree.take(1, planned=True).planned
    assert ("offsets/3",) == tree.missing(2, planned=True)[-1:]


def test_the_entry_before_is_not_needed_with_a_plan(tree):
    """Spark reads the last two entries of the offset log, and a plan is one of them."""
    tree.log(5, 6)
    tree.put("offsets/7", data=tree.files["offsets/6"])
    del tree.files["offsets/5"], tree.files["commits/5"]

    assert ["6", "7"] == tree.taken(6, under="offsets", planned=True)
    assert ("offsets/5",) == tree.missing(6)


def test_what_is_unknown_is_copied_as_it_is(tree):
    """
    Folders, and files of operators and partitions, that are not known today may matter tomorrow.
    """
    stateful(tree, 0)
    tree.deltas(1)
    unknown = {"new/x", "top", "state/x", "state/0/_new/x", "state/0/0/x.new", "state/0/0/_new/x"}
    tree.put(*unknown)

    assert unknown <= {file.path for file in tree.take(0).files}


def test_what_is_being_written_is_left_out(tree):
    """Files under temporary names come and go while a query runs."""
    stateful(tree, 0)
    tree.deltas(1)
    before = tree.take(0)
    tree.put("sources/0/.9.compact.0b.tmp", "state/0/0/.2.delta.0b.TID9.tmp")
    tree.put("state/0/0/..2.delta.0b.TID9.tmp.crc", "offsets/.1.0b.tmp", "new/.x.tmp")

    assert before == tree.take(0)


def test_checksums_come_with_their_files(tree):
    """
    Hadoop's lie hidden beside each file on a local disk, Spark's beside those of the state, and
    Hadoop's beside Spark's.
    """
    tree.log_ids(0, {0: [["a"]]})
    tree.operator()
    tree.zip("1_a", "7-x")
    tree.zip("1_b", "7-y")
    beside = {
        f"{folder}.{name}.crc"
        for folder, name in [
            ("", "metadata"),
            ("offsets/", "0"),
            ("commits/", "0"),
            ("state/0/_metadata/", "metadata"),
            ("state/0/0/_metadata/", "schema"),
            ("state/0/0/", "1_a.zip"),
            ("state/0/0/", "1_a.zip.crc"),
            ("state/0/0/SSTs/", "7-x.sst"),
        ]
    }
    tree.put(*beside, "state/0/0/1_a.zip.crc")
    tree.put("state/0/0/.1_b.zip.crc", "state/0/0/1_b.zip.crc", "state/0/0/SSTs/.7-y.sst.crc")

    taken = {file.path for file in tree.take(0).files}

    assert {*beside, "state/0/0/1_a.zip.crc"} == {path for path in taken if path.endswith(".crc")}


# --- HDFS-backed state --------------------------------------------------------------------------


def test_deltas_from_the_first_one_on(tree):
    """Without a snapshot all changes since version 1 are needed, and none after the batch's."""
    stateful(tree, 0, 1, 2, 3)
    tree.deltas(1, 2, 3, 4)

    assert ["0/0/1.delta", "0/0/2.delta", "0/0/3.delta"] == tree.taken(2)[:3]
    assert StateProvider.HDFS is tree.take(2).operators[0].provider


def test_the_newest_snapshot_and_the_deltas_after_it(tree):
    """What leads to the snapshot is not needed, nor is a snapshot of a later batch."""
    stateful(tree, 8, 9)
    tree.put(*[f"state/0/0/{version}.snapshot" for version in (4, 8, 11)])
    tree.deltas(4, 5, 6, 7, 8, 9, 10, 11)

    expected = ["0/0/10.delta", "0/0/8.snapshot", "0/0/9.delta", "0/0/_metadata/schema"]
    assert [*expected, "0/_metadata/metadata"] == tree.taken(9)


def test_a_snapshot_of_the_batch_itself_is_enough(tree):
    """A state that is stored as a whole needs no changes."""
    stateful(tree, 8, 9)
    tree.put("state/0/0/10.snapshot")

    assert "0/0/10.snapshot" == tree.taken(9)[0]


# --- RocksDB, format 1 --------------------------------------------------------------------------


def test_a_snapshot_comes_with_the_files_that_it_names(tree):
    """Of what snapshots share, only the files that the needed one names are taken."""
    stateful(tree, 2, 3)
    tree.zip(3, "1-a", "2-a")
    tree.zip(4, "2-a", "3-a", logs=["8-a"])
    tree.zip(5, "4-a")
    tree.put("state/0/0/SSTs/orphan.sst")

    state = ["0/0/4.zip", "0/0/SSTs/2-a.sst", "0/0/SSTs/3-a.sst", "0/0/_metadata/schema"]
    assert [*state, "0/0/logs/8-a.log", "0/_metadata/metadata"] == tree.taken(3)
    operator = StateOperator(0, "stateStoreSave", 1, ("default",), StateProvider.ROCKSDB)
    assert (operator,) == tree.take(3).operators


def test_an_empty_snapshot_names_no_files(tree):
    """A store without rows has no SST files."""
    stateful(tree, 0)
    tree.zip(1)

    assert ["0/0/1.zip"] == tree.taken(0)[:1]


def test_changelogs_after_the_snapshot(tree):
    """With changelogs a snapshot is uploaded now and then, and the changes after it are needed."""
    stateful(tree, 5, 6)
    tree.zip(3, "1-a")
    tree.zip(5, "2-a")
    tree.changelogs(3, 4, 5, 6, 7, 8)

    expected = ["0/0/5.zip", "0/0/6.changelog", "0/0/7.changelog", "0/0/SSTs/2-a.sst"]
    assert expected == tree.taken(6)[:4]
    assert ["state/0/0/5.zip"] == [path for path in tree.read_paths if path.endswith(".zip")]


def test_changelogs_before_the_first_snapshot(tree):
    """Before the first upload all changes since version 1 are needed."""
    stateful(tree, 0, 1)
    tree.changelogs(1, 2)

    assert ["0/0/1.changelog", "0/0/2.changelog"] == tree.taken(1)[:2]


# --- several partitions, stores and operators ---------------------------------------------------


def test_each_partition_has_a_chain_of_its_own(tree):
    """Snapshots are uploaded for each partition alone, at different times."""
    stateful(tree, 1, 2, partitions=3)
    tree.changelogs(1, 2, 3)
    tree.zip(2, "1-a", folder="state/0/1")
    tree.changelogs(3, folder="state/0/1")
    tree.zip(3, "1-a", folder="state/0/2")

    assert ["1.changelog", "2.changelog", "3.changelog"] == tree.taken(2, under="state/0/0")[:3]
    assert ["2.zip", "3.changelog", "SSTs/1-a.sst"] == tree.taken(2, under="state/0/1")
    assert ["3.zip", "SSTs/1-a.sst"] == tree.taken(2, under="state/0/2")
    assert 3 == tree.take(2).operators[0].partitions


def test_a_join_has_four_stores_in_each_partition(tree):
    """Each of a join's stores lies in a folder of its own, with its schema."""
    stateful(tree, 0, name="symmetricHashJoin", stores=JOIN_STORES, partitions=2)
    for partition in (0, 1):
        for store in JOIN_STORES:
            tree.zip(1, "1-a", folder=f"state/0/{partition}/{store}")

    assert ["1.zip", "SSTs/1-a.sst"] == tree.taken(0, under=f"state/0/1/{JOIN_STORES[2]}")
    assert 2 * 4 * 2 + 4 + 1 == len(tree.taken(0))
    assert JOIN_STORES == tree.take(0).operators[0].stores
    del tree.files[f"state/0/1/{JOIN_STORES[1]}/1.zip"]
    assert (f"state/0/1/{JOIN_STORES[1]}/1.*",) == tree.missing(0)


def test_operators_that_follow_each_other(tree):
    """Every stateful operator of the plan has state of the same version."""
    stateful(tree, 0)
    tree.operator(1, "dedupe")
    tree.deltas(1)
    tree.deltas(1, folder="state/1/0")

    assert [(0, "stateStoreSave"), (1, "dedupe")] == [
        (o.id, o.name) for o in tree.take(0).operators
    ]
    assert ["0/1.delta", "0/_metadata/schema", "_metadata/metadata"] == tree.taken(
        0, under="state/1"
    )


@pytest.mark.parametrize("schema", [KEYLESS, LIMIT], ids=["aggregation", "limit"])
def test_an_operator_without_keys_has_one_partition_whatever_was_planned(tree, schema):
    """All rows of an aggregation without keys, or of a limit, meet in partition 0."""
    stateful(tree, 0, partitions=3, schema=schema)
    tree.deltas(1)

    assert 1 == tree.take(0).operators[0].partitions


def test_other_partitions_of_an_operator_without_keys_are_of_a_repartitioning(tree):
    """It has written an empty state to each, once; the query goes on with partition 0 alone."""
    stateful(tree, 2, 3, 4, partitions=3, schema=KEYLESS)
    tree.deltas(1, 2, 3, 4, 5)
    for partition in (1, 2):
        tree.put(f"state/0/{partition}/4.snapshot")

    assert [3, 1] == [tree.take(batch).operators[0].partitions for batch in (3, 4)]


def test_a_schema_that_cannot_be_read_does_not_excuse_missing_partitions(tree):
    """Only a key without columns explains why there is one partition where three were planned."""
    stateful(tree, 0, partitions=3, schema=b"?{")
    tree.deltas(1)

    assert ("state/0/1/1.*", "state/0/2/1.*") == tree.missing(0)


@pytest.mark.parametrize(
    "conf",
    [
        {"spark.sql.shuffle.partitions": "2"},
        {
            "spark.sql.streaming.internal.stateStore.partitions": "2",
            "spark.sql.shuffle.partitions": "5",
        },
    ],
)
def test_repartitioned_state_has_as_many_partitions_as_the_offset_log_says(tree, conf):
    """Spark does not write an operator's metadata anew; what is left of partitions stays behind."""
    stateful(tree, 1, 2, partitions=3)
    tree.log(2, conf=conf)
    for partition in (0, 1, 2):
        tree.changelogs(1, 2, folder=f"state/0/{partition}")
    tree.put("state/0/2/_metadata/x")
    for partition in (0, 1):
        tree.zip(3, "1-a", folder=f"state/0/{partition}")

    assert ["3.zip", "SSTs/1-a.sst"] == tree.taken(2, under="state/0/1")
    assert [] == tree.taken(2, under="state/0/2")


def test_a_planned_repartitioning_does_not_count_yet(tree):
    """The state of the committed batch has the partitions that this batch had."""
    stateful(tree, 0, partitions=2)
    tree.log(0, conf={"spark.sql.shuffle.partitions": "2"})
    tree.deltas(1)
    tree.deltas(1, folder="state/0/1")
    planned = json.dumps({"conf": {"spark.sql.shuffle.partitions": "9"}})
    tree.put("offsets/1", data=f"v1\n{planned}\n-".encode())

    assert 2 == tree.take(0, planned=True).operators[0].partitions


# --- RocksDB, format 2 --------------------------------------------------------------------------


def test_the_commit_says_whose_state_counts(tree):
    """Of several attempts of a batch, the commit log names the one that counts."""
    tree.log_ids(4, {0: [["d"], ["e"]]})
    tree.log_ids(5, {0: [["f"], ["g"]]})
    tree.operator(partitions=7)
    for writer in "fx":
        tree.zip(f"6_{writer}", f"1-{writer}")
    tree.zip("6_g", "1-a", folder="state/0/1")

    inventory = tree.take(5)

    assert ["6_f.zip", "SSTs/1-f.sst"] == tree.taken(5, under="state/0/0")[:2]
    assert ["6_g.zip", "SSTs/1-a.sst"] == tree.taken(5, under="state/0/1")
    assert (2, 2) == (inventory.format_version, inventory.operators[0].partitions)


def test_older_commits_say_whose_changes_count(tree):
    """
    As far as the commit log reaches back, one entry speaks for all stores and no changelog is read.
    """
    for batch, writer in enumerate("abcd"):
        tree.log_ids(batch, {0: [[writer]]}, version="v3")
    tree.operator()
    tree.zip("2_b", "1-a")
    tree.zip("3_x", "1-x")
    tree.changelogs("1_a", "2_b", "3_c", "3_x", "4_d", "4_x")

    expected = ["2_b.zip", "3_c.changelog", "4_d.changelog", "SSTs/1-a.sst"]
    assert expected == tree.taken(3, under="state/0/0")[:4]
    assert [] == [path for path in tree.read_paths if path.endswith("changelog")]


def test_beyond_the_commit_log_the_lineage_says_it(tree):
    """When older commits are gone, one changelog tells of all changes before it."""
    tree.log_ids(5, {0: [["e"]]})
    tree.log_ids(6, {0: [["f"]]})
    tree.operator()
    tree.zip("3_c", "1-a")
    tree.changelogs("4_d", "4_x", "5_y", "7_f")
    tree.put("state/0/0/5_p.changelog", data=lz4(head(items({3: "c", 4: "d"}))))
    lineage = {3: "c", 4: "d", 5: "p"}
    tree.put("state/0/0/6_e.changelog", data=lz4(head(items(lineage))))

    taken = tree.taken(6, under="state/0/0")

    assert ["3_c.zip", "4_d", "5_p", "6_e", "7_f"] == [name.split(".ch")[0] for name in taken[:5]]
    assert ["state/0/0/6_e.changelog"] == [p for p in tree.read_paths if p.endswith("changelog")]


def test_changes_since_the_first_batch(tree):
    """A store without a snapshot yet is restored from nothing and all changes."""
    tree.log_ids(0, {0: [["a"]]})
    tree.log_ids(1, {0: [["b"]]})
    tree.operator()
    tree.changelogs("1_a", "2_b")

    assert ["1_a.changelog", "2_b.changelog"] == tree.taken(1, under="state/0/0")[:2]


def test_a_commit_that_vanishes_is_made_up_for_by_the_lineage(tree):
    """Spark may remove an older commit between the listing and the reading."""
    tree.log_ids(0, {0: [["a"]]})
    tree.log_ids(1, {0: [["b"]]})
    tree.log_ids(2, {0: [["c"]]})
    tree.operator()
    tree.changelogs("1_a")
    tree.put("state/0/0/2_b.changelog", data=lz4(head(items({1: "a"}))))
    tree.put("state/0/0/3_c.changelog", data=lz4(head(items({1: "a", 2: "b"}))))
    listing = tree.listing()
    del tree.files["commits/0"]

    inventory = take_inventory(listing, tree.read, batch=2, where="/cp")

    assert "state/0/0/1_a.changelog" in {file.path for file in inventory.files}


def test_each_store_of_a_join_has_an_id(tree):
    """The ids of a partition's stores are in the order of the operator's stores."""
    tree.log_ids(0, {0: [["a", "b", "c", "d"]]})
    tree.operator(name="symmetricHashJoin", stores=JOIN_STORES)
    for store, writer in zip(JOIN_STORES, "abcd", strict=True):
        tree.changelogs(f"1_{writer}", f"1_{writer}{writer}", folder=f"state/0/0/{store}")

    assert ["1_c.changelog"] == tree.taken(0, under=f"state/0/0/{JOIN_STORES[2]}")[:1]


# --- operators whose schema may change ----------------------------------------------------------


def test_the_newest_description_up_to_the_batch_is_taken(tree):
    """Each run describes the operator anew; the batch that is running now may have done so, too."""
    tree.log(8, 9)
    tree.evolving_operator(0, 0, 7, 10)
    tree.deltas(*range(1, 11))
    tree.put("state/0/_metadata/v2/.7.crc", "state/0/_stateSchema/default/.7_s.crc")

    inventory = tree.take(9)

    own = [path for path in tree.taken(9, under="state/0") if path.startswith("_")]
    schemas = [f"_stateSchema/default/{name}" for name in (".7_s.crc", "0_s", "7_s")]
    assert ["_metadata/v2/7", *schemas] == own
    assert ("state/0/_metadata/v2/7",) == inventory.addressed


def test_a_schema_file_that_is_named_must_be_there(tree):
    """The schemas are named by the operator's description, wherever it was written."""
    tree.log(0)
    tree.evolving_operator(0, 0)
    tree.deltas(1)
    del tree.files["state/0/_stateSchema/default/0_s"]

    assert ("state/0/_stateSchema/default/0_s",) == tree.missing(0)


def test_a_description_is_readdressed(tree):
    """In a copy it names the copy's own schema files, and nothing else changes."""
    tree.evolving_operator(0, 0, 7)
    data = tree.files["state/0/_metadata/v2/7"]

    moved = readdress(data, root="s3a://bucket/savepoint/", where="7")

    assert [
        f"s3a://bucket/savepoint/state/0/_stateSchema/default/{b}_s" for b in (0, 7)
    ] == json.loads(moved.split(b"\n", 1)[1])["stateStoreInfo"][0]["stateSchemaFilePaths"]
    assert json.loads(readdress(moved, root=ROOT, where="7")[3:]) == json.loads(data[3:])
    assert moved.startswith(b"v2\n")


def test_a_description_without_an_address_stays_as_it_is(tree):
    """Operators whose schema cannot change name no files."""
    tree.operator()
    data = tree.files["state/0/_metadata/metadata"]

    assert data is readdress(data, root=ROOT, where="metadata")


def test_a_schema_file_outside_of_the_checkpoint_is_refused(tree):
    """A copy could not contain it."""
    tree.evolving_operator(0, 0)
    data = tree.files["state/0/_metadata/v2/0"].replace(b"/state/0/", b"/elsewhere/")

    with pytest.raises(UnknownFormatError, match="^m: the schema file .* lies outside"):
        readdress(data, root=ROOT, where="m")


# --- refusals -----------------------------------------------------------------------------------


def rocksdb(tree: Tree) -> Tree:
    """Make a checkpoint after batch 6 with a snapshot and two changelogs in each of two partitions."""
    stateful(tree, 5, 6, partitions=2)
    for partition in (0, 1):
        tree.zip(5, "1-a", folder=f"state/0/{partition}")
        tree.changelogs(6, 7, folder=f"state/0/{partition}")
    return tree


@pytest.mark.parametrize(
    ("gone", "named"),
    [
        ("metadata", "metadata"),
        ("commits/6", "commits/6"),
        ("offsets/6", "offsets/6"),
        ("offsets/5", "offsets/5"),
        ("state/0/_metadata/metadata", "state/0/_metadata/metadata"),
        ("state/0/1/7.changelog", "state/0/1/7.changelog"),
        ("state/0/1/6.changelog", "state/0/1/6.changelog"),
        ("state/0/1/5.zip", "state/0/1/5.changelog"),
        ("state/0/1/SSTs/1-a.sst", "state/0/1/SSTs/1-a.sst"),
    ],
)
def test_a_needed_file_that_is_not_there_is_named(tree, gone, named):
    """Spark may have cleaned it up meanwhile, so the message says what to do."""
    rocksdb(tree)
    del tree.files[gone]

    with pytest.raises(MissingStateError, match=r"^/cp: batch 6 needs .* list again") as raised:
        tree.take(6)

    assert (named,) == raised.value.paths
    assert named in str(raised.value)


def test_a_whole_partition_that_is_missing_is_noticed(tree):
    """The number of partitions is known, whatever the listing shows."""
    rocksdb(tree)
    tree.files = {p: d for p, d in tree.files.items() if not p.startswith("state/0/1/")}

    assert ("state/0/1/7.*",) == tree.missing(6)


def test_a_whole_operator_that_is_missing_is_noticed(tree):
    """Operators are numbered from 0, and in format 2 the commit names them."""
    tree.log(0)
    tree.operator(2)
    tree.deltas(1, folder="state/2/0")
    assert ("state/0/_metadata", "state/1/_metadata") == tree.missing(0)

    other = Tree()
    other.log_ids(0, {0: [["a"]]})
    assert ("state/0/_metadata",) == other.missing(0)


def test_a_folder_with_a_huge_number_is_no_count_of_operators(tree):
    """
    The name of a folder may be anything; what lacks is named up to a bound, without a long count.
    """
    stateful(tree, 0)
    tree.deltas(1)
    tree.deltas(1, folder=f"state/{10**18}/0")

    missing = tree.missing(0)

    assert "state/1/_metadata" == missing[0]
    assert 10_000 == len(missing)


@pytest.mark.slow
def test_a_huge_number_of_partitions_is_not_counted_up(tree):
    """The offset log may say anything, too."""
    stateful(tree, 0)
    tree.log(0, conf={"spark.sql.shuffle.partitions": str(10**9)})
    tree.deltas(1)

    missing = tree.missing(0)

    assert "state/0/1/1.delta" == missing[0].replace("*", "delta")
    assert 10_000 == len(missing)


def test_a_batch_that_wrote_no_state_is_refused(tree):
    """A foreachBatch that does not touch its rows commits a batch whose state was never written."""
    stateful(tree, 0, partitions=2)

    assert ("state/0/0/1.*", "state/0/1/1.*") == tree.missing(0)


def test_many_missing_files_are_counted(tree):
    """The message names three and counts the others; the error has them all."""
    stateful(tree, 0, partitions=9)

    with pytest.raises(MissingStateError, match=r"state/0/2/1\.\* and 6 more\. ") as raised:
        tree.take(0)
    assert 9 == len(raised.value.paths)


@pytest.mark.parametrize("changed", ["commits/6", "state/0/_metadata/metadata", "state/0/1/5.zip"])
@pytest.mark.parametrize("how", [None, b"another"], ids=["gone", "changed"])
def test_a_file_that_is_not_as_it_was_listed_is_named(tree, changed, how):
    """What is read may have vanished, or been written anew, since it was listed."""
    rocksdb(tree)
    listing = tree.listing()
    if how is None:
        del tree.files[changed]
    else:
        tree.files[changed] = how

    with pytest.raises(MissingStateError) as raised:
        take_inventory(listing, tree.read, batch=6, where="/cp")
    assert (changed,) == raised.value.paths


def test_a_truncated_file_is_named_with_both_sizes(tree):
    """A snapshot knows how long the files are that it names."""
    rocksdb(tree)
    tree.files["state/0/1/SSTs/1-a.sst"] = b"ss"

    with pytest.raises(TruncatedStateError, match="it has 2 bytes instead of 3") as raised:
        tree.take(6)

    assert ("state/0/1/SSTs/1-a.sst",) == raised.value.paths
    assert (2, 3) == (raised.value.size, raised.value.expected_size)


@pytest.mark.parametrize(
    ("path", "data", "complaint"),
    [
        ("commits/6", b"v4\n{}", "'v4' is not a known version of Spark's commit log"),
        (
            "state/0/_metadata/metadata",
            b"v3\n{}",
            "'v3' is not a known version of an operator's metadata",
        ),
    ],
)
def test_an_unknown_version_is_named(tree, path, data, complaint):
    """A newer Spark may write what is not understood here; nothing is guessed."""
    rocksdb(tree).files[path] = data

    with pytest.raises(UnknownFormatError, match=f"^/cp/{path}: {complaint}"):
        tree.take(6)


def test_an_unknown_version_of_a_snapshot_is_named(tree):
    """The metadata in a snapshot has a version of its own."""
    rocksdb(tree).zip(7, "1-a", folder="state/0/1", head="v2")

    with pytest.raises(UnknownFormatError, match=r"^/cp/state/0/1/7.zip: 'v2' is not a known"):
        tree.take(6)


def test_a_provider_of_somebody_elses_is_named(tree):
    """State in files that are not known cannot be copied safely."""
    stateful(tree, 0)
    tree.log(0, conf={"spark.sql.streaming.stateStore.providerClass": "com.example.Store"})
    tree.put("state/0/0/1.sqlite")

    with pytest.raises(UnknownFormatError, match=r"^/cp/state/0: state of com\.example\.Store"):
        tree.take(0)


def zipped(name: str, data: bytes) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr(name, data)
    return archive.getvalue()


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("offsets/6", b"v1"),
        ("commits/6", b"v1\n["),
        ("commits/6", b"v2\n[]"),
        ("commits/6", b'v2\n{"stateUniqueIds":{"x":[]}}'),
        ("state/0/_metadata/metadata", b"v1\n{"),
        ("state/0/_metadata/metadata", b"v1\n[]"),
        ("state/0/_metadata/metadata", b'v1\n{"operatorInfo":{},"stateStoreInfo":[]}'),
        ("state/0/1/5.zip", b"PK"),
        ("state/0/1/5.zip", zipped("other", b"")),
        ("state/0/1/5.zip", zipped("metadata", b"v1\n{")),
        ("state/0/1/5.zip", zipped("metadata", b"v1\n7")),
        ("state/0/1/5.zip", zipped("metadata", b'v1\n{"sstFiles":[{}]}')),
    ],
)
def test_what_cannot_be_read_is_named(tree, path, data):
    """A file that is not what its name says is the culprit."""
    rocksdb(tree).files[path] = data

    with pytest.raises(CorruptDocumentError, match=f"^/cp/{path}: "):
        tree.take(6)


def test_a_commit_without_an_id_for_a_store_is_refused(tree):
    """In format 2 no file can be chosen without one."""
    tree.log_ids(0, {0: [["a"]]})
    tree.operator(stores=("default", "second"))
    tree.changelogs("1_a")

    with pytest.raises(CorruptDocumentError, match=r"^/cp/commits/0: no id .* state/0/0/second"):
        tree.take(0)


def test_a_lineage_that_ends_too_early_is_refused(tree):
    """Spark could not restore the state, either."""
    tree.log_ids(6, {0: [["f"]]})
    tree.log_ids(7, {0: [["g"]]})
    tree.operator()
    tree.changelogs("8_g")
    tree.put("state/0/0/7_f.changelog", data=lz4(head(items({5: "x"}))))

    with pytest.raises(CorruptDocumentError, match=r"7_f.changelog: .* not name version 6"):
        tree.take(7)


# --- file sources -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sources", "entries", "missing"),
    [
        (['{"logOffset":3}'], ["0/2", "0/3"], ()),
        (['{"logOffset":3}'], ["0/9.compact"], ()),
        (['{"logOffset":3}'], ["0/2", "0/1.compact"], ("sources/0/3",)),
        (['{"logOffset":3}'], [], ("sources/*/3",)),
        (['{"logOffset":3}', '{"logOffset":8}'], ["0/3", "1/8"], ()),
        (['{"logOffset":3}', '{"logOffset":8}'], ["1/3", "0/8", "2/0"], ()),
        (['{"logOffset":3}', '{"logOffset":8}'], ["0/3", "1/7"], ("sources/1/8",)),
        (['{"logOffset":3}', '{"logOffset":3}'], ["0/3"], ()),
        (['{"logOffset":3}', '{"logOffset":3}'], ["0/3", "1/2"], ("sources/1/3",)),
        (['{"logOffset":3}', '{"logOffset":8}', '{"logOffset":8}'], ["0/8"], ("sources/*/3",)),
        (['{"logOffset":3}', '{"logOffset":3}'], [], ("sources/*/3",)),
        (['{"logOffset":-1}', '{"offset":5}', "-", "7"], [], ()),
        (['0:{"logOffset":3}'], ["0/2"], ("sources/0/3",)),
    ],
)
def test_a_file_sources_log_must_reach_the_offset(tree, sources, entries, missing):
    """A listing that was begun before the batch was planned may lack what its offsets refer to."""
    tree.log(0, sources=sources)
    tree.put(*[f"sources/{entry}" for entry in entries])

    assert missing == (tree.missing(0) if missing else ())
    tree.put("offsets/1", data=tree.files["offsets/0"])
    tree.log(0)
    assert missing == (tree.missing(0, planned=True) if missing else ())


# --- properties ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class History:
    """A store of RocksDB's after some batches: what was uploaded, and what was cleaned up."""

    batch: int
    snapshots: frozenset[int]
    changes: frozenset[int]

    def base(self) -> int | None:
        """Return the version from which Spark would restore; None when it could not."""
        version = self.batch + 1
        base = max((s for s in self.snapshots if s <= version), default=0)
        return base if set(range(base + 1, version + 1)) <= self.changes else None

    def tree(self) -> Tree:
        tree = stateful(Tree(), self.batch - 1, self.batch)
        for version in self.snapshots:
            tree.zip(version, f"{version}-a", "shared")
        tree.changelogs(*self.changes)
        return tree


HISTORIES = st.builds(
    History,
    batch=st.integers(1, 9),
    snapshots=st.frozensets(st.integers(1, 12), max_size=4),
    changes=st.frozensets(st.integers(1, 12)) | st.just(frozenset(range(1, 13))),
)


@pytest.mark.slow
@given(HISTORIES)
def test_any_store_is_taken_from_where_spark_would_restore_it_or_refused(history):
    """
    The newest snapshot up to the batch's version, all changes after it, nothing else; refused
    exactly when Spark could not restore it.
    """
    tree, base = history.tree(), history.base()
    if base is None:
        assert tree.missing(history.batch)
        return
    changes = {f"{version}.changelog" for version in range(base + 1, history.batch + 2)}
    snapshot = {f"{base}.zip", f"SSTs/{base}-a.sst", "SSTs/shared.sst"} if base else set()

    taken = set(tree.taken(history.batch, under="state/0/0"))

    assert {*changes, *snapshot, "_metadata/schema"} == taken


@pytest.mark.slow
@given(HISTORIES.filter(lambda history: history.base() is not None), st.data())
def test_a_copy_is_complete_and_has_nothing_to_spare(history, data):
    """
    The inventory of the copy is the same one, and without any of its files of the state or of its
    logs it is refused.
    """
    tree = history.tree()
    inventory = tree.take(history.batch)
    copy = tree.copy(inventory)
    assert inventory == copy.take(history.batch)

    spare = {f"commits/{history.batch - 1}", "state/0/0/_metadata/schema"}
    paths = sorted(set(copy.files) - spare)
    del copy.files[data.draw(st.sampled_from(paths))]
    assert copy.missing(history.batch)


@pytest.mark.slow
def test_what_is_read_does_not_grow_with_the_state(tree):
    """
    With a thousand SST files in each of four partitions, one snapshot of each is read, and each
    file once.
    """
    stateful(tree, 8, 9, partitions=4)
    for partition in range(4):
        tree.zip(9, *[f"{n:06d}-a" for n in range(1000)], folder=f"state/0/{partition}")
        tree.zip(10, *[f"{n:06d}-a" for n in range(500, 1500)], folder=f"state/0/{partition}")

    inventory = tree.take(9)

    zips = [f"state/0/{partition}/10.zip" for partition in range(4)]
    small = ["commits/9", "offsets/9", "state/0/_metadata/metadata"]
    assert sorted([*small, *zips]) == sorted(tree.read_paths)
    assert 4000 == sum(file.path.endswith(".sst") for file in inventory.files)
