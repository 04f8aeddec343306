"""Job directories that released versions have left: this version reads them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_provider.runtime.cli import main
from airflow_provider.runtime.errors import EXIT_OK
from airflow_provider.runtime.jobdir.layout import known_job
from airflow_provider.runtime.jobdir.run_commit import verify_final
from tests.kept import archives, checksums_of, unpack
from tests.present import present
from tests.unit.job_reader import read_job, strays

ENDED = {"finished": "finished", "suspended": "suspended", "batch": "finished"}
ARCHIVES = archives()
MOST_BYTES = 40_000


def named(archive: Path) -> str:
    return f"{archive.parent.name} {archive.name.partition('.')[0]}"


def test_each_version_keeps_one_of_each():
    """A stream that has finished, one that is suspended with its state, a batch job; all small."""
    found = {(path.parent.name, path.name.partition(".")[0]) for path in ARCHIVES}

    assert {(version, name) for version, _ in found for name in ENDED} == found != set()
    assert [] == [named(path) for path in ARCHIVES if path.stat().st_size > MOST_BYTES]


@pytest.mark.parametrize("archive", ARCHIVES, ids=named)
def test_what_an_earlier_version_has_left_is_read(tmp_path, capsys, archive):
    """Its runs, its final checkpoints, its savepoint; and by the page of the stored format alone."""
    job_dir = unpack(archive, tmp_path) / "job"
    expected = ENDED[archive.name.partition(".")[0]]

    assert EXIT_OK == main.main(["status", str(job_dir), "--json"])
    [run] = json.loads(capsys.readouterr().out)["runs"]
    directory = known_job(str(job_dir))
    verify_final(directory, present(directory.run(run["run_id"]).final()))
    read = read_job(job_dir)

    assert (expected, 1, None) == (run["state"], run["attempts"], run["problem"])
    assert [expected] == [each["state"] for each in read["runs"].values()]
    assert run["final"]["queries"]["hours"]["batch_id"] == read["runs"]["first"]["ended"]["hours"]
    assert ([], []) == (read["unfinished"], strays(job_dir))
    for name in read["savepoints"]:
        assert EXIT_OK == main.main(["savepoint", "verify", f"{job_dir}/savepoints/{name}"])
    assert (expected == "suspended") == (read["savepoints"] == ["kept"])


@pytest.mark.parametrize("archive", ARCHIVES, ids=named)
def test_what_is_unpacked_has_the_checksums_of_its_files(tmp_path, archive):
    """Of files that name the folder, and of those that do not; Spark would refuse any other."""
    found = list(unpack(archive, tmp_path).rglob(".*.crc"))
    files = [path.with_name(path.name[1:].removesuffix(".crc")) for path in found]

    assert [checksums_of(each.read_bytes()) for each in files] == [p.read_bytes() for p in found]
    assert ("batch" not in archive.name) == bool(found)
