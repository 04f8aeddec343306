"""``spark-stream maintain`` as people call it."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_provider.extensions.maintenance.maintain_command import parse_size
from airflow_provider.runtime.cli import main
from airflow_provider.runtime.errors import EXIT_OK, EXIT_USAGE, ConfigError
from tests.extensions.maintenance.maintenance_support import WritingJob, files_of

pytestmark = pytest.mark.slow


@pytest.fixture
def table(tmp_path):
    return tmp_path / "table"


def test_it_says_what_it_did_and_what_held_it_back(tmp_path, table, capsys):
    """For people, and as JSON; a dry run before it says the same."""
    job = WritingJob(tmp_path / "job", table)
    job.run("r1", [(1, "a")], [(2, "b")])
    for number in range(3):
        write_deltalake(str(table), pa.table({"id": [number], "name": ["x"]}), mode="append")
    command = ["maintain", str(table), "--job-dir", str(job.root)]

    assert EXIT_OK == main.main([*command, "--dry-run", "--json"])
    planned = json.loads(capsys.readouterr().out)
    assert 5 == files_of(table)
    assert EXIT_OK == main.main(command)
    lines = capsys.readouterr().out.splitlines()

    assert (3, 1, 3) == (planned["compacted"], planned["written"], planned["after"]["files"])
    assert "compacted: 3 files rewritten into 1" == lines[1]
    (held,) = [line for line in lines if line.startswith("held back from compaction: 2, ")]
    assert held.endswith(f": run r1 of {job.root}, which began without state")
    assert 3 == files_of(table)


def test_a_short_keep_needs_a_word(table, capsys):
    """The error says whom it costs what; nothing is deleted."""
    for _ in range(2):
        write_deltalake(str(table), pa.table({"id": [1]}), mode="overwrite")
    command = ["maintain", str(table), "--keep", "0 seconds"]

    assert EXIT_USAGE == main.main(command)
    said = capsys.readouterr().err
    assert EXIT_OK == main.main([*command, "--accept-short-keep", "--json"])

    assert "readers and writers that began earlier would lose theirs" in said
    assert 1 == json.loads(capsys.readouterr().out)["deleted"]


def test_a_longer_retention_of_the_table_counts(table, capsys):
    """The property that VACUUM obeys is obeyed, too."""
    write_deltalake(
        str(table),
        pa.table({"id": [1]}),
        configuration={"delta.deletedFileRetentionDuration": "interval 30 days"},
    )

    assert EXIT_USAGE == main.main(["maintain", str(table), "--keep", "10 days"])
    assert "for 30 days" in capsys.readouterr().err


def test_what_is_no_table_is_refused(tmp_path, capsys):
    """One line names it, and the way out."""
    assert EXIT_USAGE == main.main(["maintain", str(tmp_path / "none")])
    assert "there is no Delta table (no _delta_log); check the path" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "size"),
    [("128MB", 128 << 20), ("1.5 GiB", 3 << 29), ("4096", 4096), ("64k", 64 << 10)],
)
def test_sizes(text, size):
    """As Spark writes them."""
    assert size == parse_size(text, "--target-size")


@pytest.mark.parametrize("text", ["", "MB", "12 parsecs", "0", "-1MB"])
def test_no_sizes(text):
    """The error says how to write one."""
    with pytest.raises(ConfigError, match="write for example 128MB"):
        parse_size(text, "--target-size")


def test_the_table_is_the_same_for_others(table):
    """DeltaTable reads it, and its history names the maintenance."""
    for number in range(3):
        write_deltalake(str(table), pa.table({"id": [number]}), mode="append")

    assert EXIT_OK == main.main(["maintain", str(table)])

    assert "sparkStreamMaintenance" in DeltaTable(str(table)).history(1)[0]
