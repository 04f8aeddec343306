"""Job directories that released versions have left: this version's runs go on with them."""

from __future__ import annotations

import json
from pathlib import Path

import pyspark
import pytest
from streams import read_with_duckdb

from airflow_provider.runtime.cli.main import main
from airflow_provider.runtime.errors import EXIT_OK
from tests.kept import archives, unpack

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FIRST = {("00", "milk", 2), ("00", "tea", 5), ("02", "tea", 8)}
MORE = "2026-01-01T02:40:00Z,tea,16\n2026-01-01T03:00:00Z,milk,32\n"
ALL = {("00", "milk", 2), ("00", "tea", 5), ("02", "tea", 24), ("03", "milk", 32)}


def made_by(name: str) -> list[Path]:
    return [path for path in archives() if path.name == f"{name}.tar.xz"]


def opened(archive: Path, folder: Path) -> Path:
    """Return the folder of an archive, if this Spark may read what was written there."""
    root = unpack(archive, folder)
    then = json.loads((root / "made.json").read_text())["spark"]
    if _version(pyspark.__version__) < _version(then):
        pytest.skip(f"its checkpoint is of Spark {then}")
    return root


def _version(text: str) -> list[int]:
    return [int(part) for part in text.split(".")[:2]]


def run(spark, root: Path, *options: str, job: str = "job", output: str = "output") -> None:
    """Run the kept job with its own parameters, but for what a test changes."""
    params = [f"--param=input={root / 'input'}", f"--param=output={root / output}"]
    entry = ["--entry", f"{root}/job.py:hours", "--conf=spark.sql.session.timeZone=UTC"]
    assert EXIT_OK == main(["run", str(root / job), *entry, *params, *options], spark=spark)


def rows(root: Path, output: str) -> set[tuple[str, str, int]]:
    found = read_with_duckdb(root / output / "*.parquet")
    assert len(found) == len(set(found))
    return {(hour, item, units) for hour, item, units in found}


@pytest.mark.parametrize("name", ["finished", "batch"])
def test_what_has_finished_stays_finished(spark, tmp_path, name):
    """The same request returns the same final checkpoint, and writes nothing."""
    for archive in made_by(name):
        root = opened(archive, tmp_path)
        final = root / "job/runs/first/final.json"
        before = final.read_bytes()
        mode = "batch" if name == "batch" else "streaming"

        run(spark, root, "--mode", mode, "--run-id", "first")

        assert (before, FIRST) == (final.read_bytes(), rows(root, "output"))


@pytest.mark.long
@pytest.mark.parametrize("archive", made_by("suspended"), ids=lambda path: path.parent.name)
def test_a_suspended_stream_goes_on_with_its_state(spark, tmp_path, archive):
    """A run in its directory, and one that begins with its savepoint: nothing is lost or repeated."""
    root = opened(archive, tmp_path)
    (root / "input/2.csv").write_text(MORE)
    kept = str(root / "job/savepoints/kept")
    streaming = ("--mode", "streaming", "--run-id", "second")

    run(spark, root, *streaming, "--from-savepoint", kept, job="other", output="apart")
    before = rows(root, "output")
    assert ALL == before | rows(root, "apart")
    run(spark, root, *streaming)

    assert ALL == rows(root, "output")
