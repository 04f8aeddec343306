"""Inventories are enough for real Spark, and no more than it needs."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jobs
import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
from streams import START, Event, new_session, plain, windows_of, write_events

from airflow_provider.runtime.checkpoint.inventory import Inventory, take_inventory
from airflow_provider.runtime.checkpoint.operators import readdress
from airflow_provider.runtime.checkpoint.state_files import has_hadoop_checksum, has_spark_checksum
from airflow_provider.runtime.errors import MissingStateError

pytestmark = pytest.mark.spark

STATE = "org.apache.spark.sql.execution.streaming.state"
STREAMING = "spark.sql.streaming"
HDFS = {f"{STREAMING}.stateStore.providerClass": f"{STATE}.HDFSBackedStateStoreProvider"}
ROCKSDB = {f"{STREAMING}.stateStore.providerClass": f"{STATE}.RocksDBStateStoreProvider"}
CHANGELOGS = {
    **ROCKSDB,
    f"{STREAMING}.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    f"{STREAMING}.stateStore.minDeltasForSnapshot": "100",
}
# Snapshots as often, and as little kept, as can be.
SNAPSHOTS = {
    "spark.sql.shuffle.partitions": "2",
    f"{STREAMING}.stateStore.minDeltasForSnapshot": "2",
    f"{STREAMING}.stateStore.maintenanceInterval": "100ms",
    f"{STREAMING}.minBatchesToRetain": "2",
}
FORMAT_2 = {f"{STREAMING}.stateStore.checkpointFormatVersion": "2"}
ONE_STORE = {f"{STREAMING}.join.stateFormatVersion": "3"}


def made_events(file: int) -> list[Event]:
    """Return ten events, and the last one of the file before again."""
    new = [(file * 5 + i, f"k{(file * 7 + i) % 11}", file * 10 + i) for i in range(10)]
    return [*new, *(made_events(file - 1)[9:10] if file else [])]


FIRST = [made_events(file) for file in range(4)]
LAST = len(FIRST)  # the batch: after those with input Spark runs one without
# The last event closes all windows before it, and is in none that the tests look at.
REST = [made_events(4), [(1000, "end", 0)]]
ALL = [row for file in FIRST + REST for row in file]
WAIT_S = 30.0


# --- queries, and what they have to give --------------------------------------------------------


def events(spark: SparkSession, folder: Path) -> DataFrame:
    reader = spark.readStream.schema("time timestamp, k string, v int")
    return (
        reader.option("maxFilesPerTrigger", 1).csv(str(folder)).withWatermark("time", "5 seconds")
    )


def sums(spark: SparkSession, folder: Path) -> DataFrame:
    return events(spark, folder).groupBy("k").agg(F.sum("v").alias("total"))


def joined(spark: SparkSession, folder: Path) -> DataFrame:
    left = events(spark, folder).select(F.col("time").alias("t1"), "k", "v")
    right = events(spark, folder).select(
        F.col("time").alias("t2"), F.col("k").alias("k2"), F.col("v").alias("v2")
    )
    soon = F.expr("k = k2 AND t2 BETWEEN t1 AND t1 + INTERVAL 5 SECONDS")
    return left.join(right, soon).select("k", "v", "v2")


def deduplicated(spark: SparkSession, folder: Path) -> DataFrame:
    once = events(spark, folder).dropDuplicatesWithinWatermark(["k", "v"])
    counted = once.groupBy(F.window("time", "10 seconds"), "k").agg(
        F.count("*").alias("n"), F.sum("v").alias("total")
    )
    return counted.select(F.col("window.start").cast("long"), "k", "n", "total")


def buckets(spark: SparkSession, folder: Path) -> DataFrame:
    rows = events(spark, folder).withColumn("bucket", F.floor(F.col("time").cast("long") / 10) * 10)
    schema = "k string, start long, n long"
    return rows.groupBy("k").transformWithState(jobs.PerBucket(), schema, "append", "eventTime")


def truth_of_sums(rows: Sequence[Event]) -> list[Any]:
    totals: dict[str, int] = defaultdict(int)
    for _, k, v in rows:
        totals[k] += v
    return sorted(totals.items())


def truth_of_join(rows: Sequence[Event]) -> list[Any]:
    return sorted(
        (k, v, v2) for t, k, v in rows for t2, k2, v2 in rows if k == k2 and t <= t2 <= t + 5
    )


def truth_of_windows(rows: Sequence[Event]) -> list[Any]:
    return windows_of({row for row in rows if row[1] != "end"})


def truth_of_buckets(rows: Sequence[Event]) -> list[Any]:
    counts = Counter((k, START + t - t % 10) for t, k, _ in rows if k != "end")
    return sorted((k, start, n) for (k, start), n in counts.items())


@dataclasses.dataclass(frozen=True)
class Case:
    """A query, how its state is kept, and how the state is read."""

    name: str
    query: Callable[[SparkSession, Path], DataFrame]
    truth: Callable[[Sequence[Event]], list[Any]]
    conf: dict[str, str]
    readings: tuple[dict[str, str], ...] = ({},)
    snapshots: bool = False  # every store shall have one before the query is stopped

    @property
    def mode(self) -> str:
        return "update" if self.query is sums else "append"


SIDES = ({"joinSide": "left"}, {"joinSide": "right"})
COUNTS = ({"stateVarName": "counts"}, {"readRegisteredTimers": "true"})
OPERATORS = ({"operatorId": "0"}, {"operatorId": "1"})
CASES = (
    Case("hdfs", sums, truth_of_sums, {**HDFS, **SNAPSHOTS}, snapshots=True),
    Case("rocksdb", sums, truth_of_sums, ROCKSDB),
    Case("changelogs", sums, truth_of_sums, {**CHANGELOGS, **SNAPSHOTS}, snapshots=True),
    Case("format 2", sums, truth_of_sums, {**CHANGELOGS, **FORMAT_2}),
    Case("join", joined, truth_of_join, HDFS, SIDES),
    Case(
        "join in one store",
        joined,
        truth_of_join,
        {**CHANGELOGS, **SNAPSHOTS, **FORMAT_2, **ONE_STORE},
        SIDES,
        snapshots=True,
    ),
    Case("transformWithState", buckets, truth_of_buckets, CHANGELOGS, COUNTS),
    Case(
        "deduplication, then windows",
        deduplicated,
        truth_of_windows,
        {**CHANGELOGS, **SNAPSHOTS, **FORMAT_2},
        OPERATORS,
        snapshots=True,
    ),
)

SLOW = {"join", "deduplication, then windows"}  # the others have the same files
# The others have the same files as those that `make test-ci` takes, or as state that test_state_read.py reads.
WHOLE = {"rocksdb", "changelogs", "join in one store", "transformWithState"}


def marks_of(case: Case) -> list[pytest.MarkDecorator]:
    if case.name in SLOW:
        return [pytest.mark.soak]
    return [pytest.mark.whole] if case.name in WHOLE else []


# --- running, copying, reading ------------------------------------------------------------------


@dataclasses.dataclass
class Bench:
    """The folders of one case, and a session of its own."""

    spark: SparkSession
    root: Path
    case: Case
    outputs: list[tuple[int, tuple[Any, ...]]] = dataclasses.field(default_factory=list)
    batches: list[int] = dataclasses.field(default_factory=list)

    @property
    def input(self) -> Path:
        return self.root / "input"

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    @property
    def copy(self) -> Path:
        return self.root / "elsewhere" / "copy"

    def run(self, checkpoint: Path, before_commit: Callable[[int], None] | None = None) -> None:
        """Read all input there is, one file in each batch, and note what each batch gives."""

        def note(rows: DataFrame, batch: int) -> None:
            self.batches.append(batch)
            self.outputs += [(batch, tuple(row)) for row in rows.collect()]
            if before_commit:
                before_commit(batch)

        frame = self.case.query(self.spark, self.input)
        writer = frame.writeStream.outputMode(self.case.mode).foreachBatch(note)
        writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        writer.start().awaitTermination()

    def run_first(self) -> None:
        write_events(self.input, *FIRST)

        def wait_for_snapshots(batch: int) -> None:
            if self.case.snapshots and batch == LAST - 1:
                wait_for(lambda: has_snapshots(self.checkpoint))

        self.run(self.checkpoint, wait_for_snapshots)

    def result(self) -> list[Any]:
        """Return what the query has given; of a sum that was given several times, the last one."""
        rows = [row for _, row in self.outputs]
        return plain(dict(rows).items() if self.case.mode == "update" else rows)

    def state(self, checkpoint: Path) -> list[list[str]]:
        """Return the rows of every store, as Spark's reader gives them."""
        stores = [
            self.spark.read.format("statestore").options(**reading).load(str(checkpoint))
            for reading in self.case.readings
        ]
        return [sorted(str(row) for row in store.collect()) for store in stores]


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def has_snapshots(checkpoint: Path) -> bool:
    """Tell whether every store of every partition has a snapshot."""
    changed = {
        path.parent for kind in ("delta", "changelog") for path in checkpoint.rglob(f"*.{kind}")
    }
    whole = {path.parent for kind in ("snapshot", "zip") for path in checkpoint.rglob(f"*.{kind}")}
    return bool(changed) and changed <= whole


def list_files(checkpoint: Path) -> dict[str, int]:
    found = {}
    for folder, _, names in os.walk(checkpoint):
        for name in names:
            path = Path(folder, name)
            try:
                found[str(path.relative_to(checkpoint))] = path.stat().st_size
            except FileNotFoundError:
                continue  # the query runs on
    return found


def last_commit(checkpoint: Path) -> int:
    names = [path.name for path in checkpoint.glob("commits/*")]
    return max((int(name) for name in names if name.isdigit()), default=-1)


def take(checkpoint: Path, batch: int, **asked: Any) -> Inventory:
    return take_inventory(
        list_files(checkpoint),
        lambda path: (checkpoint / path).read_bytes(),
        batch=batch,
        where=str(checkpoint),
        **asked,
    )


def copy_files(inventory: Inventory, checkpoint: Path, copy: Path) -> None:
    """Copy the files of an inventory, and nothing else."""
    for file in inventory.files:
        target = copy / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.path in inventory.addressed:
            data = (checkpoint / file.path).read_bytes()
            target.write_bytes(readdress(data, root=f"file:{copy}", where=file.path))
        else:
            os.link(checkpoint / file.path, target)


@pytest.fixture(scope="module")
def quick_maintenance(fresh_maintenance: SparkSession) -> Iterator[SparkSession]:
    cloudpickle.register_pickle_by_value(jobs)  # no worker could import it
    yield fresh_maintenance
    cloudpickle.unregister_pickle_by_value(jobs)


@pytest.fixture
def bench(quick_maintenance: SparkSession, tmp_path: Path) -> Callable[[Case], Bench]:
    def make(case: Case) -> Bench:
        session = new_session(quick_maintenance)
        for key, value in {**SNAPSHOTS, **case.conf}.items():
            session.conf.set(key, value)
        return Bench(session, tmp_path, case)

    return make


def case_named(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


# --- enough -------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=marks_of(case)) for case in CASES],
)
def test_a_query_goes_on_from_the_copy(bench, case):
    """
    With the original gone, Spark reads the same state from the copy, and a query that is restarted
    on it gives exactly what is missing.
    """
    made = bench(case)
    made.run_first()
    state = made.state(made.checkpoint)
    batch = last_commit(made.checkpoint)

    inventory = take(made.checkpoint, batch)
    copy_files(inventory, made.checkpoint, made.copy)
    shutil.rmtree(made.checkpoint)

    assert all(state)
    assert state == made.state(made.copy)
    assert {file.path for file in inventory.files} == set(list_files(made.copy))
    taken = take(made.copy, batch)
    assert [file.path for file in inventory.files] == [file.path for file in taken.files]
    write_events(made.input, *REST, first=len(FIRST))
    made.run(made.copy)
    assert case.truth(ALL) == made.result()


@pytest.mark.long
def test_what_a_batch_had_planned_is_run_again_from_an_unaligned_copy(bench):
    """
    With the plan in the copy the batch in flight is run again with the same input; without it, a
    batch of that number is planned anew. Either way the end is the same.
    """
    made = bench(case_named("changelogs"))
    write_events(made.input, *FIRST)

    def fail(batch: int) -> None:
        if batch == 2:
            raise RuntimeError("in flight")

    with pytest.raises(PySparkException, match="in flight"):
        made.run(made.checkpoint, fail)
    given = [(batch, row) for batch, row in made.outputs if batch < 2]
    write_events(made.input, *REST, first=len(FIRST))

    for planned in (True, False):
        inventory = take(made.checkpoint, 1, planned=planned)
        copy = made.root / f"planned-{planned}"
        copy_files(inventory, made.checkpoint, copy)
        made.outputs = list(given)
        made.run(copy)
        assert 2 == min(batch for batch, _ in made.outputs[len(given) :])
        assert truth_of_sums(ALL) == made.result()


@pytest.mark.long
def test_repartitioned_state_goes_on_from_the_copy(bench):
    """
    After Spark has repartitioned the state of a stopped query, which leaves its description as it
    was, the copy has as many partitions as the offset log says.
    """
    made = bench(case_named("format 2"))
    made.run_first()
    runner = made.spark._jvm.org.apache.spark.sql.execution.streaming.state
    session, exactly_once = made.spark._jsparkSession, True
    runner.OfflineStateRepartitionRunner(session, str(made.checkpoint), 3, exactly_once).run()
    batch = last_commit(made.checkpoint)

    inventory = take(made.checkpoint, batch)
    copy_files(inventory, made.checkpoint, made.copy)
    shutil.rmtree(made.checkpoint)

    assert (LAST + 1, 3) == (batch, inventory.operators[0].partitions)
    assert sorted(truth_of_sums([row for file in FIRST for row in file])) == sorted(
        (row["key"]["k"], row["value"]["sum"])
        for row in made.spark.read.format("statestore").load(str(made.copy)).collect()
    )
    write_events(made.input, *REST, first=len(FIRST))
    made.run(made.copy)
    assert truth_of_sums(ALL) == made.result()


# --- no more than needed ------------------------------------------------------------------------

# What is copied although a restart does not fail without it, and why.
WRITTEN_ANEW = (
    "state/0/0/_metadata/schema",  # and compared with the query's own while it is there
    "state/0/_metadata/metadata",  # and read by Spark's reader of state
)
NOT_READ = (f"commits/{LAST - 1}",)


@pytest.fixture
def stopped(bench: Callable[[Case], Bench]) -> tuple[Bench, Inventory]:
    """A copy with a snapshot and changelogs, and new input."""
    made = bench(case_named("changelogs"))
    made.run_first()
    inventory = take(made.checkpoint, last_commit(made.checkpoint))
    copy_files(inventory, made.checkpoint, made.copy)
    write_events(made.input, *REST[:1], first=len(FIRST))
    return made, inventory


def in_copy(made: Bench, number: int) -> Path:
    copy = made.root / f"copy-{number}"
    shutil.copytree(made.copy, copy)
    return copy


def remove(checkpoint: Path, path: str) -> None:
    for victim in (checkpoint / path, (checkpoint / path).with_name(f".{Path(path).name}.crc")):
        victim.unlink(missing_ok=True)


@pytest.mark.long
def test_without_any_file_of_the_copy_something_is_wrong(stopped):
    """
    Without one file of each kind the restart fails, repeats the last batch or skips input, and the
    inventory refuses the copy; but for those that are known to be harmless.
    """
    made, inventory = stopped
    paths = [file.path for file in inventory.files if not file.path.endswith(".crc")]
    state = [path for path in paths if path.startswith("state/0/1/")]
    logs = [path for path in paths if not path.startswith(("state/", "sources/"))]
    assert {"zip", "changelog", "sst"} <= {path.rpartition(".")[2] for path in state}
    others = (f"sources/0/{LAST - 1}", *WRITTEN_ANEW)
    harmless = []

    for number, path in enumerate((*logs, *state, *others)):
        copy = in_copy(made, number)
        remove(copy, path)
        made.batches = []
        with contextlib.suppress(PySparkException):
            made.run(copy)
            if made.batches[:1] == [LAST + 1]:
                harmless.append(path)
                continue
        with pytest.raises(MissingStateError):
            take_of_partial(made.copy, path)

    assert sorted([*NOT_READ, *WRITTEN_ANEW]) == sorted(harmless)


def take_of_partial(copy: Path, without: str) -> Inventory:
    listing = {path: size for path, size in list_files(copy).items() if path != without}
    return take_inventory(
        listing, lambda path: (copy / path).read_bytes(), batch=LAST, where="copy"
    )


@pytest.mark.long
def test_the_checksums_can_be_left_behind_and_hold_where_they_are(stopped, bench):
    """
    Spark goes on without any checksum; those that it wrote fit the files beside which they lie.
    """
    made, inventory = stopped
    beside = [file.path for file in inventory.files if file.path.endswith(".crc")]
    for path in beside:
        main = (made.copy / path).with_name(Path(path).name[1:-4])
        checksum = (made.copy / path).read_bytes()
        assert has_hadoop_checksum(main.read_bytes(), checksum, where=path)
        assert not has_hadoop_checksum(main.read_bytes() + b"!", checksum, where=path)
        (made.copy / path).unlink()

    made.batches = []
    made.run(made.copy)
    assert LAST + 1 == made.batches[0]


def test_sparks_own_checksums_are_copied_and_hold(bench):
    """
    In checkpoint format 2 Spark writes a checksum beside each file of the state, and Hadoop one
    beside that.
    """
    made = bench(case_named("format 2"))
    write_events(made.input, FIRST[0])
    made.run(made.checkpoint)

    inventory = take(made.checkpoint, last_commit(made.checkpoint))

    own = [file.path for file in inventory.files if Path(file.path).match("[!.]*.crc")]
    assert 2 * 2 == len(own)  # changelogs, and partitions
    for path in own:
        data = (made.checkpoint / path[:-4]).read_bytes()
        checksum = (made.checkpoint / path).read_bytes()
        assert has_spark_checksum(data, checksum, where=path)
        assert not has_spark_checksum(data[:-1] + b"!", checksum, where=path)


# --- a query that runs on -----------------------------------------------------------------------


@pytest.mark.whole
def test_copies_of_a_running_query_are_consistent(bench):
    """
    While a query runs and Spark cleans up behind it, copies can be taken again and again; each one
    holds exactly the state of its batch.
    """
    made = bench(case_named("changelogs"))
    rows = made.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).load()
    counted = rows.groupBy((F.col("value") % 7).alias("k")).count()
    writer = counted.writeStream.outputMode("update").format("noop")
    query = writer.option("checkpointLocation", str(made.checkpoint)).start()
    copies: dict[int, Path] = {}
    lost = 0
    try:
        while len(copies) < 6:
            newest = max(copies, default=3)
            wait_for(lambda: last_commit(made.checkpoint) > newest + 1)
            batch = last_commit(made.checkpoint)
            copy = made.root / f"copy-{batch}"
            try:
                copy_files(take(made.checkpoint, batch), made.checkpoint, copy)
            except (MissingStateError, FileNotFoundError):
                lost += 1
                assert lost < 20
                continue
            copies[batch] = copy
    finally:
        query.stop()

    versions = [int(path.name.split(".")[0]) for path in made.checkpoint.rglob("[0-9]*.changelog")]
    assert 1 < min(versions), "Spark has not cleaned up"
    assert not query.exception()
    for batch, copy in copies.items():
        assert take(copy, batch).files
        total = made.spark.read.format("statestore").load(str(copy)).agg(F.sum("value.count"))
        assert 100 * (batch + 1) == total.first()[0]
