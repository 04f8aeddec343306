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
def location(tmp_path) -> Path:
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


def change(location: Path, **changed: object) -> None:
    """Change what the savepoint says of its query."""
    manifest = location / "sp/s1/savepoint.json"
    record = json.loads(manifest.read_text())
    record["queries"]["q"].update(changed)
    manifest.write_text(json.dumps(record))


def files(location: Path) -> list[list[object]]:
    return json.loads((location / "sp/s1/savepoint.json").read_text())["queries"]["q"]["files"]


def rename(location: Path, name: str) -> None:
    """Let the query be called otherwise, and let its files lie where that leads."""
    manifest = location / "sp/s1/savepoint.json"
    record = json.loads(manifest.read_text())
    record["queries"][name] = record["queries"]["q"]
    manifest.write_text(json.dumps(record))
    shutil.copytree(location / "sp/s1/queries/q", location / "sp/victim", dirs_exist_ok=True)


def assert_refused(location: Path, capsys, *said: str) -> None:
    """Every command refuses it in one line that names it; nothing is written or removed."""
    new = location / "new"
    before = {str(path): path.read_bytes() for path in location.rglob("*") if path.is_file()}
    for command in (
        ["savepoint", "fork", str(location / "sp/s1"), str(new)],
        ["savepoint", "restore", str(location / "sp/s1"), str(new)],
    ):
        assert EXIT_USAGE == main.main(command)
        error = capsys.readouterr().err.strip()
        assert (1, []) == (len(error.splitlines()), [word for word in said if word not in error])
    now = {str(path): path.read_bytes() for path in location.rglob("*") if path.is_file()}
    assert before == now
    assert not new.exists()
    assert 1 == (location / "sp/others/queries/q/key").stat().st_nlink


@pytest.mark.parametrize("name", ["../../victim", "..", "", "a/b", "/etc", ".hidden", "a\nb"])
def test_a_query_of_a_name_that_is_none(location, capsys, name):
    """It would be a folder of the new job: it cannot lead elsewhere."""
    rename(location, name)

    assert_refused(location, capsys, "s1/savepoint.json")
    assert b"precious" == (location / "victim/checkpoint/offsets/0").read_bytes()


@pytest.mark.parametrize("holder", ["../others", "..", ".", "", "a/b", "/etc"])
def test_a_holder_that_is_not_beside(location, capsys, holder):
    """Files of another savepoint are named by its folder, not by a way."""
    change(location, files=[*files(location), ["key", len(SECRET), None, holder]])

    assert_refused(location, capsys, "s1/savepoint.json")


@pytest.mark.parametrize("path", ["../../../key", "/etc/passwd", "", "a//b", "./a"])
@pytest.mark.parametrize("member", ["files", "addressed"])
def test_a_path_that_leads_out(location, capsys, member, path):
    """Neither what is copied nor what is rewritten lies outside."""
    if member == "files":
        change(location, files=[*files(location), [path, len(SECRET)]])
    else:
        change(location, addressed=[path])

    assert_refused(location, capsys, "s1/savepoint.json")


@pytest.mark.parametrize("what", ["file", "folder", "query", "queries"])
def test_a_symbolic_link_in_a_savepoint(location, capsys, what):
    """What it leads to is not the savepoint's, also when its size is right."""
    root = location / "sp/s1/queries"
    if what == "file":
        (root / "q/key").symlink_to(location / "sp/others/queries/q/key")
        change(location, files=[*files(location), ["key", len(SECRET)]])
    elif what == "folder":
        (root / "q/others").symlink_to(location / "sp/others/queries/q")
        change(location, files=[*files(location), ["others/key", len(SECRET)]])
    elif what == "query":
        shutil.move(root / "q", location / "sp/elsewhere")
        (root / "q").symlink_to(location / "sp/elsewhere")
    else:
        shutil.move(root, location / "sp/elsewhere")
        root.symlink_to(location / "sp/elsewhere")

    assert_refused(location, capsys, "sp/s1")


def test_a_pipe_in_a_savepoint(location, capsys):
    """Nobody waits for what may come out of it."""
    os.mkfifo(location / "sp/s1/queries/q/pipe")
    change(location, files=[*files(location), ["pipe", 0]])

    assert_refused(location, capsys, "q/pipe: is missing")
