"""Files of others in a folder that is to become a job directory."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from airflow_provider.plugins.documents import read_folder
from airflow_provider.runtime.jobdir import layout
from airflow_provider.runtime.jobdir.layout import JobDirectory, neighbour_lines, open_job_directory
from airflow_provider.runtime.storage.local import LocalStorage
from airflow_provider.runtime.testing.job_directories import identified


def lines_of(folder: Path) -> list[str]:
    return neighbour_lines(open_job_directory(str(folder)))


@pytest.mark.parametrize(
    "names",
    [(), ("savepoints",), ("leases", "heartbeats"), ("identity.json", "predecessors"), (".git",)],
)
def test_a_folder_of_its_own_is_taken_without_a_word(tmp_path, names):
    """Also one that a bootstrap, or a driver that died early, has begun."""
    for name in names:
        if name == "identity.json":
            identified(LocalStorage(str(tmp_path)))
        else:
            (tmp_path / name).mkdir()

    assert [] == lines_of(tmp_path)
    assert [] == lines_of(tmp_path / "missing")


def test_a_job_that_would_begin_among_files_of_others_is_warned_of(tmp_path):
    """The first of them are named; once the job is there nothing is said any more."""
    for name in ("turnover.py", "orders", "a.csv", "b.csv", "runs"):
        (tmp_path / name).mkdir()

    directory = open_job_directory(str(tmp_path))

    (line,) = neighbour_lines(directory)
    assert "(a.csv, b.csv, orders and 1 more); " in line
    assert line.endswith("so name a folder of its own")

    (tmp_path / "job.json").touch()
    assert [] == neighbour_lines(directory)


def test_a_store_is_not_looked_at():
    """What lies beside a prefix in a bucket costs a listing, and belongs to whom it belongs."""
    directory = cast("JobDirectory", SimpleNamespace(url="s3://bucket/job"))

    assert [] == neighbour_lines(directory)


def test_the_names_of_a_job_directory_are_those_that_are_drawn(tmp_path):
    """The page in the browser shows each of them, and nothing else that lies beside them."""
    page = (Path(__file__).parents[2] / "docs/internals/job-directory.md").read_text()
    lines = " ".join(re.findall(r"^[├└]── (.{,31})", page, re.M))
    assert layout.ROOTS == set(re.findall(r"(?<![a-z<])[a-z]+(?:\.json|(?=/))", lines))

    for name in (*layout.ROOTS, "theirs", "theirs.json"):
        tmp_path.joinpath(name).touch() if name.endswith(".json") else (tmp_path / name).mkdir()
    shown = read_folder(str(tmp_path), "")
    assert layout.ROOTS == {*shown.folders, *shown.documents}
