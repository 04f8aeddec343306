"""Output locations: a folder of files has one writer, and none that reads it or keeps its job there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider.extensions.delta import delta
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.queries.output_locations import OutputLocations, location_key
from airflow_provider.runtime.sinks.files import files
from airflow_provider.runtime.sinks.spark_sink import spark_sink
from airflow_provider.runtime.sources.declared import SourceDefinition
from tests.declaring import declared

if TYPE_CHECKING:
    from pathlib import Path

ACCOUNT = "container@account.dfs.core.windows.net"


def source(path: str, *, file_format: str = "json") -> SourceDefinition:
    return declared(
        "clicks",
        format=file_format,
        path=path,
        options={},
        bounded=True,
    )


def refusal(outputs: OutputLocations, query: str, *sinks: Any, reads: str | None = None) -> str:
    with pytest.raises(ConfigError) as refused:
        outputs.add(query, sinks, [source(reads)] if reads is not None else [])
    return str(refused.value)


@pytest.mark.parametrize(
    ("path", "other"),
    [
        ("/data/out", "/data/out/"),
        ("/data/out", "/data//x/../out"),
        ("/data/out", "file:///data/out"),
        ("/data/out", "file:/data/out"),
        ("s3://bucket/out", "s3a://bucket/out/"),
        ("gs://bucket/a/out", "gcs://bucket/a/../a/out"),
        (f"abfss://{ACCOUNT}/out", f"az://{ACCOUNT}/out"),
        ("memory://out/x", "memory://out/x/"),
    ],
)
def test_a_folder_has_one_location_whatever_its_spelling(path, other):
    """Two spellings of a folder are one location, and its parent is another."""
    assert location_key(path) == location_key(other)
    assert location_key(path) != location_key(path.rpartition("/")[0] + "/elsewhere")


def test_links_and_relative_paths_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A symbolic link, also above the folder and before it exists, leads to the same location."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.chdir(tmp_path)

    assert location_key(str(tmp_path / "real/out")) == location_key(str(tmp_path / "link/out"))
    assert location_key(str(tmp_path / "real/out")) == location_key("link/out")


@pytest.mark.parametrize("other", ["{root}/link", "file://{root}/out", "{root}/x/../out/"])
def test_two_queries_do_not_write_files_into_one_folder(tmp_path: Path, other: str):
    """Both are named, with the fixes; whichever sinks of files they have."""
    out = tmp_path / "out"
    (tmp_path / "link").symlink_to(out)
    path = other.format(root=tmp_path)
    for first, second in (
        (files(str(out)), files(path, "json")),
        (files(str(out)), spark_sink("parquet", {"path": path})),
        (spark_sink("csv", {"path": str(out)}), files(path)),
        (delta(str(out)), files(path)),
        (files(str(out)), delta(path)),
    ):
        outputs = OutputLocations()
        outputs.add("daily", [first], [])
        said = refusal(outputs, "hourly", second)
        assert said == (
            f"queries 'daily' and 'hourly' both write to {second.location}, where readers could "
            "not tell them apart; union them before one ctx.write, or give each a folder of its own"
        )


def test_two_sinks_of_a_query_do_not_write_into_one_folder(tmp_path: Path):
    """
    Not to one table either, which keeps one epoch of a query and would take the second for it.
    """
    (tmp_path / "link").symlink_to(tmp_path / "out")
    out, link = str(tmp_path / "out"), str(tmp_path / "link")
    for first, second in ((files(out), files(link)), (delta(out), delta(link))):
        said = refusal(OutputLocations(), "daily", first, second)
        assert said.startswith(f"query 'daily' writes twice to {second.location}, where readers")
        assert said.endswith("; give each sink a folder of its own")


def test_queries_may_share_a_table():
    """Its log checks what each adds; sinks without a folder are not looked at."""
    outputs = OutputLocations("/jobs/daily")
    outputs.add("daily", [delta("/data/table")], [])
    outputs.add("hourly", [delta("/data/table")], [])
    outputs.add("minutes", [files("/data/minutes"), spark_sink("console")], [])
    outputs.add("beside", [files("/data/minutes-2")], [])


@pytest.mark.parametrize(
    ("outer", "inner"),
    [("/data/out", "/data/out/late"), ("s3://b/out", "s3a://b/out/day=1/_x=2/late")],
)
def test_a_folder_in_an_output_is_no_other_output(outer, inner):
    """
    In either order it is refused; where readers pass the inner folder over it is none of the outer.
    """
    for first, second in ((outer, inner), (inner, outer)):
        outputs = OutputLocations()
        outputs.add("daily", [files(first)], [])
        said = refusal(outputs, "late", files(second))
        assert f"writes to {inner}, which is inside {outer}, where query" in said
        assert "; write to a folder beside it" in said
    outputs = OutputLocations()
    outputs.add("daily", [files(outer)], [])
    outputs.add("late", [files(f"{outer}/_late")], [])


@pytest.mark.parametrize(
    ("read", "written"),
    [
        ("/data/in", "/data/in"),
        ("/data/in", "/data/in/out"),
        ("/data", "file:///data/in/out"),
        ("/data/in/*.json", "/data/in"),
        ("/data/*", "/data/in"),
        ("/data/{in,more}/day=*", "/data/in"),
        ("s3://b/in", "s3a://b/in/out"),
    ],
)
def test_a_query_does_not_write_where_it_reads(read, written):
    """Also not where a pattern of its source leads."""
    said = refusal(OutputLocations(), "daily", files(written), reads=read)

    assert said == (
        f"query 'daily' writes to {files(written).location}, which source 'clicks' reads, so that it would read "
        "its own rows; write to a folder outside of it"
    )


@pytest.mark.parametrize(
    ("read", "written"),
    [
        ("/data/in", "/data/in-out"),
        ("/data/in", "/data/in/_out"),
        ("/data/in/a.json", "/data/in"),
        ("/data/{in,more}", "/data/out"),
        ("/data/i?", "/data/out"),
        ("s3://b/in", "s3://c/in"),
    ],
)
def test_a_query_may_write_beside_what_it_reads(read, written):
    """
    Names that begin alike, hidden folders, single files and patterns that do not match are apart.
    """
    OutputLocations().add("daily", [files(written)], [source(read)])


def test_what_another_query_reads_around_an_output_is_refused():
    """
    In either order; a source of the written folder itself waits for its writer, which is a chain.
    """
    for reads_first in (True, False):
        outputs = OutputLocations()
        if reads_first:
            outputs.add("all", [files("/x")], [source("/data")])
            said = refusal(outputs, "daily", files("/data/daily"))
        else:
            outputs.add("daily", [files("/data/daily")], [])
            said = refusal(outputs, "all", files("/x"), reads="/data")
        assert said == (
            "query 'daily' writes to /data/daily, which is in what source 'clicks' of query 'all' "
            "reads; write to a folder outside of it, or let the source read that folder alone"
        )
    chain = OutputLocations()
    chain.add("daily", [files("/data/daily")], [])
    chain.add("all", [files("/x")], [source("/data/daily/"), source("/data/daily/*.json")])


def test_nothing_is_written_into_the_job_directory(tmp_path: Path):
    """Nor around it, unless readers pass it over; by whatever name it is called."""
    (tmp_path / "link").symlink_to(tmp_path / "job")
    outputs = OutputLocations(str(tmp_path / "job"))
    for inside in (f"{tmp_path}/job", f"{tmp_path}/link/out", f"file://{tmp_path}/job/out"):
        for sink in (files(inside), delta(inside), spark_sink("parquet", {"path": inside})):
            said = refusal(outputs, "daily", sink)
            where = f"writes to {sink.location}, which is in the job directory {tmp_path}/job; "
            assert where in said
    said = refusal(outputs, "daily", files(str(tmp_path)))
    assert f"writes to {tmp_path}, which has the job directory in it, {tmp_path}/job; " in said
    outputs.add("daily", [files(str(tmp_path / "out"))], [])
    OutputLocations(str(tmp_path / "out/_job")).add("daily", [files(str(tmp_path / "out"))], [])
