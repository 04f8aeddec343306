"""Quarantined rows of a run, found in the files that its epochs have published."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.extensions.row_checks.quarantine_files import grouped, quarantine_of_run
from airflow_provider.extensions.row_checks.view import QUARANTINE
from airflow_provider.runtime.cli.main import main
from airflow_provider.runtime.errors import EXIT_OK, EXIT_USAGE
from airflow_provider.runtime.jobdir.row_counts import RecordLines, RowCounts, RuleCount
from airflow_provider.runtime.testing.job_directories import (
    QUERY_ID,
    JobDirectoryBuilder,
    a_progress,
)
from tests.present import present

ACCOUNT = RowCounts(
    rows_read=9,
    rejected={"orders": RuleCount(9, 2, "quarantine")},
    quarantined=3,
    late_quarantined=1,
)


@pytest.fixture
def job(tmp_path: Path) -> JobDirectoryBuilder:
    """Give a job whose second run has published batches 1 and 2; batch 3 is not published."""
    job = JobDirectoryBuilder(tmp_path / "job").begin().ran(2)
    job.commit(3, published=False)
    job.request_run(starting={"q": 0})
    keep(job, f"files:{tmp_path / 'kept'}")
    put(tmp_path / "kept", 0, row("rejected", "orders", "of the run before"))
    put(tmp_path / "kept", 1, row("rejected", "orders", "{bad"), row("late", "windows", "{}"))
    put(tmp_path / "kept", 2, row("rejected", "orders", '{"v":"x"}'))
    put(tmp_path / "kept", 3, row("rejected", "orders", "not published"))
    put(tmp_path / "kept", 1, row("rejected", "orders", "of another query"), query_id="other")
    return job


def keep(job: JobDirectoryBuilder, sink: str, **lines: RecordLines) -> None:
    account = dataclasses.replace(ACCOUNT, lines=lines)
    query = {"sinks": [{"name": sink, "rows": 3, "quarantine": True}], "row_counts": account}
    a_progress(queries={"q": query}).put(job.run.storage, "progress.json")


def row(kind: str, location: str, text: str) -> dict[str, Any]:
    return {"query": "q", "kind": kind, "location": location, "row": text, "reason": "why"}


def put(folder: Path, epoch: int, *rows: dict[str, Any], query_id: str = QUERY_ID) -> None:
    folder.mkdir(exist_ok=True)
    text = "".join(f"{json.dumps(each, ensure_ascii=False)}\n" for each in rows)
    (folder / f"part-{epoch:010d}-00000-{query_id}.json").write_text(text, encoding="utf-8")


def kept(job: JobDirectoryBuilder) -> Any:
    (found,) = quarantine_of_run(job.directory, present(job.run.record()))
    return found


def test_only_what_the_run_has_published_is_read(job):
    """Not another run's epochs, not one that is staged, and not another query's files."""
    assert ["{bad", "{}", '{"v":"x"}'] == [each["row"] for each in kept(job).rows()]


def test_a_page_reads_the_newest_files_that_are_small(job, tmp_path):
    """It is shown while a person waits."""
    put(tmp_path / "kept", 2, row("rejected", "orders", "x" * 1000))
    newest, either = (
        [each["row"][:4] for each in kept(job).sample(files=1, at_most_bytes=most)]
        for most in (2000, 1000)
    )

    assert (["xxxx"], ["{bad", "{}"]) == (newest, either)


def test_folders_of_partitions_have_columns(job, tmp_path):
    """A value that Spark writes into the name of a folder is a column of its rows."""
    folder = tmp_path / "kept" / "kind=rule" / "location=a%3Ab"
    folder.mkdir(parents=True)
    put(folder, 2, {"row": "{}"})

    found = grouped(kept(job).rows(), samples=1)

    assert {("late", "windows"): 1, ("rejected", "orders"): 2, ("rule", "a:b"): 1} == {
        key: count for key, (count, _) in found.items()
    }
    assert [1, 1, 1] == [len(rows) for _, rows in found.values()]


def test_a_table_of_comma_separated_values_may_have_a_header(job, tmp_path):
    """Columns have the order of the schema."""
    lines = "query,kind,location,reason,row,origin,event_time,watermark,at\nq,late,w,,{},,,,\n"
    (tmp_path / "kept" / f"part-0000000002-00001-{QUERY_ID}.csv").write_text(lines)

    assert {("late", "w"): 1, ("late", "windows"): 1, ("rejected", "orders"): 2} == {
        key: count for key, (count, _) in grouped(kept(job).rows(), 0).items()
    }


def test_a_file_that_cannot_be_read_is_named(job, tmp_path, capsys):
    """Compressed text, for example."""
    (tmp_path / "kept" / f"part-0000000002-00001-{QUERY_ID}.json.gz").write_bytes(b"")

    assert EXIT_USAGE == main(["quarantine", job.url])
    assert f"{QUERY_ID}.json.gz: quarantined rows are read from Parquet" in capsys.readouterr().err


def test_a_sink_of_no_files_has_its_counts(job, capsys):
    """They are in the job directory; where the rows are is said."""
    keep(job, "delta:/kept")

    assert EXIT_OK == main(["quarantine", job.url])
    assert [
        "run r1: 3 quarantined (2 rejected, 0 broke a rule, 1 late)",
        "  query q: quarantined in delta:/kept",
        "    source orders: 2 of 9 records (quarantine)",
        "    its rows are not in files: read them in that sink",
    ] == capsys.readouterr().out.splitlines()


def test_rows_are_written_once(job, tmp_path, capsys):
    """A file that is there already may have been corrected."""
    command = ["quarantine", job.url, "--write", str(tmp_path / "fixed")]

    assert EXIT_OK == main(command)
    written = tmp_path / "fixed" / "rejected" / "orders" / "q-r1.txt"
    assert '{bad\n{"v":"x"}\n' == written.read_text()
    assert f"written: {written}" in capsys.readouterr().out.splitlines()
    assert EXIT_USAGE == main(command)
    assert "is there already; give another folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (RecordLines("UTF-8", "\n", "id,name"), b'id,name\n{bad\n{"v":"\xc3\xa4"}\n'),
        (RecordLines("ISO-8859-1", "|", None), b'{bad|{"v":"\xe4"}|'),
        (RecordLines("UTF-16LE", "\n", None), '{bad\n{"v":"ä"}\n'.encode("utf-16-le")),
    ],
)
def test_records_are_written_as_their_source_reads_them(job, tmp_path, lines, expected):
    """With the header, the encoding and the line separator of that source; other rows in UTF-8."""
    keep(job, f"files:{tmp_path / 'kept'}", orders=lines)
    put(tmp_path / "kept", 2, row("rejected", "orders", '{"v":"ä"}'), row("late", "w", "ä"))

    assert EXIT_OK == main(["quarantine", job.url, "--write", str(tmp_path / "fixed")])

    written = tmp_path / "fixed"
    assert expected == (written / "rejected" / "orders" / "q-r1.txt").read_bytes()
    assert "ä\n" == (written / "late" / "w" / "q-r1.txt").read_text(encoding="utf-8")


def test_an_encoding_that_python_does_not_have_is_refused(job, tmp_path, capsys):
    """Nothing is written in another one, in which the source would read other letters."""
    keep(job, f"files:{tmp_path / 'kept'}", orders=RecordLines("x-Johab", "\n", None))

    assert EXIT_USAGE == main(["quarantine", job.url, "--write", str(tmp_path / "fixed")])
    assert "encoding 'x-Johab' is Java's alone" in capsys.readouterr().err


def test_a_row_may_have_what_ends_lines_elsewhere(job, tmp_path):
    """Only a line feed ends a line of JSON: neither U+2028 nor U+0085 does."""
    text = "a\u2028b\x85c\u2029d\x0be\x1cf"
    put(tmp_path / "kept", 2, row("rejected", "orders", text))

    assert [text] == [each["row"] for each in kept(job).rows()][-1:]


def test_a_run_that_is_not_there_is_refused(job, capsys):
    """With the command that lists runs."""
    assert EXIT_USAGE == main(["quarantine", job.url, "--run", "r9"])
    assert "there is no run 'r9'; spark-stream status --all" in capsys.readouterr().err


def test_the_tab_has_a_table_of_each_kind_and_location(job):
    """It is for jobs that keep rows, and says how all of them are shown."""
    assert QUARANTINE.concerns(job.url)

    head, late, rejected, hint = QUARANTINE.read(job.url)

    assert ("q", {"Quarantined": 3}) == (head.title, head.facts)
    assert ["late: windows", "rejected: orders"] == [late.title, rejected.title]
    assert ["{bad", '{"v":"x"}'] == [each[2] for each in present(rejected.table).rows]
    assert "spark-stream quarantine" in str(hint.text)


def test_a_job_that_keeps_nothing_has_no_tab(job):
    """Before its first run, too."""
    query = {"sinks": [{"name": "files:/out", "rows": 3}]}
    a_progress(queries={"q": query}).put(job.run.storage, "progress.json")

    assert not QUARANTINE.concerns(job.url)
