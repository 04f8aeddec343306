"""Nexmark's queries on a warm cluster of Flink: its own SQL, and one client that stays."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scripts.benchmarks import flink

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE: Final = Path(__file__).parent
CHECKPOINTS: Final = "10 s"
UPDATING: Final = frozenset({"q4", "q9", "q15", "q16", "q17", "q18"})
"""Streams that change rows they have given: no sink of the wheel takes those, but ``blackhole``."""
REFUSED: Final = {
    ("q6", "streaming"): "Flink orders a bounded OVER by time alone",
    ("q11", "batch"): "Flink has no sessions in BATCH",
}
NEXMARK_CONF: Final = {  # as nexmark/nexmark configures the planner
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "2s",
    "table.exec.mini-batch.size": "50000",
    "table.optimizer.distinct-agg.split.enabled": "true",
}


class FlinkSide:
    """A cluster and its client."""

    def __init__(self, cluster: flink.Flink, client: subprocess.Popen[str]) -> None:
        self.pids = (*cluster.pids, client.pid)
        self.worker_pids = cluster.pids
        self._cluster = cluster
        self._client = client
        self._statements = _statements()

    def run(self, query: str, mode: str, events: Path, output: Path) -> float:
        """Run a query; return the duration of its job, without the client's planning."""
        sink = f"'connector' = 'filesystem', 'path' = '{output}', 'format' = 'csv'"
        sink += ", 'csv.disable-quote-character' = 'true'"
        if not writes(query, mode):
            sink = "'connector' = 'blackhole'"
        texts = [*self._statements["tables"], *self._statements[query]]
        job = self._ask(
            mode=mode,
            statements=[t.replace("${input}", str(events)).replace("${sink}", sink) for t in texts],
            conf=self._conf(mode),
        )
        found = self._cluster.get(f"/jobs/{job}")
        if found["state"] != "FINISHED":
            sys.exit(f"flink: {query}, {mode}: the job is {found['state']}")
        return float(found["duration"]) / 1000

    def _conf(self, mode: str) -> dict[str, str]:
        remote = {
            "execution.target": "remote",
            "rest.address": "127.0.0.1",
            "rest.port": str(self._cluster.port),
            "table.local-time-zone": "UTC",
        }
        if mode == "batch":
            return remote
        return {**remote, **NEXMARK_CONF, "execution.checkpointing.interval": CHECKPOINTS}

    def _ask(self, **asked: Any) -> str:
        if self._client.stdin is None or self._client.stdout is None:
            raise TypeError(self._client)
        self._client.stdin.write(json.dumps(asked) + "\n")
        self._client.stdin.flush()
        for line in self._client.stdout:
            if line.startswith("ANSWER "):
                answer = json.loads(line.removeprefix("ANSWER "))
                if "job" in answer:
                    return str(answer["job"])
                sys.exit(f"flink: {answer['error']}\n{asked['statements'][-1]}")
        sys.exit(f"flink: the client has died; see {flink.WORK / 'log' / 'client.out'}")


def writes(query: str, mode: str) -> bool:
    """Whether Flink writes the query's rows to files, where they can be compared."""
    return mode == "batch" or query not in UPDATING


@contextlib.contextmanager
def flink_side() -> Iterator[FlinkSide]:
    """Keep a cluster and a client for the block."""
    with flink.cluster(flink.install()) as cluster:
        command = [str(flink.PYTHON), str(HERE / "flink_client.py")]
        with (flink.WORK / "log" / "client.out").open("wb") as log:
            client = subprocess.Popen(
                command,
                env=cluster.environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        with client:  # closes its input, at which it ends
            yield FlinkSide(cluster, client)


def _statements() -> dict[str, list[str]]:
    """Return the statements of the tables and of each query."""
    text = (HERE / "flink.sql").read_text(encoding="utf-8")
    _, *parts = re.split(r"^-- (tables|q\d+)$", text, flags=re.MULTILINE)
    return {
        name: [each for each in statements.split(";\n") if each.strip()]
        for name, statements in zip(parts[::2], parts[1::2], strict=True)
    }
