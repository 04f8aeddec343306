"""Comparisons without Spark: which runs are refused, scratch folders, reports and the task."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider.extensions.comparisons import published, scratch
from airflow_provider.extensions.comparisons.differences import Difference
from airflow_provider.extensions.comparisons.first_run import (
    InputEnds,
    check_begins,
    check_complete,
    find_first_run,
)
from airflow_provider.extensions.comparisons.report import (
    DIFFERENT,
    EQUAL,
    IN_NUMBER,
    NOT_COMPARED,
    OutputComparison,
    QueryComparison,
    Report,
)
from airflow_provider.extensions.comparisons.scratch import scratch_folder
from airflow_provider.extensions.comparisons.verify_command import parse_keys
from airflow_provider.runtime.base.host import ProcessIdentity, identify
from airflow_provider.runtime.checkpoint.source_end import SourceEnd
from airflow_provider.runtime.errors import ConfigError, redaction
from airflow_provider.runtime.jobdir.query_reports import FinalOperator
from airflow_provider.runtime.jobdir.run_records import JobRecord
from airflow_provider.runtime.sources.declared import SourceDefinition
from airflow_provider.runtime.sources.files import FilesSource
from airflow_provider.runtime.sources.spark import SparkSource
from airflow_provider.runtime.storage.open import open_storage
from airflow_provider.runtime.testing.job_directories import (
    NOW,
    JobDirectoryBuilder,
    a_final,
    a_run,
    rewind_run,
)

FILES = SourceDefinition("files", FilesSource("csv", "/in"), bounded=True)
KAFKA = SourceDefinition("topic", SparkSource("kafka"), bounded=True)


@pytest.fixture
def job(tmp_path: Path) -> JobDirectoryBuilder:
    builder = JobDirectoryBuilder(tmp_path / "job")
    builder.begin()
    builder.directory.put_job(JobRecord(name="daily_delays", created=NOW))
    return builder


def put(job: JobDirectoryBuilder, run_id: str = "r1", final: Any = None, **record: Any) -> None:
    run = job.directory.run(run_id)
    run.put_record(a_run(run_id, **record))
    if final is not None:
        run.put_final(final)


# --- which run ------------------------------------------------------------------------------------


def test_a_run_without_a_final_checkpoint_is_refused(job):
    """
    Its output is not complete; and so is a name that no run has.
    """
    put(job)

    with pytest.raises(ConfigError, match="run 'r1' has no final checkpoint"):
        find_first_run(job.directory.url, "r1")
    with pytest.raises(ConfigError, match="there is no run 'r2'; its runs: r1"):
        find_first_run(job.directory.url, "r2")
    with pytest.raises(ConfigError, match="no run has ended with a final checkpoint"):
        find_first_run(job.directory.url, None)


def test_a_rewound_run_is_refused(job):
    """
    Its rows were removed.
    """
    put(job, final=a_final())
    rewind_run(job.directory, "r1")

    with pytest.raises(ConfigError, match="run 'r1' was rewound"):
        find_first_run(job.directory.url, "r1")


def with_state(final: Any) -> Any:
    """Return a final checkpoint whose query has a stateful operator."""
    operator = FinalOperator(id=0, name="by key", kind="stateStoreSave", finish_state="finished")
    query = dataclasses.replace(final.queries["q"], operators=(operator,))
    return dataclasses.replace(final, queries={"q": query})


def test_a_run_that_continues_is_computed_only_without_state_and_from_files(job):
    """
    State and positions of earlier runs are not repeated.
    """
    put(job, final=with_state(a_final()), starting={"q": 4})
    put(job, "r2", final=a_final("r2"), starting={"q": 4})
    stateful, stateless = (find_first_run(job.directory.url, run) for run in ("r1", "r2"))
    of_files: Any = SimpleNamespace(name="q", sources=(FILES,), takes_over=None)
    of_kafka: Any = SimpleNamespace(name="q", sources=(KAFKA,), takes_over=None)

    check_begins(stateless, [of_files])
    with pytest.raises(ConfigError, match="continues from an earlier run of the job, and keeps"):
        check_begins(stateful, [of_files])
    with pytest.raises(ConfigError, match="its source 'topic' is no folder of files"):
        check_begins(stateless, [of_kafka])


def test_a_run_from_a_savepoint_or_a_checkpoint_is_refused(job):
    """
    By the address that it began from.
    """
    put(job, final=with_state(a_final()), from_savepoint="/saved/s1")
    first = find_first_run(job.directory.url, "r1")
    query: Any = SimpleNamespace(name="q", sources=(FILES,), takes_over=None)
    taken: Any = SimpleNamespace(name="q", sources=(FILES,), takes_over="/old/checkpoint")

    with pytest.raises(ConfigError, match="continues from /saved/s1, and keeps state"):
        check_begins(first, [query])
    with pytest.raises(ConfigError, match="began from the checkpoint /old/checkpoint"):
        check_begins(first, [taken])


def test_a_suspended_run_with_state_has_no_other_mode(job):
    """
    Without state there is nothing that the other mode would write in addition.
    """
    put(job, final=with_state(a_final(outcome="SUSPENDED")))
    put(job, "r2", final=a_final("r2", outcome="SUSPENDED"))

    check_complete(find_first_run(job.directory.url, "r2"))
    with pytest.raises(ConfigError, match="ended SUSPENDED: query 'q' keeps rows"):
        check_complete(find_first_run(job.directory.url, "r1"))


def test_a_run_that_was_stopped_by_hand_is_refused(job):
    """
    It has no end that a second computation could reach.
    """
    put(job, final=a_final(outcome="SUSPENDED"), until="stopped", at_end="suspend")

    with pytest.raises(ConfigError, match="ran until it was stopped"):
        find_first_run(job.directory.url, "r1")


def test_one_table_has_one_end(job):
    """
    A source that two queries have read up to different ends cannot be one batch input.
    """
    ends = [SourceEnd("files", 0, log="0", files={"file:///in/": {"a.csv": n}}) for n in (1, 1, 2)]
    alike = InputEnds({"a": {"files": ends[0]}, "b": {"files": ends[1]}, "c": None})
    different = InputEnds({"a": {"files": ends[0]}, "b": {"files": ends[2]}})

    assert ends[0] == alike.find(FILES)
    assert {} == getattr(alike.find(FILES, "c"), "files", None)
    assert None is alike.find(KAFKA, "a")
    assert ends[2] == different.find(FILES, "b")
    with pytest.raises(ConfigError, match="queries 'a' and 'b' of the run have read it up to"):
        different.find(FILES)


# --- scratch --------------------------------------------------------------------------------------

LOCAL: Any = {"spark_master": "local[*]", "jvm": os.getpid()}


def test_a_scratch_folder_is_removed_after_an_error(tmp_path):
    """
    With what is in it.
    """
    with contextlib.suppress(KeyError), scratch_folder(str(tmp_path), **LOCAL) as folder:
        (folder / "outputs").mkdir()
        assert [folder] == list(tmp_path.iterdir())
        raise KeyError

    assert [] == list(tmp_path.iterdir())


def test_the_folder_of_a_killed_comparison_is_removed_by_the_next(tmp_path):
    """
    Only if it proves that it is one: not that of a live process, a copy, or a folder of that name.
    """
    with scratch_folder(str(tmp_path), **LOCAL) as alive:
        dead, copy = (alive.with_name(f"{scratch._PREFIX}{name}") for name in ("dead", "copy"))
        named = alive.with_name(f"{scratch._PREFIX}named")
        named.mkdir()
        for folder, name in ((dead, dead.name), (copy, dead.name)):
            shutil.copytree(alive, folder)
            owner = scratch.ScratchOwner(folder=name, owner=ended_process())
            owner.put(open_storage(str(folder)), "owner.json")
        with scratch_folder(str(tmp_path), **LOCAL) as second:
            left = set(tmp_path.iterdir())

    assert {alive, copy, named, second} == left


def ended_process() -> ProcessIdentity:
    """Return the identity of a process that lived, and has ended."""
    with subprocess.Popen(["sleep", "60"]) as process:
        identity = identify([process.pid])
        process.kill()
    assert identity.is_gone()
    return identity


def test_a_cluster_needs_a_folder_that_its_machines_see(tmp_path):
    """
    And a folder that is not there is refused before anything is made.
    """
    with (
        pytest.raises(ConfigError, match="give --scratch"),
        scratch_folder(None, spark_master="yarn", jvm=1),
    ):
        pass
    with (
        pytest.raises(ConfigError, match="there is no such folder"),
        scratch_folder(f"{tmp_path}/none", **LOCAL),
    ):
        pass


# --- report ---------------------------------------------------------------------------------------

SAME = Difference(3, 3, 0, 0)
OTHER = Difference(3, 3, 1, 1, ('{"v":1}',), ('{"v":2}',), {"v": 1})


@pytest.mark.parametrize(
    ("output", "verdict"),
    [
        (OutputComparison("s", SAME, counts=(3, 4)), EQUAL),
        (OutputComparison("s", OTHER), DIFFERENT),
        (OutputComparison("s", SAME, findings=("1 of its files are missing",)), DIFFERENT),
        (OutputComparison("s", None, "it is a table", counts=(3, 3)), IN_NUMBER),
        (OutputComparison("s", None, "it is a table", counts=(3, 4)), DIFFERENT),
        (OutputComparison("s", None, "it is a table", counts=(3, None)), NOT_COMPARED),
    ],
)
def test_an_output_is_equal_if_its_rows_are_or_by_its_numbers(output, verdict):
    """
    Rows decide where they can be read back.
    """
    report = Report("a", "b", ("old", "new"), (QueryComparison("q", (output,)),))

    assert verdict == report.verdict
    assert (0 if verdict in {EQUAL, IN_NUMBER} else 6) == report.exit_code


def test_an_account_that_does_not_agree_is_a_difference():
    """
    Numbers that are only shown are none.
    """
    shown = QueryComparison("q", (OutputComparison("s", SAME),), counts={"late": (1, 0)})
    uneven = dataclasses.replace(shown, account={"rejected records": (1, 2)})

    assert (EQUAL, DIFFERENT) == (shown.verdict, uneven.verdict)
    lines = list(Report("a", "b", ("old", "new"), (uneven,)).lines())
    assert "    rejected records: 1 and 2" in lines
    assert "    late 1 | 0" in lines


def test_a_report_has_no_secret(monkeypatch):
    """
    Neither its lines nor its JSON.
    """
    monkeypatch.setattr(redaction, "_known", redaction.known())
    redaction.remember({"password": "hunter2-and-more"})
    other = dataclasses.replace(OTHER, first_examples=('{"v":"hunter2-and-more"}',))
    report = Report("a", "b", ("o", "n"), (QueryComparison("q", (OutputComparison("s", other),)),))

    assert "hunter2" not in "\n".join(report.lines())
    assert "hunter2" not in str(report.to_dict())
    assert DIFFERENT == report.to_dict()["verdict"]


def test_keys_are_those_of_a_query_or_of_all():
    """
    Each query once.
    """
    assert {"": ["a", "b"], "q": ["c"]} == parse_keys(["a, b", "q:c"])
    for wrong in (["q:"], ["a", "b"]):
        with pytest.raises(ConfigError, match="--key"):
            parse_keys(wrong)


# --- files of an output ---------------------------------------------------------------------------

OWN = "0b9f6c1e-3a55-4d43-8f2b-2f6a51c3d9aa"
OTHERS = "1c9f6c1e-3a55-4d43-8f2b-2f6a51c3d9aa"


@pytest.mark.parametrize(
    ("name", "is_foreign"),
    [
        (f"part-0000000002-00000-{OWN}.parquet", True),  # no record names it
        (f"part-0000000007-00000-{OWN}.parquet", False),  # of another run
        (f"day=1/part-0000000002-00000-{OTHERS}.parquet", False),
        (f"part-0000000002-00000-{OTHERS}-copy.parquet", True),
        (f"copy of part-0000000002-00000-{OWN}.parquet", True),
        ("part-00000-2f6a51c3.parquet", True),
    ],
)
def test_a_file_is_foreign_if_no_query_has_published_it(name, is_foreign):
    """
    Names of published files have the epoch and the query's id.
    """
    assert is_foreign == published._is_foreign(name, OWN, dict.fromkeys(range(5)))
