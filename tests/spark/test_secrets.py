"""Secret parameters in real runs: no text that a driver leaves behind has one."""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
import subprocess
import sys
import urllib.parse
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.jvm import jvm_options

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

pytestmark = pytest.mark.spark

HERE: Final = Path(__file__).parent
FIRST, ROTATED = "pepper-4711/hunter'2", "pepper-0815/rotated'3"
PIN: Final = 471100815
# One driver after the other, in one JVM, whose log has each plan.
PROGRAM = """
import json, os, sys
from airflow_provider.runtime.cli.main import main
from airflow_provider.runtime.spark.session import jvm_pid, start_spark

root, options, commands = sys.argv[1], sys.argv[2], json.loads(os.environ["COMMANDS"])
spark = start_spark("secrets", "local[2]", {
    "spark.driver.extraJavaOptions": options,
    "spark.log.level": "INFO",
    "spark.sql.shuffle.partitions": "1",
})
codes = []
for value, more in commands:
    os.environ["SALT"] = value
    codes.append(main(more, spark=spark))
    print("----", flush=True)
with open(f"{root}/codes", "w") as file:
    json.dump({"codes": codes, "jvm": jvm_pid(spark)}, file)
print("done", flush=True)
sys.stdin.read()
spark.stop()
"""


def spellings(value: str) -> list[bytes]:
    """Return what a text may have of a value; made without the code that is tested."""
    data = value.encode()
    coded = [base64.b64encode(b"x" * n + data + b"yyy").decode()[4:] for n in range(3)]
    cores = [text[: len(data) * 4 // 3 - 4] for text in coded]
    texts = [value, json.dumps(value)[1:-1], value.replace("'", "\\'"), value.replace("'", "''")]
    texts += [urllib.parse.quote(value, safe=safe) for safe in ("", "/", "'/")]
    texts += [data.hex(), data.hex(" "), *cores, *(core.replace("+", "-") for core in cores)]
    # Parts of it, however the rest is escaped.
    texts += [part for part in value.replace("'", "/").split("/") if len(part) > 6]
    return [text.lower().encode() for text in texts]


def contents(path: Path) -> Iterator[bytes]:
    """Yield a file's bytes, and those that it has compressed."""
    data = path.read_bytes()
    yield data
    if data[:2] == b"\x1f\x8b":
        yield gzip.decompress(data)
    if data[:4] == b"PK\x03\x04":
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            yield from (archive.read(name) for name in archive.namelist())
    for codec in ("zstd", "lz4", "snappy"):
        yield from decompressed(codec, data)


def decompressed(codec: str, data: bytes) -> Iterator[bytes]:
    """Yield what pyarrow's codec makes of a whole file; nothing if it is none of it."""
    import pyarrow

    try:
        with pyarrow.input_stream(pyarrow.BufferReader(data), compression=codec) as stream:
            yield stream.read()
    except (OSError, ValueError, pyarrow.ArrowException):
        return


def hits(folder: Path) -> list[str]:
    """Return each file below a folder whose name or content has a secret."""
    wanted = {each for value in (FIRST, ROTATED) for each in spellings(value)}
    found = []
    for path in sorted(folder.rglob("*")):
        texts = [str(path.relative_to(folder)).encode()]
        texts += contents(path) if path.is_file() else []
        found += [f"{path}: {w!r}" for text in texts for w in wanted if w in text.lower()]
    return found


def command_lines(*pids: int) -> str:
    """Return the command lines of processes, and of those that they have started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat, line = (folder / "stat").read_text(), (folder / "cmdline").read_text()
        except OSError:
            continue
        parent = int(stat.rpartition(")")[2].split()[1])
        if parent in pids or int(folder.name) in pids:
            found.append(line)
    return "\n".join(found)


def _until(lines: Iterable[bytes], last: bytes) -> Iterator[bytes]:
    for line in lines:
        yield line
        if line == last:
            return


@pytest.mark.long
def test_no_text_of_a_driver_has_a_secret(tmp_path: Path) -> None:
    """
    Runs that use a secret as literal, filter, key, option and in functions, one that fails with it
    and others that are refused leave no file, no output and no command line with it; a rotated
    secret resumes the job.
    """
    for name in ("in", "tmp", "cwd", "local"):
        (tmp_path / name).mkdir()
    (tmp_path / "in" / "1.csv").write_text("x,2026-01-01 00:00:00\n")

    def run(entry: str, job: str, *more: str) -> list[str]:
        return [
            *("run", str(tmp_path / job), "--entry", f"{HERE}/secret_jobs.py:{entry}"),
            *("--secret-param", "salt=SALT", "--secret-param", "pin=PIN", "--mode", "streaming"),
            *("--param", f"input={tmp_path}/in", "--param", f"output={tmp_path}/out-{job}"),
            *more,
        ]

    going_on = ("--until", "available", "--at-end", "suspend")
    commands = [
        (FIRST, run("salted", "job", *going_on)),
        (ROTATED, run("salted", "job", *going_on)),
        (ROTATED, run("failing", "failing")),
        (ROTATED, run("mistaken", "mistaken")),
        (ROTATED, run("unnamed", "unnamed")),
        (ROTATED, run("placed", "placed")),
        (ROTATED, run("keyed_by_secret", "keyed")),
        (ROTATED, run("salted", "logged", "--conf", "spark.eventLog.enabled=true")),
    ]
    environ = {
        **os.environ,
        "COMMANDS": json.dumps(commands),
        "PIN": str(PIN),
        "SPARK_LOCAL_DIRS": str(tmp_path / "local"),
        "TMPDIR": str(tmp_path / "tmp"),
        "PYTHONPATH": str(HERE.parents[1]),
    }
    with (tmp_path / "printed").open("wb") as printed:
        driver = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path), jvm_options()],
            cwd=tmp_path / "cwd",
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=printed,
        )
        assert driver.stdout is not None
        (tmp_path / "said").write_bytes(b"".join(_until(driver.stdout, b"done\n")))
        ended = json.loads((tmp_path / "codes").read_text())
        lines = command_lines(driver.pid, ended["jvm"])
        left = hits(tmp_path)
        driver.communicate(b"")

    text = (tmp_path / "printed").read_text()
    assert [0, 0, 4, 2, 2, 2, 2, 2] == ended["codes"], text
    assert [] == left
    assert [] == [w for value in (FIRST, ROTATED) for w in spellings(value) if w in lines.encode()]
    assert 4 <= text.count("<parameter salt>")
    assert "<secret parameter>" in "".join(
        path.read_text() for path in tmp_path.rglob("*.spark.log")
    )


def test_the_search_finds_what_it_looks_for(tmp_path: Path) -> None:
    """A secret in a file's name, in a compressed file and in base64 within a text is found."""
    (tmp_path / FIRST.replace("/", "-")).touch()
    (tmp_path / "log.gz").write_bytes(gzip.compress(f"a {ROTATED} b".encode()))
    coded = base64.b64encode(f"user:{FIRST}".encode()).decode()
    (tmp_path / "header").write_text(f"Authorization: Basic {coded}")
    (tmp_path / "other").write_text("nothing")

    assert {"header", "log.gz", FIRST.replace("/", "-")} == {
        Path(found.partition(": b")[0]).name for found in hits(tmp_path)
    }
