"""Remove the recovery code line by line, and see that a test turns red each time.

Every statement of the functions below is replaced by ``pass`` in a copy of the repository, and the
tests that guard it, and the type checker, run until one fails. What none of them notices is printed
and makes the exit code 1, unless it stands in `HARMLESS` with the reason why nothing could.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ROOT: Final = Path(__file__).resolve().parent.parent
SINKS: Final = "airflow_provider/runtime/sinks"
PROTOCOL: Final = (
    "tests/unit/test_recovery.py",
    "tests/unit/test_takeback.py",
    "tests/unit/test_epochs.py",
    "tests/property/test_epochs_machine.py",
    "tests/crash/test_protocol.py",
)
GUARDED: Final[Mapping[str, tuple[Sequence[str], Sequence[str]]]] = {
    # module: functions or classes whose lines are removed, and the tests in the order they are run
    f"{SINKS}/recovery.py": (("plan_recovery", "check_complete"), PROTOCOL),
    f"{SINKS}/epochs.py": (("EpochCommitter",), PROTOCOL),
    f"{SINKS}/takeback.py": (("TakeBack",), PROTOCOL),
    f"{SINKS}/records.py": (("EpochRecords", "HistoryRecord"), PROTOCOL),
    f"{SINKS}/files.py": (
        ("recover", "commit", "abort", "take_back", "_publish"),
        ("tests/unit/test_files_sink.py", "tests/crash/test_protocol.py"),
    ),
    f"{SINKS}/delta/sink.py": (
        ("recover", "commit", "abort", "take_back", "_remove", "_until_settled", "_published"),
        ("tests/unit/test_delta_sink.py",),
    ),
    f"{SINKS}/iceberg/sink.py": (
        ("recover", "commit", "abort", "take_back", "_remove", "_until_settled"),
        ("tests/unit/test_iceberg_sink.py",),
    ),
    f"{SINKS}/sql/publishing.py": (("publish",), ("tests/unit/test_sql_sink.py",)),
    f"{SINKS}/sql/undoing.py": (("take_back", "_remove"), ("tests/unit/test_sql_sink.py",)),
    f"{SINKS}/sql/sink.py": (
        ("recover", "commit", "abort", "take_back"),
        ("tests/unit/test_sql_sink.py",),
    ),
}
HARMLESS: Final[Mapping[str, str]] = {
    "return self._last": "then it is read from the storage, which says the same",
    "if self._last is not None and self._last.epoch == epoch - 1:": "the same",
}
"""Statement to reason."""


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One statement to remove.

    Attributes:
        function: its name, for people.
        first: first line, from 1.
        last: last line, inclusive.
    """

    module: str
    function: str
    first: int
    last: int
    column: int
    text: str

    def applied(self, source: str) -> str:
        """Return *source* without the statement."""
        lines = source.splitlines()
        lines[self.first - 1 : self.last] = [" " * self.column + "pass"]
        return "\n".join(lines) + "\n"


def main() -> int:
    """Try every mutant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="modules whose path contains this")
    arguments = parser.parse_args()
    survivors, tried = [], 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        copy = copy_of_repository(Path(name) / "repository")
        for module, (places, tests) in GUARDED.items():
            if arguments.only not in module:
                continue
            for mutant in mutants(module, places):
                tried += 1
                if is_noticed(copy, mutant, tests):
                    continue
                reason = HARMLESS.get(mutant.text.splitlines()[0])
                print(f"{'harmless' if reason else 'SURVIVED'}: {describe(mutant)}", flush=True)
                if reason is None:
                    survivors.append(mutant)
    print(f"{tried} lines removed, one at a time; {len(survivors)} of them no test missed")
    return 1 if survivors else 0


def describe(mutant: Mutant) -> str:
    """Return where a mutant is, and what it removes."""
    return f"{mutant.module}:{mutant.first} {mutant.function}: {mutant.text.splitlines()[0]}"


def copy_of_repository(target: Path) -> Path:
    """Copy what git knows, without what tests leave behind."""
    listed = subprocess.run(
        ["/usr/bin/env", "git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    return target


def mutants(module: str, places: Sequence[str]) -> Iterator[Mutant]:
    """Return a mutant for each statement of the named functions and classes."""
    source = (ROOT / module).read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in places:
            functions = [
                n for n in ast.walk(node) if isinstance(n, ast.FunctionDef) and n.name != "__init__"
            ]
            for function in functions:
                for statement in statements(function.body):
                    text = ast.get_source_segment(source, statement) or ""
                    if counts(statement, text):
                        last = statement.end_lineno or statement.lineno
                        yield Mutant(
                            module,
                            function.name,
                            statement.lineno,
                            last,
                            statement.col_offset,
                            text,
                        )


def statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Return the statements of a body and of what it nests, but for functions in it."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef):
            continue
        yield statement
        for field in ("body", "orelse", "finalbody"):
            yield from statements(getattr(statement, field, []))
        for handler in getattr(statement, "handlers", []):
            yield from statements(handler.body)


def counts(statement: ast.stmt, text: str) -> bool:
    """Tell whether removing the statement could matter: no docstring, message, log or import."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return False
    if isinstance(statement, ast.Import | ast.ImportFrom | ast.Pass | ast.With | ast.Try):
        return False  # what a block holds is removed line by line
    return not text.startswith(("failpoints.", "log.", "msg =", "del "))


def is_noticed(copy: Path, mutant: Mutant, tests: Sequence[str]) -> bool:
    """Run the tests on the copy without the statement; True when one fails."""
    place = copy / mutant.module
    source = place.read_text()
    place.write_text(mutant.applied(source))
    try:
        return any(not passes(copy, test) for test in tests) or not has_types(copy, mutant.module)
    finally:
        place.write_text(source)


def passes(copy: Path, test: str) -> bool:
    """Tell whether the tests in a file or folder pass."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", test]
    env = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=copy, env=env, capture_output=True, timeout=300, check=False
        )
    except subprocess.TimeoutExpired:
        return False  # it hangs without the line
    return done.returncode == 0


def has_types(copy: Path, module: str) -> bool:
    """Tell whether the module passes the type checker, which reads more than any test runs."""
    command = [sys.executable, "-m", "mypy", "--follow-imports=silent", module]
    return subprocess.run(command, cwd=copy, capture_output=True, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
