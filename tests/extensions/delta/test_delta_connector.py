"""The order of the offsets that Delta's connector writes; without the connector."""

from __future__ import annotations

import json

import pytest

from airflow_provider.extensions.delta.connector import DeltaConnector
from airflow_provider.runtime.api.sources import EndingSource, OrderedSource
from airflow_provider.runtime.sources.shorthand import source_of_format

TABLE = DeltaConnector("delta", "/t")


def at(version: int, index: int = -1, *, starting: bool = False) -> str:
    return json.dumps(
        {
            "sourceVersion": 1,
            "reservoirId": "244c2771-cf27-4e24-b91d-932dad12f9a3",
            "reservoirVersion": version,
            "index": index,
            "isStartingVersion": starting,
        },
        separators=(",", ":"),
    )


IN_ORDER = ["-", at(2, 1, starting=True), at(2, 3, starting=True), at(3), at(3, 0), at(4, 7)]


def test_the_format_is_a_source_with_an_order_and_an_end():
    """A retry compares its batches with the end, so that they keep the table's own limit."""
    made = source_of_format("Delta", "/t")

    assert isinstance(made, DeltaConnector)
    assert isinstance(made, EndingSource)
    assert isinstance(made, OrderedSource)


@pytest.mark.parametrize("first", range(len(IN_ORDER)))
@pytest.mark.parametrize("second", range(len(IN_ORDER)))
def test_offsets_are_in_the_order_of_versions_and_files(first, second):
    """The snapshot that a query begins with comes before the next version."""
    assert (first >= second) == TABLE.is_reached(IN_ORDER[first], IN_ORDER[second])


@pytest.mark.parametrize("planned", range(1, len(IN_ORDER)))
@pytest.mark.parametrize("end", range(1, len(IN_ORDER)))
def test_a_batch_reads_no_further_than_the_end(planned, end):
    """Nor is it set back behind what is committed; limiting it again changes nothing."""
    for committed in range(planned + 1):
        found = TABLE.limited(IN_ORDER[planned], IN_ORDER[committed], IN_ORDER[end])

        assert IN_ORDER[min(planned, max(end, committed))] == found
        assert found == TABLE.limited(found, IN_ORDER[committed], IN_ORDER[end])
