"""``spark-stream ls``: the jobs below some folders, each with the state of its newest run."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.base.clock import SystemClock, utc_text
from airflow_provider.runtime.cli.command_parser import add_json
from airflow_provider.runtime.cli.output import print_json, text_table
from airflow_provider.runtime.errors import EXIT_OK, SparkStreamError, UnknownJobError
from airflow_provider.runtime.jobdir.identity import check_format
from airflow_provider.runtime.jobdir.layout import JobDirectory, directory_at
from airflow_provider.runtime.jobdir.runs import newest_run
from airflow_provider.runtime.observe.observer import RunWatcher
from airflow_provider.runtime.observe.state import damaged, run_condition
from airflow_provider.runtime.storage.copy_files import for_each
from airflow_provider.runtime.storage.file_tree import folders_in
from airflow_provider.runtime.storage.open import open_storage

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator


_DEEP: Final = 3  # folders of teams, projects and environments; a job directory is never entered
_AT_ONCE: Final = 16
_ERROR_CHARACTERS: Final = 60  # of a line that has a table's other columns as well


@dataclasses.dataclass(frozen=True)
class ListedJob:
    """One line of the list.

    Attributes:
        state: as ``status`` says it; ``damaged`` or ``absent`` (no run) otherwise.
        since: see :class:`~.state.RunCondition`.
        rows_read: by that run; None if unknown.
        error: why that run is unhealthy; None when it is healthy.
    """

    job_dir: str
    job: str | None
    state: str
    since: str | None = None
    run_id: str | None = None
    rows_read: int | None = None
    error: str | None = None
    next_step: str | None = None


def add_commands(commands: Any, add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command; see :class:`~.api.commands.CommandModule`."""
    listed = add(commands, "ls", _ls, "list the jobs below folders, with their states")
    text = "folder of job directories, or one of them"
    listed.add_argument("roots", nargs="+", metavar="ROOT", help=text)
    add_json(listed)


def _ls(arguments: argparse.Namespace) -> int:
    found = {root: list(_job_directories(root, _DEEP)) for root in arguments.roots}
    for root, below in found.items():
        if not below:
            raise UnknownJobError(
                f"{root}: no job directory there, nor up to {_DEEP} folders below it"
            )
    jobs = list_jobs(list(dict.fromkeys(each for below in found.values() for each in below)))
    if arguments.json:
        print_json({"version": 1, "jobs": [dataclasses.asdict(job) for job in jobs]})
        return EXIT_OK
    columns = ("job directory", "state", "since", "run", "rows read", "error")
    for line in text_table(columns, [_cells(job) for job in jobs]):
        print(line)
    return EXIT_OK


def list_jobs(job_dirs: list[str]) -> list[ListedJob]:
    """Return a line for each job directory, in their order; takes one lease timeout at most."""
    lines: dict[str, ListedJob] = {}
    for_each(job_dirs, lambda each, _: lines.update({each: _look(each)}), at_once=_AT_ONCE)
    return [lines[each] for each in job_dirs]


def _job_directories(root: str, deep: int) -> Iterator[str]:
    storage = open_storage(root)
    if storage.exists("job.json") or JobDirectory(storage).submitted_run() is not None:
        yield root
    elif deep:
        base = root.rstrip("/")
        for name in folders_in(root):
            yield from _job_directories(f"{base}/{name}", deep - 1)


def _look(job_dir: str) -> ListedJob:
    name = None
    try:
        directory = directory_at(job_dir)
        check_format(directory.storage)
        name = directory.name()
        newest = newest_run(directory)
        run_id = newest.run_id if newest is not None else directory.submitted_run()
        if run_id is None:
            return ListedJob(job_dir, name, "absent")
        snapshot, assessment = RunWatcher(directory.storage, run_id, SystemClock()).settle()
        found = run_condition(snapshot, assessment)
    except SparkStreamError as error:
        found = damaged(str(error))
        return ListedJob(job_dir, name, found.state, error=found.error, next_step=found.next_step)
    return ListedJob(
        job_dir,
        name,
        found.state,
        found.since,
        run_id,
        snapshot.counted.rows_read if snapshot.counted is not None else None,
        found.error,
        found.next_step,
    )


def _cells(job: ListedJob) -> tuple[str, ...]:
    rows = f"{job.rows_read:,}" if job.rows_read is not None else "-"
    error = (job.error or "").replace(f"{job.job_dir}/", "")  # the line begins with it
    if len(error) > _ERROR_CHARACTERS:
        error = f"{error[: _ERROR_CHARACTERS - 1]}…"
    return job.job_dir, job.state, utc_text(job.since), job.run_id or "-", rows, error
