"""The meaning of a row stays as the first run of the job directory had it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from streams import SUSPEND, read_with_duckdb, run_in, savepoint_of

from airflow_provider.runtime.driver import records
from airflow_provider.runtime.errors import ConfigError, RunFailedError
from airflow_provider.runtime.jobdir.layout import open_job_directory
from airflow_provider.runtime.jobdir.pinned_settings import read_pins
from airflow_provider.runtime.spark.row_settings import changes_rows

pytestmark = [pytest.mark.spark, pytest.mark.slow]

JOBS = Path(__file__).with_name("zone_jobs.py")
DAYS, NUMBERS = ({"entry": f"{JOBS}:{name}"} for name in ("days", "numbers"))
ZONE, ANSI = "spark.sql.session.timeZone", "spark.sql.ansi.enabled"
NEW_YORK = "America/New_York"
# A quarter of an hour before midnight in New York, and ten minutes after it.
NIGHTS = [f"2026-01-0{day}T04:45:00Z,a\n2026-01-0{day}T05:10:00Z,b\n" for day in (2, 3, 4)]
# A window of a day begins at midnight in UTC, and its text is of New York.
TRUTH = [
    ("01 19:00", "2026-01-01", "01", 1),
    ("01 19:00", "2026-01-02", "02", 1),
    ("02 19:00", "2026-01-02", "02", 1),
    ("02 19:00", "2026-01-03", "03", 1),
    ("03 19:00", "2026-01-03", "03", 1),
    ("03 19:00", "2026-01-04", "04", 1),
]


def add(folder: Path, number: int, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{number}.csv").write_text(text)


def written(root: Path) -> set[str]:
    return {str(path) for path in root.rglob("*")}


def test_another_time_zone_is_refused_before_anything_is_written(spark, location):
    """By its name, from the request or the job's function; the pinned value goes on."""
    add(location.input, 1, NIGHTS[0])
    location.run(spark, "days", **DAYS, **SUSPEND, conf={ZONE: NEW_YORK}, run_id="r1")
    before = written(location.root)

    for asked in ({"conf": {ZONE: "UTC"}}, {"conf": {ZONE: NEW_YORK}, "params": {"zone": "UTC"}}):
        with pytest.raises(ConfigError, match=f"{ZONE}=UTC .* run 'r1' began with {NEW_YORK}"):
            location.run(spark, "days", **DAYS, **SUSPEND, **asked)

    assert before == written(location.root)
    location.run(spark, "days", **DAYS, conf={ZONE: NEW_YORK}, until="end")
    rows = read_with_duckdb(location.output / "*.parquet")
    assert [(since, day, n) for since, day, _, n in TRUTH[:2]] == [
        row[:2] + row[3:] for row in rows
    ]


@pytest.mark.long
def test_a_value_that_nobody_gives_is_the_first_runs(spark, location):
    """In STREAMING and BATCH: the run of another default has the rows of the first one."""
    add(location.input, 1, "1\nx\n")
    location.run(spark, "numbers", **NUMBERS, **SUSPEND, conf={ANSI: "false"})
    add(location.input, 2, "2\ny\n")

    location.run(spark, "numbers", **NUMBERS, **SUSPEND)

    assert [(0,), (0,), (1,), (2,)] == read_with_duckdb(location.output / "*.parquet")


@pytest.mark.long
def test_a_directory_that_begins_from_a_savepoint_has_its_settings(spark, location):
    """Another value is refused there, too, and the settings are stored under the new run."""
    add(location.input, 1, NIGHTS[0])
    location.run(spark, "days", **DAYS, **SUSPEND, conf={ZONE: NEW_YORK}, run_id="r1")
    asked: dict[str, Any] = {**DAYS, **SUSPEND, "from_savepoint": savepoint_of(location).url}
    other = location.root / "other"

    with pytest.raises(ConfigError, match="run 'r1' of the savepoint .* began with America"):
        run_in(spark, location, other, "days", **asked)
    assert not other.exists()
    run_in(spark, location, other, "days", **asked, conf={ZONE: NEW_YORK}, run_id="r2")

    pins = read_pins(open_job_directory(str(other)).storage)
    assert (NEW_YORK, "run 'r2'") == (pins.values[ZONE], pins.by[ZONE])


@pytest.mark.long
def test_a_session_that_the_job_changes_later_starts_no_query(spark, location, monkeypatch):
    """What counts is the session when a query starts: a thread of a script may have set it."""
    begin = records.begin_attempt

    def change(run: Any, spec: Any, lease: Any, job: Any, now: Any) -> Any:
        job.spark.conf.set(ZONE, "UTC")
        return begin(run, spec, lease, job, now)

    monkeypatch.setattr(records, "begin_attempt", change)
    add(location.input, 1, NIGHTS[0])

    with pytest.raises(RunFailedError, match=f"{ZONE}=UTC .the job sets it.*began with {NEW_YORK}"):
        location.run(spark, "days", **DAYS, **SUSPEND, conf={ZONE: NEW_YORK})

    assert not location.checkpoint("days").exists()


@pytest.mark.long
def test_another_hosts_time_zone_changes_no_row(location):
    """A job of New York goes on where it is UTC, with windows, dates and Python's clock as before."""
    for number, night in enumerate(NIGHTS):
        add(location.input, number, night)
        is_last = number == len(NIGHTS) - 1
        ends = ["--until", "end"] if is_last else ["--until", "available", "--at-end", "suspend"]
        _run(location, "UTC" if number else NEW_YORK, *ends)

    assert TRUTH == read_with_duckdb(location.output / "*.parquet")


def _run(location: Any, zone: str, *options: str) -> None:
    command = [sys.executable, "-m", "airflow_provider.runtime.cli", "run", str(location.job_dir)]
    params = [f"--param={name}={getattr(location, name)}" for name in ("input", "output")]
    command += ["--entry", f"{JOBS}:days", "--mode", "streaming", *params, *options]
    command += ["--master", "local[1]", "--conf", "spark.sql.shuffle.partitions=1"]
    environment = {**os.environ, "TZ": zone, "SPARK_STREAM_CACHE": "off"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stderr


# --- the settings of the installed Spark --------------------------------------------------------

# Settings that change no row, or only let one fail, by what they are about. A setting of a new Spark
# that is in no group is to be judged: it changes what a row means (`row_settings.py`), or it does
# not, and belongs here. Of `legacy` all are pinned but those that `row_settings.py` leaves out.
WITHOUT_ROWS = re.compile(
    r"""spark\.sql\.(
    # how fast, in which memory, in how many tasks
    (adaptive|broadcast\w*|bucketing|cartesianProductExec|cbo|classic|codegen|columnVector|exchange
        |inMemoryColumnarStorage|inMemoryTableScanStatistics|join|limit|objectHashAggregate
        |optimizer(?!\..*Legacy)|parser\.(manageParserCaches|parserDfaCache\w+)|resultQueryStage
        |sessionWindow|shuffle\w*|sort\w*|statistics|subexpressionElimination|subquery|window\w*)
        (\..+)?
    | addPartitionInBatch\..+ | alwaysInlineCommonExpr | autoBroadcastJoinThreshold
    | constraintPropagation\.enabled | crossJoin\.enabled | dataframeCache\..+ | dataSource\..+
    | default(CacheStorageLevel|SizeInBytes) | (cache\.serializer|cteR.+)
    | execution\.(?!pandas\.(conv|infer|resp|struct)|pyspark\.binaryAs|pythonUDT?F\.).+
    | execution\.pythonUDF\.arrow\.concurrency\.level | execution\.pandas\.udf\.buffer\.size
    | leafNodeDefaultParallelism | limit\w* | map(LookupHash|ZipWith)\w+ | max(Broadcast|Concurrent
        |SinglePartition)\w+ | optimizeNullAwareAntiJoin.* | planner\..+ | python\..+
    | requireAllClusterKeysFor\w+ | (union|useCommon)\w+ | lazySetOperatorOutput\.enabled
    | variant\.(allowReadingShredded|force.+|infer.+|push.+|shredding\..+|writeShredding\..+)
    # what is shown, logged, or said by an error
    | (cli|debug|error|event|eventLog|expressionTreeChangeLog|extendedExplainProviders|nameResolution
        Log|planChange\w+|redaction|repl|streaming\.ui|ui|pyspark\.(dataSource|jvm\w+|plotting|toJSON
        |udf|worker))(\..+)? | binaryOutputStyle | dataFrameQueryContext\.enabled | debug
    | lightweightPlanChangeValidation | max(Metadata|Plan)StringLength | stackTracesInDataFrameContext
    # where tables and files are, which of them are read, and how they are written
    | (artifact|catalog|connect|globalTempDatabase|hive|maven|pipelines|thrift[sS]erver|view|warehouse
        |scripting|scriptTransformation|session\.local\w+|extensions)(\..+)?
    | catalogImplementation | default(Catalog|Path|UrlStreamHandlerFactory\.enabled)
    | dropTableOnView\.enabled | files(ourceTable\w+|ource\w*)?(\..+)? | fileSource\..+
    | function(Resolution)\..+ | insert(Into|Nested).+ | mergeNested\w+\.enabled | kafka\..+
    | metadataCacheTTLSeconds | path\.enabled | protobuf\..+ | queryExecutionListeners
    | reflect\.allowList | restrictedMode\.enabled | runSQLOnFiles | timeTravel.+
    | truncateTable\..+ | generatedColumn\..+ | udt\..+ | variable\.substitute | chunk(?!Base64).+
    | (avro|orc|parquet)\.(\w*[cC]ompression\w*|columnar\w+|deflate|enable(Nested|Null|Vectorized)\w+
        |filterPushdown|aggregatePushdown|impl|output\.committer|pushdown|recordLevelFilter|schemaUrl\w+
        |variant|xz|zstandard)(\..+)?
    | (csv|json)\.(filterPushdown\.enabled|parser\.inputBufferSize|useUnsafeRow)
    | sources\.(?!partitionColumnTypeInference).+
    # the engine of streams: what it keeps and when; what a checkpoint fixes is in its offset log
    | streaming\.(?!flatMapGroupsWithState\.skip|multipleWatermark|stateStore\.skipNulls).+
    # what is allowed at all; without it a query is refused
    | allowNamedFunctionArguments | analyzer\..+ | assumeAnsiFalseIfNotPersisted\.enabled
    | binByRelationOperator\.enabled | datetime\.java8API\.enabled | dropDuplicates\..+
    | enforceTypeCoercionBeforeUnionDeduplication\.enabled | experimental\..+ | geospatial\.enabled
    | lateralColumnAlias\..+ | listagg\..+ | operatorPipeSyntaxEnabled | orderingAwareLimitOffset
    | parser\.(eagerEval\w+|singleCharacter\w+\.enabled) | pivotMaxValues
    | prioritizeOrdinalResolutionInSort\.enabled | runCollation\w+\.enabled
    | selfJoinAutoResolveAmbiguity | time(Type|stampNanosTypes)\.enabled | transposeMaxValues
    | tvf\..+
    )""",
    re.VERBOSE,
)


def test_every_setting_of_this_spark_is_judged(spark):
    """A new Spark brings settings, and each either changes what a row means or does not."""
    conf = getattr(spark._jvm.org.apache.spark.sql.internal, "SQLConf$")
    defined = re.findall(
        r"ConfigEntry\(key=(\S+), ", str(conf.__getattr__("MODULE$").getConfigEntries())
    )
    ours = [name for name in defined if name.startswith("spark.sql.")]

    assert len(ours) > 500
    unjudged = [
        name
        for name in sorted(ours)
        if not changes_rows(name) and not WITHOUT_ROWS.fullmatch(name) and "legacy" not in name
    ]
    assert [] == unjudged
    assert [] == [n for n in ours if changes_rows(n) and WITHOUT_ROWS.fullmatch(n)]
