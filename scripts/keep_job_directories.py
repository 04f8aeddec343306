"""Keep small job directories of this version, for the tests of later ones.

Its argument is the release. Real runs make them, in drivers of their own. Run it before a release,
and again whenever a stored format changes before that; it replaces what it has made.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.kept import FOLDER, pack, root_below

if TYPE_CHECKING:
    from collections.abc import Callable

_CONF: Final = ("spark.sql.session.timeZone=UTC", "spark.sql.shuffle.partitions=1")
_ORDERS: Final = (
    "2026-01-01T00:10:00Z,tea,1\n2026-01-01T00:20:00Z,milk,2\n",
    "2026-01-01T00:50:00Z,tea,4\n2026-01-01T02:30:00Z,tea,8\n",
)


def finished(root: Path) -> None:
    """Let a stream read all, drain and end."""
    _run(root, "--mode", "streaming", "--run-id", "first")


def suspended(root: Path) -> None:
    """Let a stream read what is there and keep its state; take a savepoint."""
    _run(root, "--mode", "streaming", "--until", "available", "--run-id", "first")
    _command("savepoint", "take", f"{root}/job", "--to", f"{root}/job/savepoints/kept")


def batch(root: Path) -> None:
    """Let a batch job end."""
    _run(root, "--mode", "batch", "--run-id", "first")


MADE: Final[tuple[Callable[[Path], None], ...]] = (finished, suspended, batch)


def _run(root: Path, *options: str) -> None:
    params = [f"--param={name}={root / name}" for name in ("input", "output")]
    conf = [f"--conf={setting}" for setting in _CONF]
    _command("run", f"{root}/job", "--entry", f"{root}/job.py:hours", *params, *conf, *options)


def _command(*arguments: str) -> None:
    command = [sys.executable, "-m", "airflow_provider.runtime.cli", *arguments]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)


def main() -> None:
    """Make each in a folder of its own, and pack it."""
    [release] = sys.argv[1:]
    for make in MADE:
        with tempfile.TemporaryDirectory() as folder:
            root = root_below(Path(folder))
            (root / "input").mkdir(parents=True)
            shutil.copy(FOLDER / "job.py", root)
            for number, orders in enumerate(_ORDERS):
                (root / f"input/{number}.csv").write_text(orders)
            make(root)
            archive = FOLDER / release / f"{make.__name__}.tar.xz"
            pack(root, archive, spark=importlib.metadata.version("pyspark"))
        print(f"{archive.relative_to(ROOT)}: {archive.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
