"""STREAMING = BATCH = script = SQL = what the files say, whatever their names and ages.

Or the run is refused, and the message names the file. Each folder is drawn by a seed: names with
everything that a file system allows, times from 1970 to 2038, empty files, byte-order marks, files
that are cut off; files that are changed or arrive between two runs.
"""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import random
import shutil
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet
import pytest
from scripting import run_as_job
from streams import Location

from airflow_provider.runtime.base.names import CONTROLS
from airflow_provider.runtime.errors import ConfigError, RunFailedError
from airflow_provider.runtime.queries.scanned_input import ScanGuard
from airflow_provider.runtime.sources.path_patterns import escaped
from tests.spark.conftest import spark_session

pytestmark = pytest.mark.spark

ENTRY = Path(__file__).resolve().parents[1] / "spark" / "file_jobs.py"
FIRST, LAST = map(int, os.environ.get("HOSTILE_FOLDERS", "0-2000").split("-"))
A_PROCESS = 100  # Spark's JVM keeps some 5 MB of the heap for each folder, also after stop()
MUTANT_FOLDERS = 50
LETTERS = "abz019-+.,;=&%#@!~^$()'\"<>| \t\n[]{}?*\\üé€\U0001f600\u2028\u0085\u00a0"
FORMATS = ("csv", "json", "orc", "parquet", "text")
END_S = 2_147_483_647  # January 2038
SCRIPT = """
import json, sys
from pyspark.sql import SparkSession

source, output, checkpoint, kind, schema, options = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
reader = spark.readStream.format(kind).schema(schema).options(**json.loads(options))
writer = reader.load(source).writeStream.queryName("out").format("json")
writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
writer.start(output).awaitTermination()
"""
STATEMENTS = """
CREATE TEMPORARY VIEW records ({schema}) USING {kind} OPTIONS (path '${{input}}'{options});
INSERT INTO json.`${{output}}` SELECT * FROM STREAM records;
"""


class Folder(NamedTuple):
    """A drawn folder, and how it is read."""

    format: str
    options: dict[str, str]
    read: dict[str, Any]
    refused: str | None  # a part of the name of a file that cannot be read


def name_of(rng: random.Random, number: int) -> str:
    letters = "".join(rng.choice(LETTERS) for _ in range(rng.randrange(8)))
    return rng.choice([f"{letters}{number}", f"{number}{letters}", f"n{letters}{number}"])


def content(rng: random.Random, file_format: str, ids: list[int]) -> bytes | pa.Table:
    if file_format in {"orc", "parquet"}:
        return pa.table(
            {
                "id": pa.array(ids, pa.int64()),
                "v": pa.array([f"v{each}" for each in ids], pa.string()),
            }
        )
    if file_format == "json":
        lines = [json.dumps({"id": each, "v": f"v{each}"}) for each in ids]
    else:
        lines = [f"{each},v{each}" if file_format == "csv" else str(each) for each in ids]
    end = rng.choice(["\n", "\n", "\r\n"])
    text = end.join(lines) + (end if ids and rng.random() < 0.8 else "")
    mark = b"\xef\xbb\xbf" if rng.random() < 0.1 and ids else b""
    return mark + text.encode()


def put(rng: random.Random, folder: Path, file_format: str, number: int, ids: list[int]) -> Path:
    """Write a file with these records, under a drawn name and with a drawn age."""
    file = folder / name_of(rng, number)
    made = content(rng, file_format, ids)
    if isinstance(made, pa.Table):
        write = pyarrow.parquet.write_table if file_format == "parquet" else pyarrow.orc.write_table
        with file.open("wb") as sink:
            write(made, sink)
    elif rng.random() < 0.15:
        file = file.with_name(f"{file.name}.gz")
        file.write_bytes(gzip.compress(made))
    else:
        file.write_bytes(made)
    os.utime(file, (at := rng.randrange(END_S), at))
    return file


def is_hidden(file: Path) -> bool:
    """Whether Spark leaves a file out because of its name, as docs say."""
    return file.name[0] in "._"


def draw(rng: random.Random, folder: Path) -> tuple[Folder, Counter[int]]:
    """Make a folder; return how it is read, and the ids of its records."""
    folder.mkdir(parents=True)
    file_format = rng.choice(FORMATS)
    truth: Counter[int] = Counter()
    refused, next_id = None, 0
    for number in range(rng.randrange(1, 8)):
        ids = list(range(next_id, next_id + rng.choice([0, 1, 1, 2, 5])))
        next_id += len(ids)
        file = put(rng, folder, file_format, number, ids)
        if not is_hidden(file):
            truth.update(ids)
    if file_format in {"csv", "json", "text"} and rng.random() < 0.1:
        cut = folder / f"cut{next_id}.gz"
        # Letters without a pattern, so that the first block is not whole.
        cut.write_bytes(gzip.compress(rng.randbytes(3000).hex().encode())[:-700])
        refused = cut.name
    options: dict[str, str] = {}
    if rng.random() < 0.6:
        options["maxFilesPerTrigger"] = str(rng.randrange(1, 4))
    read: dict[str, Any] = {}
    if file_format in {"csv", "json"} and rng.random() < 0.4:
        read["rejected"] = rng.choice(["quarantine", "count", "fail"])
    if rng.random() < 0.3:
        read["read_order"] = "name"
    if rng.random() < 0.2:
        read["also"] = str(folder.parents[1] / "corrected")
    return Folder(file_format, options, read, refused), truth


def ids_in(output: Path, file_format: str) -> Counter[int]:
    lines = [
        line for f in output.glob("*.json") for line in f.read_text("utf-8").split("\n") if line
    ]
    column = "value" if file_format == "text" else "id"
    return Counter(int(json.loads(line)[column]) for line in lines)


def attempt(spark: Any, location: Location, folder: Folder, **how: Any) -> Any:
    job = "lines" if folder.format == "text" else "records"
    params = {
        "input": escaped(str(location.input)),
        "format": folder.format,
        "options": json.dumps(folder.options),
        "read": json.dumps(folder.read),
    }
    return location.run(spark, job, entry=f"{ENTRY}:{job}", params=params, restart="none", **how)


def attempt_script(spark: Any, location: Location, folder: Folder) -> None:
    """Read the folder by a script of plain PySpark."""
    script = location.root / "job.py"
    script.write_text(SCRIPT, encoding="utf-8")
    given: tuple[Any, ...] = (
        escaped(str(location.input)),
        location.output,
        location.root / "checkpoint",
        folder.format,
    )
    given = (*given, schema_of(folder), json.dumps(folder.options))
    run_as_job(spark, location.job_dir, script, *given, restart="none")


def attempt_sql(spark: Any, location: Location, folder: Folder) -> None:
    """Read the folder by a file of SQL."""
    statements = location.root / "job.sql"
    options = "".join(f", {name} '{value}'" for name, value in folder.options.items())
    text = STATEMENTS.format(schema=schema_of(folder), kind=folder.format, options=options)
    statements.write_text(text, encoding="utf-8")
    params = {"input": escaped(str(location.input))}
    location.run(spark, "", entry=str(statements), params=params, restart="none")


def schema_of(folder: Folder) -> str:
    return "value string" if folder.format == "text" else "id long, v string"


def check_refused(spark: Any, location: Location, folder: Folder, mode: str) -> None:
    with pytest.raises((ConfigError, RunFailedError)) as caught:
        attempt(spark, location, folder, mode=mode)
    assert str(folder.refused) in str(caught.value)


def check_folder(spark: Any, root: Path, seed: int) -> None:
    """Read a drawn folder as a table, and as a stream in two runs, between which files arrive."""
    rng = random.Random(seed)
    # The job directory and the output have such names, too, but for letters that end a line.
    names = (CONTROLS.sub("", f"{each}{name_of(rng, 0)}") for each in ("batch", "stream"))
    batch, stream = (Location(root / name) for name in names)
    for location in (batch, stream):
        location.root.mkdir(parents=True)
    folder, truth = draw(rng, batch.input)
    batch.input.rename(stream.input)
    batch.input.symlink_to(stream.input)
    in_batches = folder._replace(
        options={k: v for k, v in folder.options.items() if k != "maxFilesPerTrigger"},
        read={k: v for k, v in folder.read.items() if k != "read_order"},
    )
    if folder.refused is not None:
        check_refused(spark, batch, in_batches, "batch")
        check_refused(spark, stream, folder, "streaming")
        return
    attempt(spark, batch, in_batches, mode="batch")
    assert truth == ids_in(batch.output, folder.format)
    for read in (attempt_script, attempt_sql):
        other = Location(root / read.__name__)  # a path in SQL has no quotes or backslashes
        other.root.mkdir()
        other.input.symlink_to(stream.input)
        read(spark, other, folder)
        assert truth == ids_in(other.output, folder.format), read.__name__
    attempt(spark, stream, folder, run_id="r1", until="available", at_end="suspend")
    assert truth == ids_in(stream.output, folder.format)
    late = put(rng, stream.input, folder.format, 90, [9000])
    attempt(spark, stream, folder, run_id="r2", until="available")
    assert truth + Counter([] if is_hidden(late) else [9000]) == ids_in(
        stream.output, folder.format
    )


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
def test_a_folder_is_read_whole_or_refused_by_name(spark, tmp_path, seed):
    """As a table and as a stream, each record of each file is there once."""
    check_folder(spark, tmp_path, seed)


def check_folders(spark: Any, root: Path, seeds: range) -> None:
    for seed in seeds:
        try:
            check_folder(spark, root / str(seed), seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        shutil.rmtree(root / str(seed))


def check_folders_alone(root: Path, seeds: range) -> None:
    with spark_session() as spark:
        check_folders(spark, root, seeds)


@pytest.mark.soak
def test_many_folders_are_read_whole_or_refused_by_name(tmp_path):
    """The same for thousands of folders; the message has the seed of one that is not."""
    for first in range(FIRST, LAST, A_PROCESS):
        seeds = range(first, min(first + A_PROCESS, LAST))
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            process.submit(check_folders_alone, tmp_path, seeds).result()


@pytest.mark.soak
def test_a_missing_guard_is_found(spark, tmp_path, monkeypatch):
    """Without the comparison of scans with logs one of fifty folders has a record twice."""
    monkeypatch.setattr(ScanGuard, "check", lambda *_: None)

    with pytest.raises(AssertionError, match="seed"):
        check_folders(spark, tmp_path, range(MUTANT_FOLDERS))
