"""The account of a run: each row that was read is in the output, kept, or named as uncounted."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from streams import Location

from airflow_provider.extensions.row_checks.taps import BitTap
from airflow_provider.runtime.base.typed_json import encode
from airflow_provider.runtime.cli.main import main
from airflow_provider.runtime.cli.run_command import summary_lines
from airflow_provider.runtime.errors import EXIT_OK, RunFailedError
from airflow_provider.runtime.jobdir.epoch_documents import TapCount
from airflow_provider.runtime.storage.open import open_storage

pytestmark = pytest.mark.spark

JOBS = Path(__file__).with_name("row_count_jobs.py")
GOOD = [("a", 1), ("a", 9), ("b", 2), ("c", 3), ("d", 4), ("e", 5), (None, 6)]
LINES = (
    ('{"k":"a","v":1}', '{"k":"b","v":2}', '{"k":"x","v":-1}', "no json at all"),
    ('{"k":"c","v":3}', '{"k":"d","v":4}', '{"k":"y","v":"two"}', '{"k":"z","v":0}'),
    ('{"k":"e","v":5}', '{"v":6}', '{"k":"w"}', '{"k":"a","v":9}'),
)


class Orders(Location):
    """The folders of a job that keeps rows."""

    @property
    def kept(self) -> Path:
        return self.root / "kept"

    def account(self, spark: Any, job: str, **asked: Any) -> tuple[Any, dict[str, Any]]:
        params = {"kept": str(self.kept), **asked.pop("params", {})}
        entry = f"{JOBS}:{job}"
        final = self.run(spark, job, entry=entry, run_id="r1", params=params, **asked)
        return final, encode(final.queries["out"].row_counts)


@pytest.fixture
def location(tmp_path: Path) -> Orders:
    location = Orders(tmp_path)
    write(location.input, *LINES)
    return location


def write(folder: Path, *records: tuple[str, ...]) -> None:
    folder.mkdir()
    for number, lines in enumerate(records):
        (folder / f"{number}.json").write_text("".join(f"{line}\n" for line in lines))


def rows(folder: Path, *columns: str) -> list[tuple[Any, ...]]:
    found = ds.dataset(folder).to_table(columns=list(columns)).to_pylist()
    return sorted((tuple(row.values()) for row in found), key=str)


def counted(account: dict[str, Any]) -> dict[str, Any]:
    return {name: account[name] for name in ("sources", "checked", "rejected", "rules")}


@pytest.mark.parametrize("mode", ["streaming", "batch"])
def test_each_row_is_in_one_location(spark: Any, location: Orders, mode: str) -> None:
    """A stream and a batch job have the same account, and its numbers are those of the files."""
    final, account = location.account(spark, "checked", mode=mode)

    assert sorted(GOOD, key=str) == rows(location.output, "k", "v")
    assert {
        "sources": {"orders": 12},
        "checked": {"orders": 12},
        "rejected": {"orders": {"rows": 12, "broken": 2, "on": "quarantine"}},
        "rules": {
            "positive": {"rows": 10, "broken": 3, "on": "quarantine"},
            "known": {"rows": 10, "broken": 1, "on": "count"},
        },
    } == counted(account)
    # A record of JSON may give several rows, so that rows in and out need not agree.
    assert (12, 3, 5, False, []) == tuple(
        account[name] for name in ("rows_read", "taken", "quarantined", "row_by_row", "uncounted")
    )
    assert {f"files:{location.output}": 7} == account["written"]
    assert 5 == len(rows(location.kept, "kind"))
    head = next(summary_lines(final, took_s=1))
    assert head.endswith("12 rows in, 7 out, 5 quarantined (2 rejected, 3 broke a rule, 0 late)")


@pytest.mark.long
def test_a_source_that_is_read_in_two_locations_is_named(spark: Any, location: Orders) -> None:
    """Its scans count it twice; that is no error, and is said."""
    _, account = location.account(spark, "twice")

    assert {"orders": 24} == account["sources"]
    assert {"orders": None} == account["checked"]
    (said,) = account["uncounted"]
    assert "source orders is read in 2 locations" in said


@pytest.mark.long
def test_a_part_of_a_plan_that_is_dropped_is_no_gap(spark: Any, location: Orders) -> None:
    """Adaptive execution may drop what has run; its rows are counted and kept all the same."""
    write(location.root / "others", ())
    conf = {"spark.sql.autoBroadcastJoinThreshold": "-1"}
    params = {"others": str(location.root / "others")}
    _, account = location.account(
        spark, "joined_with_nothing", mode="batch", params=params, conf=conf
    )

    assert ({"orders": 12}, 5) == (account["checked"], account["quarantined"])
    assert 5 == len(rows(location.kept, "kind"))


@pytest.mark.long
def test_late_rows_that_are_kept_are_in_the_account(spark: Any, location: Orders) -> None:
    """Two rows of the third file are behind the watermark of the second one."""
    minute = '{{"t":"2026-01-01 00:{}","k":"a","v":{}}}'
    files = (
        [("00:01", 1), ("05:00", 2)],
        [("06:00", 3), ("06:01", -3)],
        [("00:02", 4), ("00:03", 5)],
    )
    for each in location.input.iterdir():
        each.unlink()
    location.input.rmdir()
    write(location.input, *(tuple(minute.format(*row) for row in each) for each in files))

    final, account = location.account(spark, "windows", late="quarantine")

    assert ({"windows": 2}, 2, 1, 3) == tuple(
        account[name] for name in ("late", "late_quarantined", "taken", "quarantined")
    )
    assert 2 == final.late_rows
    kinds = [kind for (kind,) in rows(location.kept, "kind")]
    assert ["late", "late", "rule"] == kinds


@pytest.mark.parametrize("sink", ["noop", "parquet"])
def test_sparks_own_sink_counts_what_sparks_reports_have(
    spark: Any, location: Orders, sink: str
) -> None:
    """Rules are counted there too, and rows for a sink that counts none; the rest is named."""
    final, account = location.account(spark, "through_spark", params={"sink": sink})

    assert {"orders": {"rows": 12, "broken": 2, "on": "count"}} == account["rejected"]
    assert {"rows": 10, "broken": 3, "on": "count"} == account["rules"]["positive"]
    assert ({"orders": 12}, [10]) == (account["sources"], [*account["written"].values()])
    (said,) = account["uncounted"]
    assert "is Spark's own sink: only the last attempt's rows are counted" in said
    assert next(summary_lines(final, took_s=1)).endswith(
        "at least 12 rows in, at least 10 out, at least 0 late"
    )


@pytest.mark.long
def test_a_function_that_reads_its_rows_twice(spark: Any, location: Orders) -> None:
    """The rows count once, and are kept once."""
    _, account = location.account(spark, "through_a_function")

    assert ({"orders": 12}, 5) == (account["sources"], account["quarantined"])


@pytest.mark.long
def test_a_run_that_does_not_add_up_is_not_finished(
    spark: Any, location: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch in which a row was not looked at is not published; the next attempt's is."""

    def one_less(tap: BitTap, values: Any) -> TapCount:
        found = count(tap, values)
        return dataclasses.replace(found, rows=found.rows - (tap.source is not None))

    count = BitTap._count_of
    with monkeypatch.context() as patched:
        patched.setattr(BitTap, "_count_of", one_less)
        with pytest.raises(
            RunFailedError,
            match="query 'out': batch 0 does not add up: 4 rows of source 'orders' were read, and "
            "3 were checked for rejected records; it is not published; see that nothing changes",
        ):
            location.account(spark, "checked", restart="none")
    assert not list(location.output.glob("*.parquet"))

    final, _ = location.account(spark, "checked")

    assert ("FINISHED", 2, 7) == (final.outcome, final.attempts, len(rows(location.output, "k")))


@pytest.mark.long
@pytest.mark.parametrize(
    "file_format",
    ["json", *(pytest.param(each, marks=pytest.mark.whole) for each in ("parquet", "csv", "orc"))],
)
def test_kept_rows_are_shown_and_written_for_correction(
    spark: Any, location: Orders, capsys: pytest.CaptureFixture[str], file_format: str
) -> None:
    """The command reads what the run has published, and writes records as they came."""
    location.account(spark, "checked", params={"format": file_format})
    command = ["quarantine", str(location.job_dir)]
    capsys.readouterr()

    assert EXIT_OK == main([*command, "--rows", "2"])
    lines = capsys.readouterr().out.splitlines()
    assert "run r1: 5 quarantined (2 rejected, 3 broke a rule, 0 late)" == lines[0]
    assert f"  query out: quarantined in files:{location.kept}" == lines[1]
    assert "    source orders: 2 of 12 records (quarantine)" in lines
    assert {"    2 rejected in orders", "    3 rule in positive"} <= set(lines)
    (shown,) = [line for line in lines if line.endswith("no json at all")]
    assert "is no object of JSON" in shown

    assert EXIT_OK == main([*command, "--kind", "rule", "--json"])
    (query,) = json.loads(capsys.readouterr().out)["queries"]
    (group,) = query["quarantined"]
    assert ("rule", "positive", 3) == (group["kind"], group["location"], group["rows"])
    assert {-1, 0, None} == {json.loads(row["row"])["v"] for row in group["samples"]}

    folder = location.root / "corrected"
    assert EXIT_OK == main([*command, "--kind", "rejected", "--write", str(folder)])
    storage = open_storage(str(folder / "rejected" / "orders"))
    (name,) = storage.list("")
    assert {"no json at all", '{"k":"y","v":"two"}'} == {*storage.read(name).decode().splitlines()}
