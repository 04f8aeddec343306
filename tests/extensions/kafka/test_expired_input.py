"""Messages that a batch leaves out, counted from a plan made by hand in the form of Spark's."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import pytest
from pyspark.sql.datasource import InputPartition

from airflow_provider.extensions.kafka.formats import PythonKafka
from airflow_provider.extensions.kafka.offsets import Partition, Range
from airflow_provider.runtime.queries.batch import lossy_among, warn_of_losses
from tests.declaring import declared

A0 = Partition("a", 0)
KAFKA = [
    PythonKafka("spark-stream-kafka"),
    PythonKafka("spark-stream-kafka"),
]  # two sources of one format


class Sequence:
    """A sequence of Scala's."""

    def __init__(self, *values):
        self._values = values

    def size(self):
        return len(self._values)

    def apply(self, position):
        return self._values[position]


def instance(kind, **methods):
    """Return an object of the JVM's, of a class of that name."""
    shape = SimpleNamespace(getSimpleName=lambda: kind)
    made = {name: lambda value=value: value for name, value in methods.items()}
    return SimpleNamespace(getClass=lambda: shape, **made)


def execution(*leaves):
    return instance("Plan", executedPlan=instance("Project", collectLeaves=Sequence(*leaves)))


def scan(kind, task_kind, *tasks):
    made = [instance(task_kind, pickedPartition=task) for task in tasks]
    return instance(kind, inputPartitions=Sequence(*made))


def planned(*part):
    return pickle.dumps(InputPartition(Range(A0, *part)))


def source(source_format, **options):
    return declared(
        "clicks",
        format=source_format,
        path=None,
        options=options,
        bounded=False,
    )


@pytest.mark.parametrize(
    ("scan_kind", "task_kind"),
    [
        ("MicroBatchScanExec", "PythonStreamingInputPartition"),
        ("BatchScanExec", "PythonInputPartition"),
    ],
)
def test_what_a_batch_leaves_out_is_counted_and_named(caplog, scan_kind, task_kind):
    """In streams and in batches, by partition and offsets; what loses nothing is not named."""
    leaf = scan(scan_kind, task_kind, planned(7, 9, 5), planned(9, 9), planned(9, 12))

    assert 5 == warn_of_losses(KAFKA, "query=out batch=3", execution(leaf))
    (line,) = caplog.messages
    assert "query=out batch=3: 5 rows have expired before they were read: partition 0 of" in line
    assert line.endswith("offsets 2 to 6")


def test_tasks_of_other_sources_are_left_alone(caplog):
    """Their classes may not be importable here, and a source of the JVM has no pickles."""
    foreign = scan("MicroBatchScanExec", "PythonStreamingInputPartition", b"no.such.module")
    of_the_jvm = scan("MicroBatchScanExec", "KafkaBatchInputPartition", planned(7, 9, 5))
    files = instance("FileSourceScanExec")

    assert 0 == warn_of_losses(KAFKA, "query=out", execution(foreign, of_the_jvm, files))
    assert [] == caplog.messages


def test_a_plan_is_looked_at_where_messages_may_be_left_out():
    """That is our source, where the job lets it go on."""
    loses = source("spark-stream-kafka", failOnDataLoss="false")
    assert [loses.source] == lossy_among([source("csv"), loses])
    assert [] == lossy_among([source("spark-stream-kafka")])
    assert [] == lossy_among([source("kafka", failOnDataLoss="false")])
