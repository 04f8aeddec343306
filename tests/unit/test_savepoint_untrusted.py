"""Savepoints that somebody else has made: no name and no path in one leads out of it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from airflow_provider.runtime.cli import main
from airflow_provider.runtime.errors import EXIT_USAGE
from airflow_provider.runtime.savepoints.checkpoint_source import job_source
from airflow_provider.runtime.savepoints.take import take_savepoint
from tests.unit.support import EpochBench, FakeClock, FakeSink

pytestmark = pytest.mark.slow

SECRET = b"PRIVATE KEY"


@pytest.fixture
def place(tmp_path) -> Path:
    """Return a folder with a savepoint, another job's checkpoint, and a secret."""
    job = EpochBench(tmp_path / "job", FakeSink()).begun().published(2)
    source = job_source(job.storage.url, job.clock)
    take_savepoint(source, str(tmp_path / "sp/s1"), aligned_timeout_s=0, clock=FakeClock())
    victim = tmp_path / "victim/checkpoint/offsets"
    victim.mkdir(parents=True)
    (victim / "0").write_bytes(b"precious")
    secret = tmp_path / "sp/others/queries/q"
    secret.mkdir(parents=True)
    (secret / "key").write_bytes(SECRET)
    return tmp_path


def change(place: Path, **changed: object) -> None:
    """Change what the savepoint says of its query."""
    manifest = place / "sp/s1/savepoint.json"
    record = json.loads(manifest.read_text())
    record["queries"]["q"].update(changed)
    manifest.write_text(json.dumps(record))


def files(place: Path) -> list[list[object]]:
    return json.loads((place / "sp/s1/savepoint.json").read_text())["queries"]["q"]["files"]


def rename(place: Path, name: str) -> None:
    """Let the query be called otherwise, and let its files lie where that leads."""
    manifest = place / "sp/s1/savepoint.json"
    record = json.loads(manifest.read_text())
    record["queries"][name] = record["queries"]["q"]
    manifest.write_text(json.dumps(record))
    shutil.copytree(place / "sp/s1/queries/q", place / "sp/victim", dirs_exist_ok=True)


def assert_refused(place: Path, capsys, *said: str) -> None:
    """Every command refuses it in one line that names it; nothing is written or removed."""
    new = place / "new"
    before = {str(path): path.read_bytes() for path in place.rglob("*") if path.is_file()}
    for command in (
        ["savepoint", "fork", str(place / "sp/s1"), str(new)],
        ["savepoint", "restore", str(place / "sp/s1"), str(new)],
    ):
        assert EXIT_USAGE == main.main(command)
        error = capsys.readouterr().err.strip()
        assert (1, []) == (len(error.splitlines()), [word for word in said if word not in error])
    now = {str(path): path.read_bytes() for path in place.rglob("*") if path.is_file()}
    assert before == now
    assert not new.exists()
    assert 1 == (place / "sp/others/queries/q/key").stat().st_nlink


@pytest.mark.parametrize("name", ["../../victim", "..", "", "a/b", "/etc", ".hidden", "a\nb"])
def test_a_query_of_a_name_that_is_none(place, capsys, name):
    """It would be a folder of the new job: it cannot lead elsewhere."""
    rename(place, name)

    assert_refused(place, capsys, "s1/savepoint.json")
    assert b"precious" == (place / "victim/checkpoint/offsets/0").read_bytes()


@pytest.mark.parametrize("holder", ["../others", "..", ".", "", "a/b", "/etc"])
def test_a_holder_that_is_not_beside(place, capsys, holder):
    """Files of another savepoint are named by its folder, not by a way."""
    change(place, files=[*files(place), ["key", len(SECRET), None, holder]])

    assert_refused(place, capsys, "s1/savepoint.json")


@pytest.mark.parametrize("path", ["../../../key", "/etc/passwd", "", "a//b", "./a"])
@pytest.mark.parametrize("member", ["files", "addressed"])
def test_a_path_that_leads_out(place, capsys, member, path):
    """Neither what is copied nor what is rewritten lies outside."""
    if member == "files":
        change(place, files=[*files(place), [path, len(SECRET)]])
    else:
        change(place, addressed=[path])

    assert_refused(place, capsys, "s1/savepoint.json")


@pytest.mark.parametrize("what", ["file", "folder", "query", "queries"])
def test_a_symbolic_link_in_a_savepoint(place, capsys, what):
    """What it leads to is not the savepoint's, also when its size is right."""
    root = place / "sp/s1/queries"
    if what == "file":
        (root / "q/key").symlink_to(place / "sp/others/queries/q/key")
        change(place, files=[*files(place), ["key", len(SECRET)]])
    elif what == "folder":
        (root / "q/others").symlink_to(place / "sp/others/queries/q")
        change(place, files=[*files(place), ["others/key", len(SECRET)]])
    elif what == "query":
        shutil.move(root / "q", place / "sp/elsewhere")
        (root / "q").symlink_to(place / "sp/elsewhere")
    else:
        shutil.move(root, place / "sp/elsewhere")
        root.symlink_to(place / "sp/elsewhere")

    assert_refused(place, capsys, "sp/s1")


def test_a_pipe_in_a_savepoint(place, capsys):
    """Nobody waits for what may come out of it."""
    os.mkfifo(place / "sp/s1/queries/q/pipe")
    change(place, files=[*files(place), ["pipe", 0]])

    assert_refused(place, capsys, "q/pipe: is missing")
