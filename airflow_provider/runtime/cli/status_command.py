"""``spark-stream status``: the state of a job's runs."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.base.clock import SystemClock, utc_text
from airflow_provider.runtime.base.names import check_name, is_name
from airflow_provider.runtime.base.typed_json import encode
from airflow_provider.runtime.cli.command_parser import add_job_dir, add_json
from airflow_provider.runtime.cli.output import live_block, print_json
from airflow_provider.runtime.cli.progress_lines import (
    Rates,
    batch_lines,
    last_batches,
    plain_line,
    progress_lines,
)
from airflow_provider.runtime.errors import (
    EXIT_FATAL,
    EXIT_OK,
    CheckpointError,
    ConfigError,
    UnknownJobError,
)
from airflow_provider.runtime.jobdir.dropped_rows import describe_dropped_rows, describe_uncounted
from airflow_provider.runtime.jobdir.layout import JobDirectory, known_or_submitted_job
from airflow_provider.runtime.jobdir.lease import LeaseObserver, Liveness
from airflow_provider.runtime.jobdir.query_reports import quarantine_totals
from airflow_provider.runtime.jobdir.run_commit import contradiction
from airflow_provider.runtime.jobdir.runs import RECENT, recent_runs
from airflow_provider.runtime.jobdir.upgrade_record import (
    newest_upgrade,
    summary_of,
    upgrade_over,
    worker_of,
)
from airflow_provider.runtime.observe.observer import RunWatcher
from airflow_provider.runtime.observe.state import (
    damaged,
    describe_restarts,
    launch_line,
    run_condition,
)
from airflow_provider.runtime.savepoints.restores import what_is_unfinished
from airflow_provider.runtime.storage.documents import Document

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.cli.output import LiveBlock
    from airflow_provider.runtime.cli.progress_lines import Batches, QueryPace
    from airflow_provider.runtime.jobdir.query_reports import QueryProgress
    from airflow_provider.runtime.jobdir.run_records import FinalCheckpoint, ProgressRecord


_WATCH_S: Final = 2.0
_LEAST_WATCH_S: Final = 0.1


def add_commands(commands: Any, add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command; see :class:`~.api.commands.CommandModule`."""
    _add_watch(commands, add)
    status = add(commands, "status", _status, "show the state of a job's runs")
    add_job_dir(status, only_reads=True)
    which = status.add_mutually_exclusive_group()
    which.add_argument("--run-id", metavar="ID", help="only this run")
    which.add_argument(
        "--last",
        metavar="N",
        type=int,
        default=RECENT,
        help="the N newest runs of the last hundred drivers (default: %(default)s)",
    )
    which.add_argument("--all", action="store_true", help="every run; reads each of them")
    how = status.add_mutually_exclusive_group()
    add_json(how)
    how.add_argument(
        "--watch",
        metavar="SECONDS",
        nargs="?",
        const=_WATCH_S,
        type=float,
        help="refresh the newest run while a driver works on it (every %(const)s s)",
    )
    how.add_argument(
        "--prometheus",
        action="store_true",
        help="print the metrics of the newest run as Prometheus' text",
    )


def _add_watch(commands: Any, add: Callable[..., argparse.ArgumentParser]) -> None:
    text = "follow a run until it ends, or has no driver"
    watch = add(commands, "watch", _watch_command, text)
    add_job_dir(watch, only_reads=True)
    watch.add_argument("--run-id", metavar="ID", help="default: the newest run")
    text = "seconds between two polls (default: %(default)s)"
    watch.add_argument("--every", metavar="SECONDS", type=float, default=_WATCH_S, help=text)


def _watch_command(arguments: argparse.Namespace) -> int:
    arguments.last, arguments.all = 1, False
    directory, found = _looked_for(arguments)
    for run_id in (shown := found[-1:]):
        _watch(directory, run_id, arguments.every)
    document = _status_document(directory, shown)
    _print_status(document)
    return EXIT_FATAL if any(run["state"] == "damaged" for run in document["runs"]) else EXIT_OK


def _status(arguments: argparse.Namespace) -> int:
    directory, shown = _looked_for(arguments)
    if arguments.prometheus:
        from airflow_provider.runtime.cli.prometheus_text import run_metrics

        print("".join(run_metrics(directory, run_id) for run_id in shown[-1:]), end="")
        return EXIT_OK
    if arguments.watch is not None and shown:
        _watch(directory, shown[-1], arguments.watch)
        shown = shown[-1:]
    document = _status_document(directory, shown)
    _add_batches(directory, document, also_ended=arguments.json)
    if arguments.json:
        print_json(_as_json(document))
    else:
        _print_status(document)
    return EXIT_FATAL if any(run["state"] == "damaged" for run in document["runs"]) else EXIT_OK


def _as_json(document: dict[str, Any]) -> dict[str, Any]:
    runs = [
        {name: each.to_dict() if isinstance(each, Document) else each for name, each in run.items()}
        for run in document["runs"]
    ]
    encoded: dict[str, Any] = encode({**document, "runs": runs})
    return encoded


def _looked_for(arguments: argparse.Namespace) -> tuple[JobDirectory, list[str]]:
    directory, submitted = known_or_submitted_job(arguments.job_dir)
    if submitted is not None and arguments.run_id in {None, submitted}:
        return directory, [submitted]
    return directory, _shown_runs(directory, arguments)


def _watch(directory: JobDirectory, run_id: str, every_s: float) -> None:
    if not every_s >= _LEAST_WATCH_S:
        raise ConfigError(f"{every_s:g}: seconds between two looks, {_LEAST_WATCH_S} or more")
    follow(directory, run_id, every_s=every_s, clock=SystemClock())


def _shown_runs(directory: JobDirectory, arguments: argparse.Namespace) -> list[str]:
    run_id = arguments.run_id
    if arguments.last < 1:
        raise ConfigError(f"--last {arguments.last}: a number of runs, 1 or more")
    if run_id is not None:
        return [_checked(directory, run_id)]
    try:
        newest = recent_runs(directory, arguments.last) if not arguments.all else []
        return directory.run_ids() if arguments.all else [r.run_id for r in reversed(newest)]
    except CheckpointError:  # one of them is damaged: those that are not are shown as well
        return _readable_and_damaged(directory, None if arguments.all else arguments.last)


def _checked(directory: JobDirectory, run_id: str) -> str:
    run = directory.run(check_name(run_id, what="run id"))
    if run.record() is None and not run.submissions():
        newest = ", ".join(record.run_id for record in recent_runs(directory)) or "none"
        raise UnknownJobError(f"{directory.url}: no run {run_id!r}; its newest runs: {newest}")
    return run_id


def _readable_and_damaged(directory: JobDirectory, last: int | None) -> list[str]:
    damaged, readable = [], []
    for run_id in filter(is_name, directory.storage.list("runs")):
        try:
            record = directory.run(run_id).record()
        except CheckpointError:
            damaged.append(run_id)
        else:
            readable += [(record.token, run_id)] if record is not None else []
    newest = sorted(readable)[-last:] if last is not None else sorted(readable)
    return [*damaged, *(run_id for _, run_id in newest)]


def _status_document(directory: JobDirectory, runs: Sequence[str]) -> dict[str, Any]:
    observer = LeaseObserver(directory.storage, SystemClock())
    lease, liveness = observer.settle()
    return {
        "version": 1,
        "job": directory.name(),
        "job_dir": directory.url,
        "lease": {"token": lease.token, "run_id": lease.run_id, "holder": liveness.value}
        if lease
        else None,
        "unfinished": None if liveness is Liveness.LIVE else what_is_unfinished(directory),
        "upgrade": _upgrade(directory),
        "runs": [_run_document(directory, run_id, observer) for run_id in runs],
    }


def _upgrade(directory: JobDirectory) -> dict[str, Any] | None:
    try:
        newest = newest_upgrade(directory)
        # Without one, this version may be the new one of another's upgrade, on trial.
        found = (directory, newest) if newest is not None else upgrade_over(directory)
        if found is None:
            return None
        worker = worker_of(*found, waits=True) if found[1].is_open else None
    except (CheckpointError, ConfigError, OSError) as error:  # of either version; it hides no run
        return {"step": "damaged", "to": None, "summary": str(error), "worker": None}
    old, upgrade = found
    where = f"{old.url}: " if old is not directory else ""
    return {
        "step": upgrade.step.value,
        "to": upgrade.to,
        "summary": f"{where}{summary_of(upgrade, worker)}",
        "worker": dataclasses.asdict(worker) if worker is not None else None,
    }


def _add_batches(directory: JobDirectory, document: dict[str, Any], *, also_ended: bool) -> None:
    for newest in document["runs"][-1:]:
        described = newest["final"] or newest["progress"]
        if described is not None and (also_ended or newest["final"] is None):
            newest["batches"] = last_batches(directory.run(newest["run_id"]), described.queries)


def _run_document(directory: JobDirectory, run_id: str, observer: LeaseObserver) -> dict[str, Any]:
    try:
        directory.run(run_id).record()
        return _readable_run(directory, run_id, observer)
    except CheckpointError as error:
        nothing = dict.fromkeys(("failure", "restarts", "progress", "final", "batches", "launch"))
        found = dataclasses.asdict(damaged(str(error)))
        return {"run_id": run_id, **found, "problem": str(error), "attempts": 0, **nothing}


def _readable_run(directory: JobDirectory, run_id: str, observer: LeaseObserver) -> dict[str, Any]:
    watcher = RunWatcher(directory.storage, run_id, SystemClock(), observer=observer)
    snapshot, assessment = watcher.settle()
    attempt, final = snapshot.attempt, snapshot.final
    is_current = final is not None and snapshot.rewound is None
    problem = contradiction(directory, final) if final is not None and is_current else None
    condition = run_condition(snapshot, assessment, problem=problem)
    return {
        "run_id": run_id,
        **dataclasses.asdict(condition),
        "problem": problem,
        "attempts": attempt.attempt if attempt else 0,
        "failure": attempt.failure if attempt and not snapshot.final else None,
        "restarts": attempt.restarts if attempt and not snapshot.final else None,
        "progress": snapshot.progress,
        "final": snapshot.final,
        "batches": None,
        "launch": launch_line(snapshot),
    }


def _print_status(document: dict[str, Any]) -> None:
    lease = document["lease"]
    holder = "no lease"
    if lease:
        holder = f"lease {lease['token']} ({lease['holder']}, run {lease['run_id']})"
    name = f"job {document['job']}" if document["job"] else "a job that has not begun"
    print(f"{name} in {document['job_dir']}: {holder}")
    if document["unfinished"] is not None:
        print(f"  unfinished: {document['unfinished']}")
    if document["upgrade"] is not None:
        print(f"  upgrade: {document['upgrade']['summary']}")
    for run in document["runs"]:
        counted: FinalCheckpoint | ProgressRecord | None = run["final"] or run["progress"]
        rows = counted.rows_read if counted is not None else None
        at_least = "at least " if counted is not None and counted.rows_minimum else ""
        totals = quarantine_totals(counted.queries if counted is not None else {})
        since = f" since {utc_text(run['since'])}" if run["since"] is not None else ""
        print(
            f"  run {run['run_id']}: {run['state']}{since}, {run['attempts']} attempt(s)"
            + (f", {at_least}{rows:,} rows read" if rows is not None else "")
            + (f", {totals}" if totals.has_any else "")
        )
        for line in _run_lines(run):
            print(f"    {line}")


def _run_lines(run: dict[str, Any]) -> Iterator[str]:
    counted: FinalCheckpoint | ProgressRecord | None = run["final"] or run["progress"]
    if counted is not None:
        yield from describe_dropped_rows(counted)
        yield from describe_uncounted(counted)
        yield from _mark_lines(counted)
    if not run["final"]:
        yield from _open_lines(run)
    if run["restarts"] and run["failure"]:  # else it is the last error
        yield describe_restarts(run["restarts"])
    if run["launch"]:
        yield run["launch"]
    if run["error"]:
        yield f"last error: {run['error']}"
    yield f"next: {run['next_step']}"


# A source of a killed driver does not run; its finish state tells how much is left to read.
_FINISH_STATES: Final = {"running": "unfinished", "partly_finished": "partly finished"}


def _mark_lines(counted: FinalCheckpoint | ProgressRecord) -> Iterator[str]:
    for name, query in counted.queries.items():
        parts = [
            f"{what} {part.name} {_FINISH_STATES.get(part.finish_state, part.finish_state)}"
            for what, found in (("source", query.sources), ("operator", query.operators))
            for part in found
        ]
        if parts:
            yield f"{name}: {', '.join(parts)}"


def _open_lines(run: dict[str, Any]) -> Iterator[str]:
    progress: ProgressRecord | None = run["progress"]
    yield from batch_lines(run["batches"] or {}, progress)
    yield from _batch_sizing_lines(progress.queries if progress is not None else {})


def _batch_sizing_lines(queries: Mapping[str, QueryProgress]) -> Iterator[str]:
    for name, query in queries.items():
        if (sizing := query.batch_sizing) is None:
            continue
        limits = [f"{each.limit:,} {each.unit} of {n}" for n, each in sizing.sources.items()]
        took = sizing.last_batch_s
        took_text = "" if took is None else f"the last batch took {took:.1f} s, "
        yield (
            f"{name}: {took_text}target {sizing.target_s:g} s, {sizing.decision}: {sizing.reason}"
            + (f"; a batch reads {', '.join(limits)}" if limits else "")
        )


def follow(directory: JobDirectory, run_id: str, *, every_s: float, clock: Clock) -> None:
    """Show a run repeatedly until it has ended, has no driver, or the caller is interrupted."""
    watcher, run = RunWatcher(directory.storage, run_id, clock), directory.run(run_id)
    before: ProgressRecord | None = None
    rates = Rates(clock)
    with live_block(sys.stdout) as block:
        try:
            while watcher.decide(snapshot := watcher.poll()).run_state.is_at_work:
                if snapshot.progress is not None and snapshot.progress != before:
                    paces = rates.update(snapshot.progress)
                    _show(
                        block,
                        snapshot.progress,
                        last_batches(run, snapshot.progress.queries),
                        paces,
                    )
                before = snapshot.progress
                clock.sleep(every_s)
        except KeyboardInterrupt:  # so a person ends it
            return


def _show(
    block: LiveBlock | None,
    progress: ProgressRecord,
    batches: Batches,
    paces: Mapping[str, QueryPace],
) -> None:
    if block is not None:
        block.update(progress_lines(progress, paces, columns=block.columns(), batches=batches))
        return
    print(plain_line(progress))
    for line in batch_lines(batches, progress):
        print(f"  {line}", flush=True)
