"""Damaged job directories: whatever lies there, every command and every decision says so in one line."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from airflow_provider.extensions.state_tools import state_commands
from airflow_provider.hooks.task_runs import Period, check_backfill, current_run, resolve_run
from airflow_provider.runtime.api.sinks import OpenFence
from airflow_provider.runtime.base import clock
from airflow_provider.runtime.cli import main
from airflow_provider.runtime.control.submit import reconcile
from airflow_provider.runtime.driver.load_job import check_before_cleanup
from airflow_provider.runtime.driver.restore_job import restore_job
from airflow_provider.runtime.driver.run import check_before_spark, run_job
from airflow_provider.runtime.errors import (
    EXIT_FATAL,
    EXIT_LEASE,
    EXIT_OK,
    EXIT_RETRY,
    EXIT_USAGE,
    SparkStreamError,
)
from airflow_provider.runtime.jobdir.end_of_input import draining_run, sources_end
from airflow_provider.runtime.jobdir.expiry import retire_old
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.lease import LeaseObserver
from airflow_provider.runtime.jobdir.preconditions import check_preconditions
from airflow_provider.runtime.jobdir.query_records import kept_topology
from airflow_provider.runtime.jobdir.requests import is_leaving, pending_requests
from airflow_provider.runtime.jobdir.run_records import FINISHED, FinalCheckpoint
from airflow_provider.runtime.jobdir.run_spec import RunSpec
from airflow_provider.runtime.jobdir.runs import resolve_run_id
from airflow_provider.runtime.observe.completeness import describe_running
from airflow_provider.runtime.observe.health import Limits
from airflow_provider.runtime.observe.observer import RunWatcher
from airflow_provider.runtime.observe.supervise import SupervisingWatcher, Supervision
from airflow_provider.runtime.savepoints.restores import check_no_open_restore
from airflow_provider.runtime.savepoints.rewind import Rewind, check_start, replayable_runs
from airflow_provider.runtime.spark import session
from airflow_provider.runtime.storage.local import LocalStorage
from tests.property.damaged_jobs import REFUSED, Damage, make, tree
from tests.property.page_views import VIEWS, PageViews
from tests.unit.support import EpochBench, FakeClock, HandStagedFiles

CASES = 500
QUICK_CASES = 100
QUICK_READS = 10
READERS_PER_CASE = 2
WATCHDOG_S = 20.0
_EXIT_CODES = {EXIT_OK, EXIT_USAGE, EXIT_RETRY, EXIT_FATAL, EXIT_LEASE}
RUNS = ("r0", "r1", "r2", "r3")
_HERE = Path("/dev/shm")  # noqa: S108 - in memory where there is one: thousands of cases are flushed


_FREE_TEXT = re.compile(r'("(?:host|reason|root_cause|message|entry)": "[^"\n]*)(")')


class Hang(BaseException):
    """Something waits for ever, or turns in a circle."""


class Call(NamedTuple):
    """Something that is done to a damaged directory.

    Attributes:
        do: it, given the folder in which the job lies.
        writes: the paths below that folder which it may write or remove.
    """

    do: Callable[[Path], object]
    writes: tuple[str, ...] = ()


def _command(*argv: str) -> Callable[[Path], object]:
    return lambda root: main.main([each.replace("ROOT", str(root)) for each in argv])


def _of(do: Callable[..., object], *args: Any, **values: Any) -> Callable[[Path], object]:
    """Return the call of a function that takes a job directory first."""
    return lambda root: do(JobDirectory(LocalStorage(f"{root}/job")), *args, **values)


def _watched(root: Path) -> None:
    for run_id in RUNS:
        watcher = RunWatcher(LocalStorage(f"{root}/job"), run_id, FakeClock(), f"driver-{run_id}")
        view, assessment = watcher.settle()
        reconcile(view, assessment, on_existing="adopt")
        watcher.has_ended()


def _verified(root: Path) -> None:
    for run_id in RUNS:
        watcher = RunWatcher(LocalStorage(f"{root}/job"), run_id, FakeClock())
        final = watcher.verified_final()
        if final is not None:
            _check_truth(final, run_id)


def _check_truth(final: FinalCheckpoint, run_id: str) -> None:
    """See that a verified final checkpoint is that of the run, and says FINISHED of no other.

    Fewer batches of a run that was suspended, or SUSPENDED for FINISHED, contradict nothing.
    """
    said = (final.job, final.run_id, final.outcome, final.queries["q"].batch_id)
    assert _TRUTH[run_id][:2] == said[:2]
    if final.outcome == FINISHED:
        assert _TRUTH[run_id] == said


def _supervised(root: Path) -> None:
    told = Supervision(Limits(60.0, {}, 0.0), FakeClock().now())
    watcher = SupervisingWatcher(LocalStorage(f"{root}/job"), "r3", FakeClock(), told)
    watcher.assess()
    describe_running(watcher._directory, watcher.poll())


def _recovered(root: Path) -> None:
    bench = EpochBench(root / "job", HandStagedFiles(root / "out"))
    try:
        bench.recovered("r4")
    finally:
        for lease in bench._leases:
            lease._stop.set()


def _retired(root: Path) -> None:
    retire_old(JobDirectory(LocalStorage(f"{root}/job")), 1_000)


def _rewound(root: Path) -> None:
    query = SimpleNamespace(name="q", sinks=[HandStagedFiles(root / "out")], native=None)
    directory = JobDirectory(LocalStorage(f"{root}/job"))
    Rewind(directory, "r3", [query], OpenFence(99), FakeClock()).rewind()


def _backfilled(root: Path) -> None:
    context = {
        "dag_run": SimpleNamespace(run_type="backfill", run_id="x"),
        "ti": SimpleNamespace(dag_id="d", task_id="t", run_id="x", map_index=-1, max_tries=0),
        "dag": SimpleNamespace(dag_id="d"),
    }
    check_backfill(f"{root}/job", context, run_id="r1", is_shared=False)


def _period(root: Path) -> None:
    directory = JobDirectory(LocalStorage(f"{root}/job"))
    period = Period(directory, "r1", "task", 1, FakeClock())
    period.run_id()
    period.ends(60.0)


def _ask(root: Path, **values: Any) -> RunSpec:
    return RunSpec(job_dir=f"{root}/job", entry=f"{__file__}:nothing", **values)


def _before_spark(root: Path) -> None:
    directory = JobDirectory(LocalStorage(f"{root}/job"))
    ask = _ask(root)
    run_id = resolve_run_id(directory, ask, FakeClock().now())
    check_before_spark(ask, directory, run_id, FakeClock())


def _asked_again(root: Path) -> None:
    """Ask for runs again that have ended: they are only looked at."""
    final = run_job(_ask(root, run_id="r3", params={"input": "/in"}), clock=FakeClock())
    _check_truth(final, "r3")


def _read(root: Path) -> None:
    directory = JobDirectory(LocalStorage(f"{root}/job"))
    for name in directory.query_names():
        kept_topology(directory, name)
        sources_end(directory, name)
    for driver_id in ("driver-r1", "driver-r3", "d1"):
        pending_requests(directory.storage, driver_id)
        is_leaving(directory.storage, driver_id)
    check_no_open_restore(directory)
    draining_run(directory)


def _page(view: str) -> Callable[[Path], object]:
    return lambda root: getattr(PageViews(root), view)()


READERS: dict[str, Call] = {
    **{f"page: {view}": Call(_page(view)) for view in VIEWS},
    "ls": Call(_command("ls", "ROOT")),
    "ls --json": Call(_command("ls", "ROOT/job", "--json")),
    "logs": Call(_command("logs", "ROOT/job")),
    "logs --run-id": Call(_command("logs", "ROOT/job", "--run-id", "r3")),
    "watch": Call(_command("watch", "ROOT/job", "--run-id", "r2")),
    "status": Call(_command("status", "ROOT/job")),
    "status --all --json": Call(_command("status", "ROOT/job", "--all", "--json")),
    "status --run-id": Call(_command("status", "ROOT/job", "--run-id", "r3")),
    "savepoint list": Call(_command("savepoint", "list", "ROOT/job")),
    "savepoint list --json": Call(_command("savepoint", "list", "ROOT/apart", "--json")),
    "savepoint verify": Call(_command("savepoint", "verify", "ROOT/job/savepoints/s1")),
    "checkpoint show": Call(_command("checkpoint", "show", "ROOT/job/queries/q/checkpoint")),
    "plan-drain in a job": Call(
        _command("checkpoint", "plan-drain", "ROOT/job/queries/q/checkpoint")
    ),
    "state show": Call(_command("state", "show", "ROOT/job")),
    "state show of a savepoint": Call(_command("state", "show", "ROOT/job/savepoints/s1")),
    "state growth": Call(_command("state", "growth", "ROOT/job")),
    "look and judge": Call(_watched),
    "verified final": Call(_verified),
    "supervise": Call(_supervised),
    "backfill": Call(_backfilled),
    "period": Call(_period),
    "before Spark": Call(_before_spark),
    "cleanup, before Spark": Call(
        lambda root: check_before_cleanup(
            _ask(root), JobDirectory(LocalStorage(f"{root}/job")), FakeClock()
        )
    ),
    "not drained": Call(_of(check_preconditions, "r9")),
    "not rewound": Call(_of(check_preconditions, "r0")),
    "may be replayed": Call(_of(check_start, "r2")),
    "replayable": Call(_of(replayable_runs, "r3", 2)),
    "current execution": Call(lambda root: current_run(f"{root}/job", "r0")),
    "lease": Call(lambda root: LeaseObserver(LocalStorage(f"{root}/job"), FakeClock()).settle()),
    "documents": Call(_read),
    "an ended run again": Call(_asked_again),
}
WRITERS: dict[str, Call] = {
    "savepoint fork": Call(
        _command("savepoint", "fork", "ROOT/job/savepoints/s1", "ROOT/new"),
        ("new", "job/savepoints/s1/"),
    ),
    "savepoint take": Call(
        _command("savepoint", "take", "ROOT/job", "--to", "ROOT/apart/new"), ("apart/new",)
    ),
    "savepoint retain": Call(
        _command("savepoint", "retain", "ROOT/job", "--keep", "1"), ("job/savepoints/",)
    ),
    "savepoint retain of a parent": Call(
        _command("savepoint", "retain", "ROOT", "--keep", "1"), ()
    ),
    "savepoint dispose": Call(
        _command("savepoint", "dispose", "ROOT/job/savepoints/s1"), ("job/savepoints/s1",)
    ),
    "stop": Call(_command("stop", "ROOT/job", "--timeout", "1 s"), ("job/requests",)),
    "cancel": Call(_command("cancel", "ROOT/job"), ("job/requests",)),
    "recover": Call(
        _recovered,
        ("job/queries", "job/leases", "job/heartbeats", "job/runs/", "out/.staging", "out/_"),
    ),
    "rewind": Call(
        _rewound,
        (
            "job/queries",
            "job/operations",
            "job/runs/r3",
            "job/savepoints",
            "out",
            "job/leases",
            "job/heartbeats",
        ),
    ),
    "restore": Call(
        lambda root: restore_job(f"{root}/job", f"{root}/job/savepoints/s1", clock=FakeClock()),
        ("job",),
    ),
    "restore elsewhere": Call(
        lambda root: restore_job(f"{root}/new", f"{root}/apart/s3", clock=FakeClock()),
        ("new", "apart/s3/"),
    ),
    "clear": Call(lambda root: resolve_run(f"{root}/job", "r1", 2), ("job/runs",)),
    "retire": Call(
        _retired,
        (
            "job/leases",
            "job/heartbeats",
            "job/runs",
            "job/requests",
            "job/replies",
            "job/retired.json",
        ),
    ),
}
CALLS = {**READERS, **WRITERS}
_TRUTH: dict[str, tuple[str, str, str, int]] = {
    "r1": ("job", "r1", "SUSPENDED", 1),
    "r2": ("job", "r2", "SUSPENDED", 3),
    "r3": ("job", "r3", FINISHED, 5),
}


class Fuzzed(NamedTuple):
    """A tree that is damaged again and again.

    Attributes:
        root: it.
        kept: a copy of it as it was made.
    """

    root: Path
    kept: Path


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[Fuzzed]:
    """Make the tree once; every case mends what it has damaged."""
    with tempfile.TemporaryDirectory(dir=_HERE if os.access(_HERE, os.W_OK) else None) as folder:
        root = make(Path(folder) / "tree")
        kept = Path(folder) / "kept"
        shutil.copytree(root, kept)
        yield Fuzzed(root, kept)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no time pass in waiting, and read the command line's grammar once."""
    now = FakeClock()

    def sleep(_: object, seconds: float) -> None:
        now.time += max(seconds, 0.001)
        if now.time > 100_000:
            raise Hang

    monkeypatch.setattr(clock.SystemClock, "sleep", sleep)
    monkeypatch.setattr(clock.SystemClock, "monotonic", lambda _: now.time)
    monkeypatch.setattr(FakeClock, "sleep", sleep)
    monkeypatch.setattr(FakeClock, "monotonic", lambda _: now.time)
    for name in ("read", "list", "read_small"):
        monkeypatch.setattr(LocalStorage, name, _refusing(getattr(LocalStorage, name)))
    monkeypatch.setattr(main, "_parser", functools.cache(main._parser))
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)
    monkeypatch.setattr(main.log, "exception", _unexpected)
    monkeypatch.setattr(session, "start_spark", _no_spark)
    monkeypatch.setattr(state_commands, "start_spark", _no_spark)
    monkeypatch.setattr(state_commands, "using_spark", _no_spark)


def _refusing(do: Callable[..., Any]) -> Callable[..., Any]:
    """Let the system refuse some paths, as it would whoever has not the right, or whose disk fails."""

    def act(storage: LocalStorage, path: str, **values: Any) -> Any:
        number = REFUSED.get(f"{storage.url}/{path}".rstrip("/"))
        if number is not None:
            raise OSError(number, os.strerror(number), f"{storage.url}/{path}")
        return do(storage, path, **values)

    return act


def _unexpected(*_: object) -> None:
    error = sys.exc_info()[1]
    assert error is not None
    raise AssertionError("unexpected") from error


def _no_spark(*_: object, **__: object) -> None:
    raise SparkStreamError("no Spark here")


@contextlib.contextmanager
def watchdog() -> Iterator[None]:
    """End what takes longer than any case may."""

    def bark(*_: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, bark)
    signal.setitimer(signal.ITIMER_REAL, WATCHDOG_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def complaint(call: Call, root: Path, capsys: pytest.CaptureFixture[str]) -> str | None:
    """Do it, and return what is wrong with what comes of it; None when nothing is."""
    try:
        with watchdog():
            code = call.do(root)
    except SparkStreamError as error:
        lines = str(error).splitlines()
        return f"{len(lines)} lines: {error}" if len(lines) != 1 else None
    except OSError as error:
        # Whoever calls these says it in one line, as the commands do.
        return None if error.errno is not None else _trace(error)
    except (Exception, Hang) as error:
        return _trace(error)
    shown, told = capsys.readouterr()
    if any(f"run {run}: FINISHED" in shown for run in RUNS if run != "r3"):
        return f"what has not finished is shown as FINISHED: {shown}"
    if not isinstance(code, int) or isinstance(code, bool):
        return None
    errors = [line for line in told.splitlines() if line.startswith("spark-stream: error: ")]
    is_told = len(errors) == (code != EXIT_OK) or code == EXIT_FATAL
    is_one_line = is_told and len(told.splitlines()) == len(errors)
    return None if is_one_line and code in _EXIT_CODES else f"exit code {code}: {told}"


def _trace(error: BaseException) -> str:
    last = traceback.extract_tb((error.__cause__ or error).__traceback__)[-6:]
    locations = " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(last))
    return f"{type(error.__cause__ or error).__name__}: {str(error.__cause__ or error)[:150]} ({locations})"


def strangely_written(
    allowed: list[str], root: Path, before: dict[str, Any], now: dict[str, Any]
) -> list[str]:
    """Return the paths that were written or removed, and are none of those that may be."""
    if before == now:
        return []
    changed = {path for path in {*before, *now} if before.get(path) != now.get(path)}
    may = [f"{root}/{path}" for path in allowed]
    return sorted(p for p in changed if not any(p.startswith(a) or f"{p}/" == a for a in may))


def fuzz(
    fuzzed: Fuzzed, seed: int, cases: int, capsys: pytest.CaptureFixture[str]
) -> dict[str, str]:
    """Damage the tree so often, do some things to it each time, and return what was wrong."""
    random = Random(seed)
    found: dict[str, str] = {}
    damage = Damage(fuzzed.root, fuzzed.kept, random)
    for case in range(cases):
        done = damage.inflict()
        before = tree(fuzzed.root)
        readers = random.sample(sorted(READERS), READERS_PER_CASE)
        for names in (readers, [random.choice(sorted(WRITERS))]):
            said = {name: complaint(CALLS[name], fuzzed.root, capsys) for name in names}
            now = tree(fuzzed.root)
            allowed = [path for name in names for path in CALLS[name].writes]
            if strange := strangely_written(allowed, fuzzed.root, before, now):
                said[" or ".join(names)] = f"wrote or removed {strange[:4]}"
            for name, problem in said.items():
                if problem is not None:
                    found.setdefault(f"{name}: {problem}", f"seed {seed}, case {case}: {done}")
            before = now
        damage.mend(before)
    return found


def told(found: dict[str, str]) -> str:
    return json.dumps(found, indent=1)


@pytest.mark.slow
def test_what_is_fuzzed_is_in_order(fuzzed, capsys):
    """Nothing is refused, or said to be wrong, of the directory as it is before it is damaged."""
    assert {} == {
        name: said
        for name, call in READERS.items()
        if (said := complaint(call, fuzzed.root, capsys))
    }
    watchers = {
        run: RunWatcher(LocalStorage(f"{fuzzed.root}/job"), run, FakeClock()) for run in _TRUTH
    }
    finals = {run: watcher.verified_final() for run, watcher in watchers.items()}
    assert _TRUTH == {
        run: (final.job, final.run_id, final.outcome, final.queries["q"].batch_id)
        for run, final in finals.items()
        if final is not None
    }


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1])
def test_damage_is_one_line(fuzzed, capsys, seed):
    """
    No traceback, no hang, no reader that writes, no remover that removes what is not its own, and
    nothing verified that is not so.
    """
    found = fuzz(fuzzed, seed, QUICK_CASES, capsys)

    assert {} == found, told(found)


@pytest.mark.slow
@pytest.mark.whole
@pytest.mark.parametrize("seed", range(1, 21))
def test_much_damage_is_one_line(fuzzed, capsys, seed):
    """The same for many more cases."""
    found = fuzz(fuzzed, seed, CASES, capsys)

    assert {} == found, told(found)


@pytest.mark.soak
def test_other_damage_is_one_line(fuzzed, capsys):
    """The same for cases of today."""
    seed = Random().randrange(10**9)
    print(f"seed {seed}")
    found = fuzz(fuzzed, seed, 100 * CASES, capsys)

    assert {} == found, told(found)


def read_all(
    fuzzed: Fuzzed, seed: int, cases: int, capsys: pytest.CaptureFixture[str]
) -> dict[str, str]:
    """Damage the tree so often, let every reader read it each time, and return what was wrong."""
    random = Random(seed)
    found: dict[str, str] = {}
    damage = Damage(fuzzed.root, fuzzed.kept, random)
    for case in range(cases):
        done = damage.inflict()
        before = tree(fuzzed.root)
        for name, call in READERS.items():
            said = complaint(call, fuzzed.root, capsys)
            if said is not None:
                found.setdefault(f"{name}: {said}", f"seed {seed}, case {case}: {done}")
        now = tree(fuzzed.root)
        if strange := strangely_written([], fuzzed.root, before, now):
            found.setdefault(f"a reader wrote {strange[:4]}", f"seed {seed}, case {case}: {done}")
        damage.mend(now)
    return found


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(100, 110))
def test_every_reader_takes_ten_thousand_damaged_directories(fuzzed, capsys, seed):
    """
    Every read command and every view of the page reads each of a thousand directories for a seed.
    """
    found = read_all(fuzzed, seed, 1000, capsys)

    assert {} == found, told(found)


@pytest.mark.long
def test_every_reader_takes_some_damaged_directories(fuzzed, capsys):
    """The same for a few."""
    found = read_all(fuzzed, 1, QUICK_READS, capsys)

    assert {} == found, told(found)


@pytest.mark.long
def test_a_text_with_half_of_a_character_is_read_like_any_other(fuzzed, capsys):
    """
    Every reader takes documents of which a text has a byte that is no Unicode, as a file's name may.
    """
    found: dict[str, str | None] = {}
    for file in sorted(fuzzed.root.rglob("*.json")):
        text = file.read_text()
        damaged = _FREE_TEXT.sub(r"\1\\udc80\2", text)
        if damaged == text:
            continue
        file.write_text(damaged)
        for name, call in READERS.items():
            if name.startswith("page: "):
                found[name] = found.get(name) or complaint(call, fuzzed.root, capsys)
        file.write_text(text)

    problems = {name: said for name, said in found.items() if said}
    assert found.keys() > problems.keys()
    assert {} == problems, told(problems)
