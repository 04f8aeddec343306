"""Delta tables as other programs write them: logs without columns, gaps in them, damage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.runtime.errors import ConfigError, LostInputError
from tests.extensions.delta.table_support import Query, append


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "a table"


def entry(folder: Path, version: int) -> Path:
    return folder / "_delta_log" / f"{version:020d}.json"


def actions(folder: Path, version: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in entry(folder, version).read_text().splitlines()]


def put(folder: Path, version: int, *lines: dict[str, Any]) -> None:
    """Write an entry of the log by hand."""
    entry(folder, version).write_text("\n".join(map(json.dumps, lines)))


# --- logs -----------------------------------------------------------------------------------------


def test_a_table_that_began_without_columns_is_read_from_its_start(folder):
    """Pipelines create a table first, and give it its columns later: its first entry has none."""
    append(folder, 1)
    first = actions(folder, 0)
    metadata = next(line["metaData"] for line in first if "metaData" in line)
    bare = {key: value for key, value in metadata.items() if key != "schemaString"}
    put(folder, 1, *first)
    put(folder, 0, {"metaData": bare}, *(line for line in first if "protocol" in line))

    assert [1] == Query(folder, starts=0).drain()


def test_a_gap_in_the_log_is_lost_input_with_both_its_ends(folder):
    """No retry brings the entry back."""
    for number in range(4):
        append(folder, number)
    entry(folder, 2).unlink()

    with pytest.raises(LostInputError, match="log has version 1, and then version 3; restore"):
        Query(folder)


@pytest.mark.parametrize(
    ("action", "changed"),
    [
        ("metaData", None),
        ("protocol", None),
        ("protocol", {"minReaderVersion": 1, "minWriterVersion": 7, "readerFeatures": ["x"]}),
        ("metaData", {"id": "an id", "partitionColumns": [], "schemaString": "none"}),
    ],
)
def test_a_log_that_is_no_tables_is_refused_for_good(folder, action, changed):
    """Such an error is the table's, and not that of a store which may answer later."""
    append(folder, 1)
    lines = [line for line in actions(folder, 0) if action not in line]
    put(folder, 0, *lines, *([{action: changed}] if changed else []))

    with pytest.raises(ConfigError, match="the table cannot be opened: ") as refused:
        Query(folder)
    assert "\n" not in str(refused.value)
