"""``spark-stream savepoint``: take, list, verify, restore, fork, retain, dispose."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.base.clock import SystemClock, parse_duration
from airflow_provider.runtime.cli.command_parser import (
    JOB_DIR,
    SAVEPOINT,
    add_accept_lost_input,
    add_conf,
    add_job_dir,
    add_json,
)
from airflow_provider.runtime.cli.output import print_json
from airflow_provider.runtime.errors import EXIT_FATAL, EXIT_OK, ConfigError, refusing
from airflow_provider.runtime.jobdir.layout import directory_at
from airflow_provider.runtime.savepoints.catalog import (
    IncompleteSavepoint,
    Savepoint,
    find_savepoints,
    open_savepoint,
    verify_savepoint,
)
from airflow_provider.runtime.savepoints.checkpoint_source import checkpoint_source, job_source
from airflow_provider.runtime.savepoints.record import ORIGINS
from airflow_provider.runtime.savepoints.restores import Restores
from airflow_provider.runtime.savepoints.retention import Retention, dispose, retain
from airflow_provider.runtime.savepoints.take import ALIGNED_TIMEOUT_S, take_savepoint
from airflow_provider.runtime.storage.open import open_storage

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from airflow_provider.runtime.jobdir.journal import OperationRecord


_LOCATION: Final = "the job directory, or a folder of savepoints"


def add_commands(commands: Any, add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command; see :class:`~.api.commands.CommandModule`."""
    group = commands.add_parser("savepoint", help="take, restore and keep savepoints")
    actions = group.add_subparsers(required=True, metavar="ACTION")
    _add_take(actions, add)
    listed = add(actions, "list", _list, "list the savepoints of a job, or of a folder")
    add_job_dir(listed, "location", metavar="JOB_DIR|URL", help=_LOCATION)
    add_json(listed)
    verify = add(actions, "verify", _verify, "compare every file with its size and checksum")
    verify.add_argument("url", **SAVEPOINT)
    _add_restore(actions, add)
    fork = add(actions, "fork", _fork, "begin a second job from a savepoint, in a new directory")
    fork.add_argument("url", **SAVEPOINT)
    fork.add_argument("job_dir", **{**JOB_DIR, "help": "the new job directory"})
    _add_partitions(fork)
    kept = add(actions, "retain", _retain, "remove surplus and old savepoints")
    add_job_dir(kept, "location", metavar="JOB_DIR|URL", help=_LOCATION)
    kept.add_argument("--keep", type=int, metavar="N", help="keep the N newest of each series")
    kept.add_argument("--max-age", metavar="DURATION", help="the greatest age of a savepoint")
    text = "only savepoints of this origin; may be repeated; default: periodic"
    kept.add_argument("--origin", action="append", choices=ORIGINS, help=text)
    gone = add(actions, "dispose", _dispose, "remove one savepoint")
    gone.add_argument("url", **SAVEPOINT)


def _add_take(actions: Any, add: Callable[..., argparse.ArgumentParser]) -> None:
    take = add(actions, "take", _take, "take a savepoint, whether or not a driver is running")
    add_job_dir(take, nargs="?")
    take.add_argument("--checkpoint", metavar="URL", help="instead of a job: a Spark checkpoint")
    take.add_argument("--to", metavar="URL", help="its folder; default: JOB_DIR/savepoints/NAME")
    take.add_argument("--name", metavar="NAME", help="its name; default: the origin and the time")
    text = "what the savepoint is recorded to come from; default: %(default)s"
    take.add_argument("--origin", choices=ORIGINS, default="manual", help=text)
    text = "a label to find the savepoint by; may be repeated"
    take.add_argument("--label", action="append", default=[], metavar="K=V", help=text)
    take.add_argument(
        "--aligned-timeout",
        metavar="DURATION",
        help="the longest wait for a batch in flight; then the savepoint is unaligned; default: "
        f"{ALIGNED_TIMEOUT_S:.0f} seconds",
    )
    add_json(take, "print savepoint.json")


def _add_restore(actions: Any, add: Callable[..., argparse.ArgumentParser]) -> None:
    restore = add(actions, "restore", _restore, "restore a job from a savepoint")
    restore.add_argument("url", **SAVEPOINT)
    restore.add_argument("job_dir", metavar="JOB_DIR", help="a new directory, or the job's own")
    text = "claim: remove the savepoint when the restore is done; default: %(default)s"
    modes = ("no-claim", "claim")
    restore.add_argument("--claim-mode", choices=modes, default="no-claim", help=text)
    restore.add_argument(
        "--revert",
        action="store_true",
        help="first revert the rows that were written after the savepoint",
    )
    text = "with --revert: the job's function; default: the last run's"
    restore.add_argument("--entry", metavar="FILE.py:FUNC", help=text)
    _add_partitions(restore)
    add_accept_lost_input(restore)
    restore.add_argument(
        "--skip-in-flight",
        action="store_true",
        help="never run the batch that was in flight: DATA LOSS, its rows are never read",
    )


def _add_partitions(command: argparse.ArgumentParser) -> None:
    text = "repartition the state to N partitions; default: unchanged"
    command.add_argument("--state-partitions", type=int, metavar="N", help=text)
    add_conf(command)


def _take(arguments: argparse.Namespace) -> int:
    clock = SystemClock()
    if (arguments.job_dir is None) == (arguments.checkpoint is None):
        raise ConfigError("name either JOB_DIR or --checkpoint URL")
    if arguments.job_dir is not None:
        source = job_source(arguments.job_dir, clock)
    else:
        source = checkpoint_source(arguments.checkpoint)
    timeout = arguments.aligned_timeout
    name = f"{arguments.origin}-{clock.now():%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"
    savepoint = take_savepoint(
        source,
        _target(arguments, name),
        origin=arguments.origin,
        labels=dict(_pair(label, "--label") for label in arguments.label),
        aligned_timeout_s=ALIGNED_TIMEOUT_S
        if timeout is None
        else parse_duration(timeout, name="--aligned-timeout"),
        clock=clock,
    )
    if arguments.json:
        print_json({**savepoint.record.to_dict(), "url": savepoint.url})
    else:
        print(_line(savepoint))
    return EXIT_OK


def _target(arguments: argparse.Namespace, name: str) -> str:
    if arguments.to is not None:
        if arguments.name is not None:
            raise ConfigError("--to names the savepoint's own folder, so leave --name out")
        return str(arguments.to)
    if arguments.job_dir is None:
        raise ConfigError("--checkpoint needs --to URL, the folder that will be the savepoint")
    return f"{arguments.job_dir.rstrip('/')}/savepoints/{arguments.name or name}"


def _pair(text: str, option: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise ConfigError(f"{option} {text!r}: write {option} NAME=VALUE")
    return key, value


def _list(arguments: argparse.Namespace) -> int:
    with refusing(arguments.location, "read"):
        savepoints, leftovers = find_savepoints(open_storage(savepoints_of(arguments.location)))
    if arguments.json:
        found = [{**_without_files(s), "url": s.url} for s in savepoints]
        damaged = [
            {"url": each.location.url, "damage": each.damage} for each in leftovers if each.damage
        ]
        print_json({"version": 1, "savepoints": found, "damaged": damaged})
        return EXIT_OK
    for savepoint in savepoints:
        print(_line(savepoint))
    for leftover in leftovers:
        print(f"{leftover.location.url}: {_why_none(leftover)}")
    return EXIT_OK


def _why_none(leftover: IncompleteSavepoint) -> str:
    if leftover.damage is not None:
        return f"damaged: {leftover.damage}"
    held = leftover.claim
    if held is None:
        return "no savepoint"
    if held.ended:
        return "no savepoint (removed but for files that others beside it need)"
    return f"no savepoint ({held.purpose} since {held.began})"


def savepoints_of(location: str) -> str:
    """Return the folder of a job's savepoints, or *location* itself when it is no job directory."""
    if directory_at(location).job() is None:
        return location
    return f"{location.rstrip('/')}/savepoints"


def _verify(arguments: argparse.Namespace) -> int:
    savepoint = open_savepoint(arguments.url)
    wrong = verify_savepoint(savepoint)
    for line in wrong:
        print(line)
    if wrong:
        return EXIT_FATAL
    files = sum(len(query.files) for query in savepoint.record.queries.values())
    print(f"{savepoint.url}: {files} files, {savepoint.record.bytes:,} bytes, all right")
    return EXIT_OK


def _restore(arguments: argparse.Namespace) -> int:
    from airflow_provider.runtime.driver.restore_job import restore_job
    from airflow_provider.runtime.driver.rewind_job import describe_restored

    record = restore_job(
        arguments.job_dir,
        arguments.url,
        revert=arguments.revert,
        entry=arguments.entry,
        conf=dict(_pair(value, "--conf") for value in arguments.conf),
        claim_mode=arguments.claim_mode.replace("-", "_"),
        skip_in_flight=arguments.skip_in_flight,
        partitions=arguments.state_partitions,
        accepts_loss=arguments.accept_lost_input,
    )
    _print_restored(arguments.job_dir, record)
    for line in describe_restored(arguments.job_dir, record):
        print(f"{arguments.job_dir}: {line}")
    return EXIT_OK


def _fork(arguments: argparse.Namespace) -> int:
    from airflow_provider.runtime.driver.restore_job import restore_job

    directory = directory_at(arguments.job_dir)
    last = Restores(directory).last()
    was_cut_short = last is not None and last.is_open
    if directory.storage.exists("queries") and not was_cut_short:
        raise ConfigError(f"{arguments.job_dir}: there is a job already; name a new directory")
    record = restore_job(
        arguments.job_dir,
        arguments.url,
        conf=dict(_pair(value, "--conf") for value in arguments.conf),
        partitions=arguments.state_partitions,
    )
    _print_restored(arguments.job_dir, record)
    return EXIT_OK


def _print_restored(job_dir: str, operation: OperationRecord) -> None:
    plan = operation.plan
    spread = f", in {plan.partitions} partitions" if plan.partitions is not None else ""
    for name, query in plan.queries.items():
        where = f"after batch {query['batch']} as {query['query_id']}{spread}"
        print(f"{job_dir}: query {name} goes on {where}")
    for name, lost in plan.skipped.items():
        print(f"DATA LOSS: query {name}: batch {lost['batch']} is skipped, its rows are never read")


def _retain(arguments: argparse.Namespace) -> int:
    age = arguments.max_age
    retention = Retention(
        keep=arguments.keep,
        max_age_s=None if age is None else parse_duration(age, name="--max-age"),
        origins=tuple(arguments.origin or ("periodic",)),
    )
    gone = retain(savepoints_of(arguments.location), retention)
    print(f"disposed of {len(gone)}: {', '.join(gone) or '-'}")
    return EXIT_OK


def _dispose(arguments: argparse.Namespace) -> int:
    dispose(arguments.url)
    print(f"{arguments.url}: disposed of")
    return EXIT_OK


def _line(savepoint: Savepoint) -> str:
    record = savepoint.record
    batches = ", ".join(f"{n} after batch {q.batch}" for n, q in record.queries.items())
    kind = "aligned" if record.aligned else "unaligned"
    return f"{savepoint.url}: {record.origin}, {kind}, {batches}, {record.bytes:,} bytes"


def _without_files(savepoint: Savepoint) -> dict[str, Any]:
    plain = savepoint.record.to_dict()
    for query in plain["queries"].values():
        query["files"] = len(query["files"])
    return plain
