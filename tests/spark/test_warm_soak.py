"""A thousand runs of ten jobs by two warm drivers: each exact, none sees another's anything."""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from streams import ROCKSDB, Location, Rows, plain, read_with_pandas
from truths import NEEDS_ROCKSDB, TRUTHS, prepare, truth_of_windows
from warm_pools import Pool, Started, await_until

from airflow_provider.runtime.errors import EXIT_OK, EXIT_RETRY, EXIT_USAGE

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(0)]

JOBS = Path(__file__).with_name("planting_jobs.py")
RUNS = int(os.environ.get("WARM_RUNS", "1000"))
CYCLE = (
    *("tumbling_window", "outer_join", "timers_in_pandas", "session_window", "deduplication"),
    *("delta", "raising", "join_then_aggregation", "window_over_window", "timeouts_in_pandas"),
)
KILLED = 50  # of so many runs one
# What a measure may grow by with each run, on average.
MOST = {
    "metaspace_kib": 150.0,
    "heap_kib": 150.0,
    "threads": 0.2,
    "files": 2.0,  # Spark leaves about eight in each run of transformWithStateInPandas, two of ten
    "parent_kib": 10.0,
}
SETTLED = 30  # runs in which a JVM loads classes, and its pools of threads fill
FEWEST = 100  # later runs, of all JVMs; fewer try only that each is exact


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    started = Pool(tmp_path, size=2)
    yield started
    started.end()


class Runner:
    """Runs one of the jobs after the other, and checks each."""

    def __init__(self, pool: Pool, root: Path) -> None:
        self._pool, self._root = pool, root

    def run(self, number: int) -> dict[str, Any]:
        """Return what the run has found, if all that it has written is exact."""
        job = CYCLE[number % len(CYCLE)]
        location = Location(self._root / f"run-{number}")
        location.root.mkdir()
        salt = f"salt-{number}-of-a-run"
        params = prepare(location, job)["params"]
        conf = ROCKSDB if job in NEEDS_ROCKSDB else {}
        found = location.root / "report"
        command = self._pool.arguments(
            f"{JOBS}:soaked",
            location.job_dir,
            {
                "input": location.input,
                "output": location.output,
                "job": job,
                "report": found,
                **params,
            },
            "--secret-param=salt=SALT",
            mode="streaming",
            conf=conf,
        )

        def start() -> Started:
            return self._pool.start(command, conf=conf, environment={"SALT": salt})

        started = start()
        if number % KILLED == KILLED - 1:
            await_until(found.exists, why=started.log)
            os.kill(started.run.pid, signal.SIGKILL)
            assert EXIT_RETRY == started.wait(), (number, started.log)
            started = start()
        code = started.wait()
        assert (EXIT_USAGE if job == "raising" else EXIT_OK) == code, (number, job, started.log)
        if job != "raising":
            assert _truth(job) == _read(job, location.output), (number, job)
        report = dict(json.loads(found.read_text()))
        assert [salt] == report["salts"]
        return report


def _truth(job: str) -> Rows:
    return TRUTHS[job]() if job in TRUTHS else truth_of_windows()


def _read(job: str, folder: Path) -> Rows:
    if job != "delta":
        return read_with_pandas(folder)
    from deltalake import DeltaTable

    columns = ["start", "k", "n", "total"]
    table = DeltaTable(str(folder)).to_pyarrow_table(columns=columns)
    return plain(table.to_pandas().itertuples(index=False))


def test_a_thousand_runs_are_exact_and_leave_nothing(tmp_path, pool):
    """
    Windows, joins, pandas, Delta, failing and killed ones, each with a secret of its own: each finds
    the JVM as the first one has found it, and what a JVM holds does not grow.
    """
    runner = Runner(pool, tmp_path)
    pool.all_ready(2)

    with ThreadPoolExecutor(3) as clients:
        reports = list(clients.map(runner.run, range(RUNS)))

    assert [] == [n for n, each in enumerate(reports) if each["found"] != reports[0]["found"]]
    series: dict[int, list[dict[str, int]]] = defaultdict(list)
    for report in reports:
        series[report["measures"]["jvm"]].append(report["measures"])
    (tmp_path / "measures.json").write_text(json.dumps(list(series.values())))
    for samples in series.values():
        ends = (f"{name} {samples[0][name]:,} to {samples[-1][name]:,}" for name in samples[0])
        print(f"{len(samples)} runs:", *ends, sep="\n  ")
    print(*re.findall("retired after .*", pool.log), sep="\n")
    growth = _growth(series.values())
    print(growth)
    assert {} == {name: each for name, each in growth.items() if each > MOST[name]}


def _growth(series: Iterable[list[dict[str, int]]]) -> dict[str, float]:
    """Return by how much each measure grows with each run of a JVM that has settled.

    JVMs settle at different levels, so the slope is that of all, each around its own mean.
    """
    later = [samples[SETTLED:] for samples in series if len(samples) > SETTLED]
    runs = sum(map(len, later))
    assert runs >= FEWEST or RUNS < 4 * FEWEST
    if runs < FEWEST:
        return {}
    numbers = [number for each in later for number in _around_mean(range(len(each)))]

    def slope(name: str) -> float:
        values = [v for each in later for v in _around_mean([sample[name] for sample in each])]
        return statistics.linear_regression(numbers, values).slope

    return {name: slope(name) for name in MOST}


def _around_mean(values: Sequence[int]) -> list[float]:
    mean = statistics.fmean(values)
    return [value - mean for value in values]
