"""Take out one guard after the other, and see that a test notices.

A guard is what keeps a promise under failure: a flush, a look at the fence, a refusal, a
put-if-absent, the order of two durable steps. Each is found in the syntax tree of the modules that
hold the protocol; of the functions in :data:`LINES`, the heart of it, every statement is one. A
guard is taken out in a copy of the tree, and the fast tests that run its lines are run until one
fails: the module's own and those that have killed others of its mutants, some of the rest, all of
it, then those of :data:`SLOWER`, then the type checker. A mutant that all of them let live is
either listed in :data:`SURVIVORS`, with the reason, or an error.

    python scripts/mutants.py                      # all; an hour or two on one core
    python scripts/mutants.py --learned FILE       # the first run's .coverage, of the same tree
    python scripts/mutants.py --only lease.py      # those of files whose path contains this
    python scripts/mutants.py --kinds check,put    # those kinds
    python scripts/mutants.py --list               # what would be done
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeGuard

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_Piece = ast.stmt | ast.expr  # a node with a place in the text

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGE: Final = "airflow_provider"
PROTOCOL: Final = (
    "jobdir/run_commit.py",
    "jobdir/end_of_input.py",
    "driver/records.py",
    "jobdir/lease.py",
    "jobdir/lease_records.py",
    "jobdir/checkpoint_locations.py",
    "jobdir/journal.py",
    "base/host.py",
    "jobdir/requests.py",
    "jobdir/expiry.py",
    "savepoints/rewind.py",
    "jobdir/runs.py",
    "savepoints/record.py",
    "savepoints/retention.py",
    "checkpoint/logged_batch.py",
    "savepoints/restores.py",
    "savepoints/history.py",
    "savepoints/restore_plan.py",
    "savepoints/relocation.py",
    "savepoints/restore.py",
    "savepoints/take.py",
    "savepoints/catalog.py",
    "sinks/committer.py",
    "sinks/files.py",
    "jobdir/epochs.py",
    "sinks/recovery.py",
    "sinks/staging.py",
    "sinks/revert.py",
    "storage/copy_files.py",
    "storage/documents.py",
    "storage/local.py",
    "storage/objects.py",
    "storage/file_tree.py",
    "control/submit.py",
    "base/typed_json.py",
    "jobdir/upgrade_record.py",
    "extensions/upgrades/upgrade_steps.py",
    "checkpoint/logs.py",
    "control/launcher.py",
    "jobdir/identity.py",
    "extensions/bucket_files/sink.py",
    "api/sinks.py",
    "storage/local_folder.py",
)
LINES: Final[Mapping[str, str]] = {
    "jobdir/lease.py": "current is_lost _check _is_known _take_next release",
    "jobdir/lease_records.py": "read_lease read_heartbeat _check_token is_there has_ended",
    "base/host.py": "ProcessIdentity _has_ended _is_unused",
    "extensions/delta/sink.py": "recover commit abort revert _remove _published _has "
    "_check_all_after",
    "sinks/committer.py": "EpochCommitter",
    "sinks/files.py": "recover commit abort revert _publish _moves _staging final_name "
    "is_final_name is_name_of put_mark marked last_marked",
    "extensions/iceberg/sink.py": "recover commit abort revert _remove _has",
    "jobdir/epoch_documents.py": "HistoryRecord",
    "jobdir/epochs.py": "EpochRecords",
    "sinks/recovery.py": "plan_recovery check_complete unpublished",
    "extensions/postgres/bookkeeping.py": "forget check_kept staged_for raise_fence",
    "extensions/postgres/publish.py": "publish _look_or_make _with_undo revert _remove _restore",
    "extensions/postgres/sink.py": "recover commit abort revert",
    "sinks/staging.py": "stage_files",
    "sinks/revert.py": "Revert",
    "storage/local.py": "put put_if_absent _refused _written make_folder _is_at",
    "storage/file_tree.py": "flush _folders_above",
    "control/launcher.py": "SlotLimits machine_limits slot_folder DriverSlot SlotQueue _locked",
    "jobdir/upgrade_record.py": "newest_upgrade last_step put_upgrade check_may_begin",
    "extensions/upgrades/upgrade_steps.py": "decide accept _go_on _stop _begin_or_take_over",
}
"""Functions, or the methods of classes, of which every statement is a guard."""
SLOWER: Final[Mapping[str, Sequence[str]]] = {
    "extensions/upgrades/upgrade_steps.py": ("tests/crash/test_upgrade_steps.py",),
    "extensions/": ("tests/crash/test_protocol.py",),
    "sinks/": ("tests/crash/test_protocol.py",),
    "sinks/staging.py": ("tests/spark/test_staging.py",),
    "storage/local.py": ("tests/contract/test_storage.py",),
}
"""Tests for what the fast ones let live, by the beginning of the module's path."""
FAST: Final = "not spark and not airflow and not alone and not soak and not whole"
IGNORED: Final = tuple(f"--ignore=tests/{folder}" for folder in ("airflow", "crash", "spark"))
TESTS_OF_ONE: Final = 80  # of the tests that run a line, spread over all of them, come first
TIMEOUT_S: Final = 120.0  # of the tests of one mutant, which may never end
LEARN_TIMEOUT_S: Final = 1800.0
DURABLE: Final = ("put", "delete", "remove", "forget", "release", "commit", "publish", "revert")

_AGAIN: Final = "a restore has checked this before; this is the same check, under the lease"
_EARLY: Final = "it ends a process that was overtaken sooner; its next step is refused anyway"
_NONE: Final = "a function that ends returns None"
_SAVES: Final = "it saves a look at the storage, which would find the same"
SURVIVORS: Final[dict[str, str]] = {
    "jobdir/expiry.py:_remove_submission:order:1": "both are logs of one driver; what says whose "
    "they are goes after both",
    "extensions/upgrades/upgrade_steps.py:UpgradeSteps._go_on:check:1": _EARLY,
    "extensions/upgrades/upgrade_steps.py:UpgradeSteps._go_on:line:4": _NONE,
    "extensions/upgrades/upgrade_steps.py:UpgradeSteps._stop:check:1": _EARLY,
    "extensions/upgrades/upgrade_steps.py:UpgradeSteps._check_lease:check:1": _EARLY,
    "extensions/upgrades/upgrade_steps.py:UpgradeSteps._check_lease:refusal:1": _EARLY,
    "savepoints/restore.py:Restore.begin:check:1": _AGAIN,
    "savepoints/restore.py:Restore.begin:check:2": _AGAIN,
    "savepoints/restore.py:_restore_query:order:1": "both count when the metadata, put after both, "
    "are there",
    "savepoints/retention.py:_collect:order:1": "what a death between them leaves, readers or a "
    "claim, is an incomplete savepoint to the next retention, which collects it",
    "sinks/committer.py:EpochCommitter.recover:line:9": "what removes leftovers at the end of a "
    "recovery does the same; here a sink has one staging of an epoch while it publishes",
    "sinks/committer.py:EpochCommitter._record_of:line:1": _SAVES,
    "sinks/committer.py:EpochCommitter._record_of:line:3": _SAVES,
    "sinks/committer.py:EpochCommitter.commit_through:line:8": _SAVES,
    "sinks/committer.py:EpochCommitter._remember:line:1": _SAVES,
    "sinks/committer.py:EpochCommitter._remember:line:5": "it bounds what is kept in memory",
    "sinks/committer.py:EpochCommitter._remember:line:6": "it bounds what is kept in memory",
    "extensions/delta/sink.py:DeltaSink._published:line:3": _SAVES,
    "extensions/delta/sink.py:DeltaSink._published:line:10": _SAVES,
    "extensions/postgres/sink.py:PostgresSink.recover.work:line:8": _EARLY,
    "storage/file_tree.py:_local_files:refusal:1": "of a checkpoint that is gone, the inventory "
    "says that its files are",
    "storage/copy_files.py:_link:refusal:1": "the copy in its place refuses the same",
}
"""Mutants that live, by ``file:function:kind:number in it``, and why that is right."""


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One guard taken out.

    Attributes:
        path: the module, relative to the root.
        function: where in it, dotted.
        kind: ``check``, ``refusal``, ``put``, ``order`` or ``line``.
        number: which one of its kind in the function, from 1.
        span: first and last character of what is replaced.
        lines: the same in lines.
        text: what takes its place.
    """

    path: str
    function: str
    kind: str
    number: int
    span: tuple[int, int]
    lines: tuple[int, int]
    text: str

    @property
    def name(self) -> str:
        """Return what it is listed under."""
        module = _module_of(self.path)
        return f"{module}:{self.function}:{self.kind}:{self.number}"


class Source:
    """A module's text and its syntax tree."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text
        self._starts = [0]
        for line in text.encode().splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def mutants(self) -> Iterator[Mutant]:
        """Yield one mutant for each guard, in the order of the text."""
        counts: dict[tuple[str, str], int] = {}
        for function, kind, first, last, text in self._found():
            number = counts[function, kind] = counts.get((function, kind), 0) + 1
            span = (self._location(first, end=False), self._location(last, end=True))
            lines = (first.lineno, int(last.end_lineno or last.lineno))
            yield Mutant(self.path, function, kind, number, span, lines, text)

    def without(self, mutant: Mutant) -> str:
        """Return the text with a mutant in it."""
        raw = self.text.encode()
        first, last = mutant.span
        return (raw[:first] + mutant.text.encode() + raw[last:]).decode()

    def _location(self, node: _Piece, *, end: bool) -> int:
        line, column = node.lineno, node.col_offset
        if end:
            line, column = node.end_lineno or line, node.end_col_offset or column
        return self._starts[line - 1] + column

    def _segment(self, node: _Piece) -> str:
        raw = self.text.encode()
        return raw[self._location(node, end=False) : self._location(node, end=True)].decode()

    def _found(self) -> Iterator[tuple[str, str, _Piece, _Piece, str]]:
        whole = LINES.get(_module_of(self.path), "").split()
        for function, body in _bodies(ast.parse(self.text)):
            if any(part in whole for part in function.split(".")):
                lines = [s for s in body if self._counts(s)]
                yield from ((function, "line", s, s, "pass") for s in lines)
            for statement, following in itertools.zip_longest(body, body[1:]):
                yield from (
                    (function, *found) for found in self._in_statement(statement, following)
                )

    def _counts(self, statement: ast.stmt) -> bool:
        """Whether a statement could matter, and is not a guard of another kind."""
        if _is_refusal(statement) or (
            isinstance(statement, ast.Expr)
            and (_is_check(statement.value) or isinstance(statement.value, ast.Constant))
        ):
            return False
        if isinstance(statement, (ast.Import, ast.ImportFrom, ast.Pass, ast.With, ast.Try)):
            return False  # what a block holds is taken out statement by statement
        passing = ("failpoints.", "log.", "msg =", "raise", "del ", "yield")
        return not self._segment(statement).startswith(passing)

    def _in_statement(
        self, statement: ast.stmt, following: ast.stmt | None
    ) -> Iterator[tuple[str, _Piece, _Piece, str]]:
        if isinstance(statement, ast.Expr) and _is_check(statement.value):
            yield "check", statement, statement, "pass"
        if _is_refusal(statement):
            yield "refusal", statement.test, statement.test, "False"
        if _is_durable(statement) and following is not None and _is_durable(following):
            between = "\n" + " " * statement.col_offset
            swapped = f"{self._segment(following)}{between}{self._segment(statement)}"
            yield "order", statement, following, swapped
        for node in _own_nodes(statement):
            if isinstance(node, ast.Call) and _called(node) == "put_if_absent":
                anyway = self._segment(node).replace(".put_if_absent(", ".put(", 1)
                yield "put", node, node, f"(({anyway}) or True)"


def _path_of(module: str) -> str:
    return (
        f"{PACKAGE}/{module}" if module.startswith("extensions/") else f"{PACKAGE}/runtime/{module}"
    )


def _module_of(path: str) -> str:
    return path.removeprefix(f"{PACKAGE}/").removeprefix("runtime/")


def _bodies(tree: ast.Module) -> Iterator[tuple[str, list[ast.stmt]]]:
    """Yield every block of statements, with the dotted name of its function."""

    def inside(node: ast.AST, name: str) -> Iterator[tuple[str, list[ast.stmt]]]:
        for child in ast.iter_child_nodes(node):
            own = name
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                own = f"{name}.{child.name}" if name else child.name
            yield from inside(child, own)
        if name:
            for field in ("body", "orelse", "finalbody"):
                block = getattr(node, field, None)
                if isinstance(block, list) and not isinstance(node, ast.ClassDef):
                    yield name, block

    blocks = list(inside(tree, ""))
    yield from sorted(blocks, key=lambda pair: pair[1][0].lineno if pair[1] else 0)


def _own_nodes(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield the expressions of a statement, without the statements under it."""
    for child in ast.iter_child_nodes(statement):
        if not isinstance(child, (ast.stmt, ast.excepthandler)):
            yield from ast.walk(child)


def _called(node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return ""
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _is_check(node: ast.AST) -> bool:
    name = _called(node).lstrip("_")
    return name in {"check", "fsync"} or name.startswith(("check_", "fsync_", "refuse_", "sync_"))


def _is_refusal(statement: ast.stmt) -> TypeGuard[ast.If]:
    if not isinstance(statement, ast.If) or statement.orelse:
        return False
    return isinstance(statement.body[-1], ast.Raise)


def _is_durable(statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.Expr):
        return False
    name = _called(statement.value).lstrip("_")
    return any(name == word or name.startswith(f"{word}_") for word in DURABLE)


def find_mutants(root: Path, only: str, kinds: Sequence[str]) -> list[Mutant]:
    """Return the mutants of these kinds of all modules whose path contains *only*."""
    found: list[Mutant] = []
    for module in sorted({*PROTOCOL, *LINES}):
        path = _path_of(module)
        if only in path:
            found += Source(path, (root / path).read_text()).mutants()
    return [mutant for mutant in found if not kinds or mutant.kind in kinds]


class Laboratory:
    """A copy of the tree in which mutants are tried.

    Args:
        folder: where it lies; empty.
        timeout_s: after which the tests of a mutant count as those that never end.
    """

    def __init__(self, folder: Path, timeout_s: float) -> None:
        self._folder = folder
        self._timeout_s = timeout_s
        self._killers: dict[str, set[str]] = {}
        for name in (".ci", ".github", "airflow_provider", "dags", "docs", "scripts", "tests"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        for file in (*ROOT.glob("*.*"), ROOT / "Makefile"):
            if file.is_file():
                shutil.copy(file, folder / file.name)
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(folder),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def learn(self, jobs: int, learned: Path | None) -> None:
        """Run the fast tests once, and keep which test runs which line; in *learned*, if given.

        Raises:
            SystemExit: they do not pass.
        """
        from coverage import CoverageData

        if learned is not None and learned.is_file():
            self._data = CoverageData(str(learned))
            self._data.read()
            return
        arguments = ["-m", FAST, *IGNORED, "-n", str(jobs)]
        settings = self._folder / "coverage-mutants.toml"
        settings.write_text("[run]\nrelative_files = true\n")
        cover = [f"--cov={PACKAGE}", "--cov-context=test", "--cov-report="]
        cover.append(f"--cov-config={settings}")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
        done = subprocess.run(
            [*command, *cover],
            cwd=self._folder,
            env=self._environment,
            check=False,
            timeout=LEARN_TIMEOUT_S,
        )
        if done.returncode != 0:
            sys.exit("the tests do not pass as it is")
        found = self._folder / ".coverage"
        self._data = CoverageData(str(found if learned is None else shutil.copy(found, learned)))
        self._data.read()

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Return the tests that run its lines."""
        contexts = self._data.contexts_by_lineno(mutant.path)
        lines = range(mutant.lines[0], mutant.lines[1] + 1)
        return sorted({c.partition("|")[0] for line in lines for c in contexts.get(line, ()) if c})

    def killer_of(self, mutant: Mutant) -> str | None:
        """Return what notices the mutant: a test that fails or never ends, or the types."""
        file = self._folder / mutant.path
        text = file.read_text()
        file.write_text(Source(mutant.path, text).without(mutant))
        module = _module_of(mutant.path)
        slower = [t for start, tests in SLOWER.items() if module.startswith(start) for t in tests]
        try:
            fast = self.tests_of(mutant)
            near = [test for test in fast if self._is_near(test, mutant)]
            far = [test for test in fast if test not in set(near)]
            first = far[:: max(1, len(far) // TESTS_OF_ONE)][:TESTS_OF_ONE]
            rest = [test for test in far if test not in set(first)]
            groups = {
                "its own tests": near,
                "fast tests": first,
                "the other fast tests": rest,
                "slower tests": slower,
            }
            for name, tests in groups.items():
                if tests and not self._pass(tests, mutant.path):
                    return name
            return None if self._has_types(mutant) else "types"
        finally:
            file.write_text(text)

    def _is_near(self, test: str, mutant: Mutant) -> bool:
        """Whether a test is the module's own, or has killed another mutant of it."""
        own = Path(test.partition("::")[0]).stem == f"test_{Path(mutant.path).stem}"
        return own or test in self._killers.get(mutant.path, ())

    def _pass(self, tests: Sequence[str], path: str) -> bool:
        """Run tests until one fails, and keep which; those that never end have failed."""
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-x", *tests]
        try:
            done = subprocess.run(
                command,
                cwd=self._folder,
                env=self._environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=self._timeout_s,
            )
        except subprocess.TimeoutExpired:
            return False
        said = done.stdout.splitlines()
        failed = (test for test in tests if any(line.startswith(f"FAILED {test}") for line in said))
        self._killers.setdefault(path, set()).update(failed)
        return done.returncode == 0

    def _has_types(self, mutant: Mutant) -> bool:
        command = [sys.executable, "-m", "mypy", "--follow-imports=silent", mutant.path]
        done = subprocess.run(
            command, cwd=self._folder, env=self._environment, capture_output=True, check=False
        )
        return done.returncode == 0


def main() -> int:
    """Try them all; 1 when one lives that is not listed."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="of paths that contain it")
    parser.add_argument("--kinds", default="", metavar="KIND,…", help="of these kinds only")
    parser.add_argument("--list", action="store_true", help="name them, and do nothing")
    parser.add_argument("--jobs", type=int, default=2, help="processes of the first run")
    parser.add_argument("--learned", type=Path, help="which test runs which line: read, else made")
    parser.add_argument("--timeout", type=float, default=TIMEOUT_S, help="seconds for one mutant")
    arguments = parser.parse_args()
    kinds = [kind for kind in arguments.kinds.split(",") if kind]
    mutants = find_mutants(ROOT, arguments.only, kinds)
    if arguments.list:
        for mutant in mutants:
            print(mutant.name, f"(line {mutant.lines[0]})")
        return 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        laboratory = Laboratory(Path(folder), arguments.timeout)
        laboratory.learn(arguments.jobs, arguments.learned)
        return _report(mutants, [_try(laboratory, mutant) for mutant in mutants])


def _try(laboratory: Laboratory, mutant: Mutant) -> bool:
    killer = laboratory.killer_of(mutant)
    how = f"killed by {killer}" if killer else f"LIVES, {len(laboratory.tests_of(mutant))} tests"
    print(f"{mutant.name} (line {mutant.lines[0]}): {how}", flush=True)
    return killer is not None


def _report(mutants: Sequence[Mutant], killed: Sequence[bool]) -> int:
    living = [m.name for m, is_killed in zip(mutants, killed, strict=True) if not is_killed]
    unlisted = [name for name in living if name not in SURVIVORS]
    print(f"\n{len(mutants)} mutants, {sum(killed)} killed, {len(living)} live")
    for name in living:
        print(f"  {name}: {SURVIVORS.get(name, 'NOT LISTED: bring the test that kills it')}")
    return 1 if unlisted else 0


if __name__ == "__main__":
    sys.exit(main())
