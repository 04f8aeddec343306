"""Recordings of queries with Java Flight Recorder, and where they spend their time."""

from __future__ import annotations

import collections
import contextlib
import json
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

JCMD, JFR = (shutil.which(name) or name for name in ("jcmd", "jfr"))
WEIGHTS: Final = {"jdk.ExecutionSample": 1, "jdk.NativeMethodSample": 2}
"""Events with a stack: Java's are sampled each 10 milliseconds, those of native code each 20."""
KINDS: Final = {
    "CSV": r"univocity|catalyst\.csv|datasources\.csv|flink\.formats\.csv|jackson\.dataformat",
    "RocksDB": r"^org\.rocksdb",
    "state": r"streaming\.state|operators\.stateful|flink\.runtime\.state|HeapPriorityQueue",
    "sort": r"Sorter|TimSort|RadixSort",
    "exchange": r"spark\.shuffle|spark\.storage|runtime\.io\.network|^io\.netty|serializer",
    "operators": r"GeneratedClass|spark\.sql\.(catalyst\.expressions|execution)|spark\.unsafe"
    r"|flink\.table\.(runtime|data)|^(StreamExecCalc|BatchExecCalc|Calc|.*Aggs?Handler)",
}
"""Kinds of work, each with the frames that show it; a sample is of the first that fits."""
OTHER, BESIDE = "other", "beside the tasks"
ALL_KINDS: Final = (*KINDS, OTHER, BESIDE)
WORKERS: Final = re.compile(r"^Executor task|\(\d+/\d+\)#\d+$")
"""Threads that work on rows: Spark's tasks, and Flink's, which have an operator's name."""


@contextlib.contextmanager
def recording(pids: Iterable[int], name: str, folder: Path) -> Iterator[None]:
    """Record the JVMs during the block, a file for each, which Java Mission Control shows, too."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {pid: folder / f"{name}-{number}.jfr" for number, pid in enumerate(pids)}
    for pid in files:
        _jcmd(pid, "JFR.start", "name=nexmark", "settings=profile")
    try:
        yield
    finally:
        for pid, file in files.items():
            _jcmd(pid, "JFR.stop", "name=nexmark", f"filename={file}")


def shares(files: Iterable[Path]) -> dict[str, float]:
    """Return the share of each kind of work; threads without rows are *beside the tasks*."""
    counts: collections.Counter[str] = collections.Counter()
    for file in files:
        command = [JFR, "print", "--json", "--stack-depth", "64", "--events", ",".join(WEIGHTS)]
        printed = subprocess.run([*command, str(file)], check=True, capture_output=True)
        for event in json.loads(printed.stdout)["recording"]["events"]:
            if kind := _kind_of(event["type"], event["values"]):
                counts[kind] += WEIGHTS[event["type"]]
    total = counts.total() or 1
    return {kind: count / total for kind, count in counts.most_common()}


def _kind_of(event: str, sample: dict[str, Any]) -> str | None:
    """Return the kind of a sample; None for native code beside the tasks, which mostly waits."""
    if not WORKERS.search((sample["sampledThread"] or {}).get("javaName") or ""):
        return BESIDE if event == "jdk.ExecutionSample" else None
    frames = [
        f"{frame['method']['type']['name'].replace('/', '.')}.{frame['method']['name']}"
        for frame in (sample["stackTrace"] or {"frames": ()})["frames"]
    ]
    for kind, pattern in KINDS.items():
        if any(re.search(pattern, frame) for frame in frames):
            return kind
    return OTHER


def _jcmd(pid: int, *arguments: str) -> None:
    subprocess.run([JCMD, str(pid), *arguments], check=True, capture_output=True)
