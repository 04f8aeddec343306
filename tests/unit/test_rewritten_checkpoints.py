"""Positions taken away or set, and operators taken out, in a stopped query's checkpoint."""

from __future__ import annotations

import json

import pytest

from airflow_provider.extensions.state_rewrite.dropped_operators import (
    drop_operators,
    topology_without,
)
from airflow_provider.runtime.checkpoint.offsets import reset_positions, set_positions
from airflow_provider.runtime.checkpoint.operators import describe_operator
from airflow_provider.runtime.checkpoint.topology import OperatorShape, Topology
from airflow_provider.runtime.errors import OpenBatchError, UnknownFormatError
from airflow_provider.runtime.testing.job_directories import CheckpointBuilder

THREE = ('{"logOffset":4}', '{"t":{"0":1}}', '{"logOffset":0}')


@pytest.fixture
def spark(tmp_path):
    checkpoint = CheckpointBuilder(tmp_path / "q").begin()
    for batch in range(3):
        checkpoint.plan(batch, sources=THREE, watermark_ms=batch).commit(batch)
        checkpoint.storage.put(f"offsets/.{batch}.crc", b"crc")
    for position in range(3):
        checkpoint.storage.put(f"sources/{position}/0", b"v1")
    return checkpoint


def lines(spark):
    return [spark.logs.offsets(batch).sources for batch in range(3)]


def test_a_reset_source_has_no_offset_in_the_last_two_batches_and_no_log(spark):
    """The others keep theirs, as do settings and watermarks; again, it is the same."""
    for _ in range(2):
        reset_positions(spark.storage, [0, 2])

        assert [THREE, ("-", THREE[1], "-"), ("-", THREE[1], "-")] == lines(spark)
        assert ["1"] == spark.storage.list("sources")
        assert 2 == spark.logs.offsets(2).watermark_ms
        assert [".0.crc", "0", "1", "2"] == spark.storage.list("offsets")


def test_a_source_goes_on_elsewhere(spark):
    """At the same offset in both batches: there is nothing between them to read again."""
    set_positions(spark.storage, {1: '{"t":{"0":9}}'})

    assert ['{"t":{"0":9}}'] * 2 == [each[1] for each in lines(spark)[1:]]
    assert ["0", "1", "2"] == spark.storage.list("sources")


def test_a_query_of_one_batch(tmp_path):
    """There is no batch before its last one."""
    spark = CheckpointBuilder(tmp_path).begin().run(0)
    reset_positions(spark.storage, [0])

    assert ("-",) == spark.logs.offsets(0).sources


def test_positions_that_cannot_be_changed(spark):
    """Of a batch in flight, and in a log that does not go by locations."""
    spark.plan(3)
    with pytest.raises(OpenBatchError, match="batch 3 is planned and not committed"):
        reset_positions(spark.storage, [0])
    spark.commit(3)
    text = spark.storage.read("offsets/3")
    spark.storage.put("offsets/3", text.replace(b"v1", b"v2", 1))
    with pytest.raises(UnknownFormatError, match="version 'v2'"):
        set_positions(spark.storage, {0: "1"})


def metadata(number):
    schema = f"file:/x/state/4/y/state/{number}/_stateSchema/default/0_s"
    store = {"storeName": "default", "numPartitions": 2, "stateSchemaFilePaths": [schema]}
    operator = {"operatorId": number, "operatorName": f"kind{number}"}
    document = {"operatorInfo": operator, "stateStoreInfo": [store]}
    return b"v2\n" + json.dumps(document).encode()


def test_operators_behind_one_that_goes_take_their_numbers(spark):
    """With all their files, with the addresses in their metadata, and with their states' ids."""
    spark.keep_state(0, 1, 2)
    for number in range(3):
        spark.storage.put(f"state/{number}/_metadata/v2/0", metadata(number))
        spark.storage.put(f"state/{number}/_metadata/v2/.0.crc", b"crc")
        spark.storage.put(f"state/{number}/0/1.delta", b"%d" % number)
    ids = {str(number): [[f"id{number}"]] for number in range(3)}
    commit = {"nextBatchWatermarkMs": 5, "stateUniqueIds": ids}
    spark.storage.put("commits/2", b"v2\n" + json.dumps(commit).encode())

    drop_operators(spark.storage, [1])

    assert ["0", "1"] == spark.storage.list("state")
    assert [b"0", b"2"] == [spark.storage.read(f"state/{n}/0/1.delta") for n in (0, 1)]
    moved = describe_operator(spark.storage, 1)
    assert (1, "kind2") == (moved.id, moved.name)
    assert ("state/1/_stateSchema/default/0_s",) == moved.schema_files
    assert ["0"] == spark.storage.list("state/1/_metadata/v2")
    assert {0: [["id0"]], 1: [["id2"]]} == spark.logs.commit(2).state_ids
    assert 5 == json.loads(spark.storage.read("commits/2").split(b"\n")[1])["nextBatchWatermarkMs"]


def test_a_topology_without_an_operator():
    """What the query consists of says the same as its checkpoint."""
    shapes = tuple(OperatorShape(number, f"kind{number}", ("a",)) for number in range(3))

    left = topology_without(Topology(("a",), shapes), [0])

    assert (OperatorShape(0, "kind1", ("a",)), OperatorShape(1, "kind2", ("a",))) == left.operators
    assert Topology(("a",), None) == topology_without(Topology(("a",), None), [0])
