"""The active version: what a job's address means after an accepted upgrade."""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import airflow_provider
from airflow_provider.runtime.cli import main
from airflow_provider.runtime.errors import EXIT_OK, ConfigError
from airflow_provider.runtime.jobdir.upgrade_record import (
    UpgradeRecord,
    UpgradeStep,
    active_directory,
    put_upgrade,
    upgrade_id,
)
from airflow_provider.runtime.testing.job_directories import NOW, JobDirectoryBuilder, a_run

ROOT = Path(airflow_provider.__file__).parent
DOCS = ROOT.parent / "docs" / "change-a-job.md"
_TAKES_AN_ADDRESS = re.compile(r"\b(directory_at|known_job|open_job_directory|job_source)\(")
_FOLLOWS = ("active_directory", "add_job_dir", "active_version")


@dataclasses.dataclass
class Versions:
    """Two versions of a job, the second of which has taken over."""

    old: JobDirectoryBuilder
    new: JobDirectoryBuilder

    def put(self, step: UpgradeStep) -> None:
        record = UpgradeRecord(
            by="d1",
            id=upgrade_id(self.new.directory.url),
            to=self.new.directory.url,
            entry="jobs.py:new",
            old_run_id="r1",
            began=NOW,
            step=step,
        )
        put_upgrade(self.old.directory, record)


@pytest.fixture
def versions(tmp_path) -> Versions:
    made = Versions(JobDirectoryBuilder(tmp_path / "old"), JobDirectoryBuilder(tmp_path / "new"))
    for job, run_id in ((made.old, "r1"), (made.new, "r2")):
        job.begin()
        job.directory.run(run_id).put_record(a_run(run_id))
    return made


@pytest.mark.parametrize("step", UpgradeStep)
def test_an_address_means_the_version_in_force(versions, step):
    """The old one until an upgrade is accepted, and the new one from then on."""
    versions.put(step)

    expected = versions.new if step is UpgradeStep.ACCEPTED else versions.old
    assert expected.directory.url == active_directory(versions.old.directory.url)
    assert versions.new.directory.url == active_directory(versions.new.directory.url)


def test_a_run_is_looked_for_in_its_own_version(versions):
    """An old version's history stays readable by its runs."""
    versions.put(UpgradeStep.ACCEPTED)
    old = versions.old.directory.url

    found = {run: active_directory(old, run_id=run) for run in ("r1", "r2", "none")}

    new = versions.new.directory.url
    assert {"r1": old, "r2": new, "none": new} == found


def test_a_version_in_force_that_is_not_mounted_is_refused(versions):
    """Nothing is taken for it, and the old version does not count any more."""
    versions.put(UpgradeStep.ACCEPTED)
    (Path(versions.new.directory.url) / "identity.json").unlink()

    with pytest.raises(ConfigError, match="have led to .*new, and there is no job directory there"):
        active_directory(versions.old.directory.url)


def test_a_command_is_about_the_version_in_force(versions, capsys):
    """It says so, and ``--this-version`` means the directory itself."""
    versions.put(UpgradeStep.ACCEPTED)
    old, new = versions.old.directory.url, versions.new.directory.url

    assert EXIT_OK == main.main(["status", old])
    followed = capsys.readouterr()
    assert EXIT_OK == main.main(["status", old, "--this-version"])
    itself = capsys.readouterr()

    assert f"{old}: upgrades have led to {new}, and this command is about" in followed.err
    assert ("r2" in followed.out, "r1" in followed.out) == (True, False)
    assert ("r2" in itself.out, "r1" in itself.out, itself.err) == (False, True, "")


# --- who takes an address -----------------------------------------------------------------------

ONE_VERSION = {
    "extensions/comparisons/first_run.py": "opens what its caller has addressed",
    "extensions/maintenance/facts.py": "needs all versions: the epochs of each are in the table",
    "extensions/row_checks/view.py": "gets the active directory from the service",
    "hooks/task_runs.py": "the runs of one task, and the directory that it is about to use",
    "hooks/cluster.py": "submits a driver of one version",
    "hooks/driver_hook.py": "watches one run",
    "hooks/job_memory.py": "remembers each directory by itself",
    "hooks/spark_streaming.py": "submits a driver of one version",
    "hooks/stream_metrics.py": "the metrics of the run that a task watches",
    "operators/base.py": "the driver of one version; SparkStreamingOperator has follow_upgrades",
    "operators/lineage.py": "what a run reads and writes",
    "operators/worker_wait.py": "how long one run took",
    "operators/spark_bootstrap.py": "history for a job that has not begun",
    "plugins/actions.py": "gets the active directory from the service",
    "plugins/routes.py": "the same; a document is that of the task's own directory",
    "plugins/run_history.py": "the same",
    "plugins/run_views.py": "the same",
    "plugins/shared_reads.py": "the same",
    "triggers/job_poll.py": "watches one run",
    "runtime/cli/setup_commands.py": "completes what was typed",
    "runtime/cli/run_command.py": "the driver of one version",
    "runtime/cli/job_commands.py": "cleans up, or undoes a run of, one version",
    "runtime/cli/impact_command.py": "says what an undone run of one version would take away",
    "runtime/cli/list_command.py": "lists directories",
    "extensions/state_tools/diff.py": "what it measures is one directory's",
    "extensions/state_tools/open_state.py": "opens what its caller has addressed",
    "extensions/upgrades/upgrading.py": "the upgrade itself",
    "extensions/warm_drivers/driver.py": "the driver of one version",
}


def modules() -> Iterator[tuple[str, str]]:
    """Yield the modules of both sides that people or tasks give an address to."""
    for room in (
        "hooks",
        "operators",
        "plugins",
        "sensors",
        "triggers",
        "runtime/cli",
        "extensions",
    ):
        for path in sorted((ROOT / room).rglob("*.py")):
            yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def test_whatever_takes_an_address_follows_upgrades_or_says_why_not():
    """
    A new module that opens a job directory uses the one function, or is listed here with a reason.
    """
    takes = {name for name, text in modules() if _TAKES_AN_ADDRESS.search(text)}
    follows = {name for name, text in modules() if any(word in text for word in _FOLLOWS)}

    assert sorted(takes - follows - {*ONE_VERSION}) == []
    assert sorted({*ONE_VERSION} - takes) == []


NOT_FOLLOWING = frozenset(
    [
        *("check", "completion", "driver", "init", "ls", "maintain", "package", "run", "upgrade"),
        *(
            "checkpoint plan-drain",
            "checkpoint show",
            "warm-drivers start",
            "warm-drivers status",
            "warm-drivers stop",
        ),
        *(
            "cleanup",
            "impact",
            "replay",
            "rewind",
            "savepoint dispose",
            "savepoint fork",
            "savepoint restore",
        ),
        *("savepoint verify", "state bootstrap", "state diff", "state rewrite"),
    ]
)


def commands(parser: argparse.ArgumentParser, above: str = "") -> Iterator[tuple[str, set[str]]]:
    """Yield each command with its arguments."""
    groups = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not groups:
        yield above.strip(), {action.dest for action in parser._actions}
    for name, child in groups[0].choices.items() if groups else ():
        yield from commands(child, f"{above} {name}")


def test_the_page_lists_what_each_command_means():
    """
    Each command that takes an address has ``--this-version``, or is listed as one that does not
    follow; the documentation names both.
    """
    found = dict(commands(main._parser("spark-stream", "", ())))
    follows = {name for name, arguments in found.items() if "this_version" in arguments}
    text = DOCS.read_text(encoding="utf-8")

    assert sorted(set(found) - follows) == sorted(NOT_FOLLOWING)
    assert [] == [name for name in sorted(follows) if f"`{name}`" not in text]
