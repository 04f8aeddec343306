"""Run after run in one JVM: what one leaves in it, the next does not find."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import psutil
import pytest
from planting_jobs import GLOBAL_VIEWS, HELD, TRACES
from warm_pools import Pool, Ready, Started, await_until

from airflow_provider.runtime.errors import EXIT_OK

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

JOBS = Path(__file__).with_name("planting_jobs.py")
STATIC = {GLOBAL_VIEWS: "planted_views"}


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    started = Pool(tmp_path_factory.mktemp("pool"))
    yield started
    started.end()


class Runs:
    """Runs of the jobs that leave traces, each in folders of its own."""

    def __init__(self, pool: Pool, root: Path) -> None:
        self._pool, self._root, self._number = pool, root, 0
        (root / "input").mkdir()
        (root / "input" / "rows.csv").write_text("a\nb\n")

    def start(self, job: str, *more: str, conf: Any = None, **how: Any) -> tuple[Started, Path]:
        self._number += 1
        here = self._root / str(self._number)
        here.mkdir()
        params = {
            "input": self._root / "input",
            "output": here / "out",
            "report": here / "report",
            **how.pop("params", {}),
        }
        command = self._pool.arguments(f"{JOBS}:{job}", here / "job", params, *more, conf=conf)
        return self._pool.start(command, conf=conf, **how), here / "report"

    def report(self, job: str, **how: Any) -> Any:
        """Return what a run has found, at its end."""
        started, found = self.start(job, *how.pop("more", ()), **how)
        assert EXIT_OK == started.wait(), started.log
        return json.loads(found.read_text())


@pytest.fixture
def runs(pool: Pool, tmp_path: Path) -> Runs:
    return Runs(pool, tmp_path)


def next_driver(pool: Pool, before: Ready) -> Ready:
    """Return the driver that takes the next run: the same with a process of its own, or another."""
    await_until(lambda: pool.ready().child != before.child)
    return pool.ready()


@pytest.mark.long
def test_what_a_run_has_changed_in_its_jvm_is_not_found_by_the_next(pool, runs):
    """
    Properties, variables, settings, listeners, views, cached data, functions, time zone, locale,
    logs, temporary files, Hadoop's file systems and user, static fields of Java: the same JVM
    shows none of them again.
    """
    before = pool.ready()
    fresh = runs.report("look")

    planted = runs.report("plant")
    found = runs.report("look")

    assert [] == [name for name in TRACES if planted[name] == fresh[name]]
    assert fresh == found
    assert before.jvm == next_driver(pool, before).jvm, pool.log


@pytest.mark.long
@pytest.mark.parametrize(
    "what",
    [each if each == "thread" else pytest.param(each, marks=pytest.mark.whole) for each in HELD],
)
def test_what_cannot_be_put_back_ends_the_jvm_with_its_run(pool, runs, tmp_path, what):
    """What a run has left at work writes nothing while the next run has a JVM, or afterwards."""
    before = pool.ready()
    jvm = psutil.Process(before.jvm)
    late = tmp_path / "late"

    runs.report("hold", params={"what": what, "target": late})

    after = next_driver(pool, before)
    assert (before.jvm == after.jvm) == (what == "nothing"), pool.log
    assert jvm.is_running() == (what == "nothing")
    runs.report("look")
    assert not late.exists()


@pytest.mark.long
def test_relative_paths_begin_in_the_folder_of_the_run(pool, runs, tmp_path):
    """
    A table without a path, relative files, Derby's home and Spark's local folder: two runs of one
    JVM in two folders do not meet, and the folder of the pool gets nothing.
    """
    before = pool.ready()
    its = set(pool.root.iterdir())
    found = {}
    for name in ("one", "the other"):
        folder = tmp_path / name
        folder.mkdir()
        conf = {"spark.local.dir": "local"}
        found[folder] = runs.report("save", folder=folder, conf=conf, more=["--mode=streaming"])

    for folder, report in found.items():
        assert f"file:{folder}/spark-warehouse/planted_table" == report["table"]
        assert ["planted_table"] == report["tables"]
        assert unquote(report["read"]).startswith(f"file://{folder}/written/part-")
        assert str(folder) == report["derby"]
        assert 1 == len(report["local"])
    assert [] == [path.name for path in set(pool.root.iterdir()) - its if path.is_dir()]
    assert before.jvm == next_driver(pool, before).jvm, pool.log


@pytest.mark.whole
def test_a_static_setting_ends_the_jvm_with_its_run(pool, runs):
    """A setting that only the first session of a JVM can have is not handed on."""
    before = pool.ready()
    fresh = runs.report("look")

    runs.report("look", conf=STATIC)

    assert before.jvm != next_driver(pool, before).jvm
    assert f"its run had the static setting {GLOBAL_VIEWS}" in pool.log
    assert fresh == runs.report("look")


# --- secrets ------------------------------------------------------------------------------------

SALT = "salt-4711-of-one-run"


def remembers(pid: int, text: str) -> bool:
    """Whether a process has a text in the memory that it can write to."""
    wanted = text.encode()
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) rw", line):
                first, last = (int(each, 16) for each in found.groups())
                memory.seek(first)
                if wanted in (memory.read(last - first) or b""):
                    return True
    return False


@pytest.mark.long
def test_a_secret_is_known_to_the_process_of_its_run_alone(pool, runs, tmp_path):
    """
    The parent, from which the next run's process comes, and the pool never have it; the next run
    finds it in no variable, property or setting, and no log of the pool has it.
    """
    driver, gate = pool.ready(), tmp_path / "gate"
    started, arrived = runs.start(
        "keep_secret",
        "--secret-param=salt=SALT",
        environment={"SALT": SALT},
        params={"gate": gate},
    )
    await_until(arrived.exists, why=started.log)

    assert remembers(driver.child, SALT)
    strangers = (driver.parent, pool.process.pid)
    assert [] == [pid for pid in strangers if remembers(pid, SALT)]
    gate.touch()
    assert EXIT_OK == started.wait(), started.log

    after = next_driver(pool, driver)
    assert driver.jvm == after.jvm
    assert [] == [pid for pid in (*strangers, after.child) if remembers(pid, SALT)]
    assert SALT not in json.dumps(runs.report("tell"))
    assert SALT not in pool.logs() + started.log
    environments = [Path(f"/proc/{pid}/environ").read_bytes() for pid in (*strangers, after.jvm)]
    assert [] == [each for each in environments if SALT.encode() in each]
