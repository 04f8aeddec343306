"""Mistakes that people make first, and the exact text of what they are shown.

``{here}`` is the line of a mistake: one of ``mistaken_jobs.py`` that ends with ``# here``. What goes on
in the next line of the screen is one line here; ``{root}`` is the folder of the test.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from airflow_provider.runtime.errors.explanation import HEADING

JOBS = Path(__file__).with_name("mistaken_jobs.py")
_DETAILS = re.compile(r"(?<=  details: )\S+")


@dataclasses.dataclass(frozen=True)
class Mistake:
    """What somebody does, and what is said of it.

    Attributes:
        what: the mistake, in a few words.
        entry: the job's function; a name alone is one of ``mistaken_jobs.py``.
        exit_code: of the command.
        text: the screen that ends what it prints on stderr.
        options: further arguments; one that begins with ``@`` is the job directory.
        file: what is in ``job.py``.
        environment: variables.
        needs_spark: whether Spark has to look.
    """

    what: str
    entry: str
    exit_code: int
    text: str
    options: tuple[str, ...] = ()
    file: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    needs_spark: bool = False

    def arguments(self, root: Path) -> list[str]:
        """Return the command's arguments, and make what it needs in the folder *root*."""
        (root / "input").mkdir()
        (root / "input" / "a.csv").write_text(
            "2026-01-01 00:00:00,a,1\n2026-01-01 00:01:00,b,x\n", encoding="utf-8"
        )
        (root / "spark" / "jars").mkdir(parents=True)
        (root / "spark" / "jars" / "spark-core_2.12-2.4.8.jar").touch()
        (root / "job.py").write_text(self.file, encoding="utf-8")
        is_whole = ":" in self.entry or "/" in self.entry
        entry = self.entry.replace("{jobs}", str(JOBS)) if is_whole else f"{JOBS}:{self.entry}"
        places = [option[1:] for option in self.options if option.startswith("@")]
        options = [option for option in self.options if not option.startswith("@")]
        filled = [
            *("run", places[0] if places else "{root}/job", "--entry", entry),
            *("--param", "input={root}/input", "--param", "output={root}/output", *options),
        ]
        return [text.replace("{root}", str(root)) for text in filled]

    def variables(self, root: Path) -> dict[str, str]:
        """Return the variables of the environment."""
        return {name: value.replace("{root}", str(root)) for name, value in self.environment}

    def said(self, stderr: str, root: Path) -> str:
        """Return the screen that a command has printed, as :attr:`text` has it."""
        lines = stderr.replace(str(root), "{root}").replace(str(JOBS), "{jobs}")
        lines = re.sub(r"\n    (?! )", " ", lines)
        shown = [line for line in lines.splitlines() if not re.match(r"\d{4}-\d\d-\d\d ", line)]
        text = re.sub(rf"{JOBS.name}:(\d+)", _marked, "\n".join(shown).strip())
        return _DETAILS.sub("{details}", text[text.find(HEADING) :])


def _marked(found: re.Match[str]) -> str:
    """Return a line of the jobs' file as the table has it, if it is one of a mistake."""
    line = JOBS.read_text(encoding="utf-8").splitlines()[int(found[1]) - 1]
    return f"{JOBS.name}:{{here}}" if line.endswith("# here") else found[0]


def table() -> list[str]:
    """Return the lines of the table in docs/errors.md: mistakes that Spark finds, with a way out."""
    head = ["| what is said | what to do | exit code |", "|---|---|---|"]
    shown = [each for each in MISTAKES if each.needs_spark and "  what to do: " in each.text]
    return head + [_row(mistake) for mistake in shown]


def _row(mistake: Mistake) -> str:
    lines = mistake.text.strip().splitlines()
    what = lines[0].removeprefix("spark-stream: error: ")
    remedy = [line for line in lines if line.startswith("  what to do: ")]
    said = what.replace("{jobs}", "jobs.py").replace("{root}", "/data").replace("|", "\\|")
    do = remedy[0].removeprefix("  what to do: ") if remedy else ""
    return f"| {said} | {do} | {mistake.exit_code} |"


MISTAKES = (
    Mistake(
        "a mistyped option",
        "{jobs}:right",
        2,
        r"""
spark-stream: error: there is no option --mdoe; did you mean --mode? spark-stream run --help shows what there is
""",
        options=("--mdoe=streaming",),
    ),
    Mistake(
        "a mistyped value of an option",
        "{jobs}:right",
        2,
        r"""
spark-stream: error: argument --mode: there is no 'stream'; did you mean streaming? spark-stream run --help shows what there is
""",
        options=("--mode=stream",),
    ),
    Mistake(
        "a file without its function",
        "{root}/job.py",
        2,
        r"""
spark-stream: error: --entry {root}/job.py names no function; write {root}/job.py:FUNCTION, or --script {root}/job.py
""",
    ),
    Mistake(
        "a mistyped file",
        "{root}/jbo.py:daily",
        2,
        r"""
spark-stream: error: entry '{root}/jbo.py:daily': there is no file {root}/jbo.py; did you mean {root}/job.py?
""",
    ),
    Mistake(
        "a job's file that is not there",
        "nowhere.py:daily",
        2,
        r"""
spark-stream: error: entry 'nowhere.py:daily': there is no file nowhere.py; correct the path
""",
    ),
    Mistake(
        "an entry without a function",
        "{root}/daily",
        2,
        r"""
spark-stream: error: entry '{root}/daily': write FILE.py:FUNCTION or package.module:FUNCTION
""",
    ),
    Mistake(
        "a function by a mistyped name",
        "{jobs}:rihgt",
        2,
        r"""
spark-stream: error: entry '{jobs}:rihgt': {jobs} has no function 'rihgt'; did you mean 'right'?
""",
    ),
    Mistake(
        "a module that is not there",
        "shop.jobs:daily",
        2,
        r"""
spark-stream: error: entry 'shop.jobs:daily': importing shop.jobs failed: ModuleNotFoundError: No module named 'shop'
  what to do: correct the name, or install the package for the Python that runs this
  exit code 2: nothing was written
  details: {details}
""",
    ),
    Mistake(
        "a syntax error in the job's file",
        "{root}/job.py:daily",
        2,
        r"""
spark-stream: error: entry '{root}/job.py:daily': importing {root}/job.py failed: SyntaxError: expected ':' (job.py, line 1)
  where: job.py:1
  what to do: correct the job there
  exit code 2: nothing was written
  details: {details}
""",
        file="def daily(ctx)\n    pass\n",
    ),
    Mistake(
        "a package that is not installed",
        "{root}/job.py:daily",
        2,
        r"""
spark-stream: error: entry '{root}/job.py:daily': importing {root}/job.py failed: ModuleNotFoundError: No module named 'prices_of_the_shop'
  where: job.py:1
  what to do: correct the name, or install the package for the Python that runs this
  exit code 2: nothing was written
  details: {details}
""",
        file="import prices_of_the_shop\n\n\ndef daily(ctx):\n    pass\n",
    ),
    Mistake(
        "a job's function without an argument",
        "{jobs}:no_argument",
        2,
        r"""
spark-stream: error: entry '{jobs}:no_argument': the job's function is called with one argument, ctx (too many positional arguments); write def no_argument(ctx): and read the rest from ctx.params
  where: mistaken_jobs.py:{here}
  exit code 2: nothing was written
""",
    ),
    Mistake(
        "a job's function with two arguments",
        "{jobs}:two_arguments",
        2,
        r"""
spark-stream: error: entry '{jobs}:two_arguments': the job's function is called with one argument, ctx (missing a required argument: 'folder'); write def two_arguments(ctx): and read the rest from ctx.params
  where: mistaken_jobs.py:{here}
  exit code 2: nothing was written
""",
    ),
    Mistake(
        "an async function",
        "{root}/job.py:daily",
        2,
        r"""
spark-stream: error: entry '{root}/job.py:daily': daily is an async function, so that a call does nothing; write def daily(ctx):
  where: job.py:1
  exit code 2: nothing was written
""",
        file="async def daily(ctx):\n    pass\n",
    ),
    Mistake(
        "a job's file that starts Spark itself",
        "{root}/job.py:daily",
        2,
        r"""
spark-stream: error: entry '{root}/job.py:daily': importing {root}/job.py starts Spark, which would not get the run's settings; take ctx.spark in the function, and make no session outside of it
""",
        file="import pyspark\n\npyspark.SparkContext._active_spark_context = pyspark.started\n\n\ndef daily(ctx):\n    pass\n",
    ),
    Mistake(
        "a parameter without a value",
        "{jobs}:right",
        2,
        r"""
spark-stream: error: --param 'days': write --param NAME=VALUE
""",
        options=("--param=days",),
    ),
    Mistake(
        "a duration that is none",
        "{jobs}:right",
        2,
        r"""
spark-stream: error: --trigger: 'soon' is not a duration; write for example '10 seconds', '1 minute 30 seconds', 'PT10S' or a number of seconds
""",
        options=("--trigger=soon",),
    ),
    Mistake(
        "a time between batches for a run that ends",
        "{jobs}:right",
        2,
        r"""
spark-stream: error: trigger is the time between batches of a run with until='stopped'; with until='end' batches follow each other at once, so leave it out
""",
        options=("--until=end", "--trigger=5 seconds"),
    ),
    Mistake(
        "an interval that is none",
        "{jobs}:right",
        2,
        r"""
spark-stream: error: --interval today tomorrow: write two times such as 2026-01-01T00:00:00Z
""",
        options=("--interval", "today", "tomorrow"),
    ),
    Mistake(
        "an interval that ends before it starts",
        "{jobs}:right",
        2,
        r"""
spark-stream: error: --interval 2026-01-02 2026-01-01: the end is before the start; exchange them
""",
        options=("--interval", "2026-01-02", "2026-01-01"),
    ),
    Mistake(
        "a secret whose variable is not set",
        "{jobs}:right",
        2,
        r"""
spark-stream: error: parameter 'password' is a secret that is read from the environment variable DB_PASWORD, which is not set; set it for this command
""",
        options=("--secret-param=password=DB_PASWORD",),
    ),
    Mistake(
        "a savepoint that is not there",
        "{jobs}:right",
        2,
        r"""
spark-stream: error: {root}/saved: no savepoint there; check the path
""",
        options=("--from-savepoint={root}/saved",),
    ),
    Mistake(
        "a run id with a slash",
        "{jobs}:right",
        2,
        r"""
spark-stream: error: run id '2026/01': use letters, digits and _ . + = - only, beginning with a letter or a digit, 200 at most
""",
        options=("--run-id=2026/01",),
    ),
    Mistake(
        "BATCH with an end of streams",
        "{jobs}:right",
        2,
        r"""
spark-stream: error: mode 'batch' reads everything and ends, so until=None, at_end='suspend' cannot be had; leave them out, or use mode 'streaming'
""",
        options=("--mode=batch", "--at-end=suspend"),
    ),
    Mistake(
        "a job directory with a scheme that is not known",
        "{jobs}:right",
        2,
        r"""
spark-stream: error: ftp://host/job: the scheme 'ftp' has no tested atomic put-if-absent here, which the lease and the final checkpoint need; use one of: abfs, abfss, az, file, gcs, gs, local, memory, s3, s3a, webhdfs
""",
        options=("@ftp://host/job",),
    ),
    Mistake(
        "a job directory with one slash",
        "{jobs}:right",
        2,
        r"""
spark-stream: error: s3:/bucket/job: one slash after the scheme 's3'; write s3://…, or ./s3:/bucket/job for a folder of that name
""",
        options=("@s3:/bucket/job",),
    ),
    Mistake(
        "a job directory that is a file",
        "{jobs}:right",
        2,
        r"""
spark-stream: error: {root}/input/a.csv: is a file, and a job directory is a folder; use another path
""",
        options=("@{root}/input/a.csv",),
    ),
    Mistake(
        "a job directory below a file",
        "{jobs}:right",
        2,
        r"""
spark-stream: error: {root}/input/a.csv/job: {root}/input/a.csv is a file, and a job directory is a folder; use another path
""",
        options=("@{root}/input/a.csv/job",),
    ),
    Mistake(
        "a store that does not answer",
        "{jobs}:right",
        3,
        r"""
spark-stream: error: s3://bucket/job/job.json: the store did not answer (EndpointConnectionError: Could not connect to the endpoint URL: "http://127.0.0.1:1/bucket/job/job.json")
  what to do: check that it runs and that its address is right; the same command tries again
  exit code 3: RECOVERABLE, the same command resumes; what was committed stays
""",
        options=("@s3://bucket/job",),
        environment=(("AWS_ENDPOINT_URL", "http://127.0.0.1:1"),),
    ),
    Mistake(
        "Java that is not installed",
        "{jobs}:right",
        2,
        r"""
spark-stream: error: Spark needs Java and there is none on PATH; install a Java runtime 17 (Debian, Ubuntu: openjdk-17-jre-headless), on which every Spark runs, or set JAVA_HOME to one
""",
        environment=(("PATH", ""),),
    ),
    Mistake(
        "a JAVA_HOME without Java",
        "{jobs}:right",
        2,
        r"""
spark-stream: error: JAVA_HOME is {root}, which has no bin/java; install a Java runtime 17 (Debian, Ubuntu: openjdk-17-jre-headless), on which every Spark runs, or set JAVA_HOME to one
""",
        environment=(("JAVA_HOME", "{root}"),),
    ),
    Mistake(
        "a SPARK_HOME without Spark",
        "{jobs}:right",
        2,
        r"""
spark-stream: error: SPARK_HOME is {root}/spork, which has no bin/spark-submit; correct it, or unset it
""",
        environment=(("SPARK_HOME", "{root}/spork"),),
    ),
    Mistake(
        "a Spark that is too old",
        "{jobs}:right",
        2,
        r"""
spark-stream: error: {root}/spark is Spark 2.4.8, and this package runs on Spark 3.5 to 4.x; install pyspark>=3.5,<5, or set SPARK_HOME to such a Spark
""",
        environment=(("SPARK_HOME", "{root}/spark"),),
    ),
    Mistake(
        "a mistyped name of a setting",
        "{jobs}:right",
        2,
        r"""
spark-stream: error: --conf spark.sql.shufle.partitions: Spark has no such setting, and has spark.sql.shuffle.partitions; correct the name, or set spark.stream.checkNames=false if it is right
""",
        options=("--conf=spark.sql.shufle.partitions=4",),
    ),
    Mistake(
        "a setting without spark.",
        "{jobs}:right",
        2,
        r"""
spark-stream: error: --conf sql.shuffle.partitions: Spark has no such setting, and has spark.sql.shuffle.partitions; correct the name, or set spark.stream.checkNames=false if it is right
""",
        options=("--conf=sql.shuffle.partitions=4",),
    ),
    Mistake(
        "a master that is none",
        "{jobs}:right",
        2,
        r"""
spark-stream: error: --master localhost: Spark knows no such master; write local[*], local[2], spark://HOST:PORT, yarn or k8s://HOST:PORT
""",
        options=("--master=localhost",),
    ),
    Mistake(
        "a heap in a unit that Java does not know",
        "{jobs}:right",
        2,
        r"""
spark-stream: error: --conf spark.driver.memory=4gb: that is no size; write a number and one of k, m, g and t, such as 4g
""",
        options=("--conf=spark.driver.memory=4gb",),
    ),
    Mistake(
        "a master of Spark Connect",
        "{jobs}:right",
        2,
        r"""
spark-stream: error: --master sc://localhost requests Spark Connect, and a driver needs a JVM of its own; use local[*], spark://, yarn or k8s:// as the master, and nothing of Spark Connect beside it
""",
        options=("--master=sc://localhost",),
    ),
    Mistake(
        "a column that is not there",
        "wrong_column",
        2,
        r"""
spark-stream: error: there is no column `usr`
  where: mistaken_jobs.py:{here}
  why: ExtendedAnalysisException: [UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable, or function parameter with name `usr` cannot be resolved. Did you mean one of the following? [`ts`, `user`, `v`]. SQLSTATE: 42703;
  what to do: did you mean `user`? Others are `ts`, `v`
  exit code 2: nothing was written
  details: {details}
""",
        needs_spark=True,
    ),
    Mistake(
        "a column that is not there, in SQL",
        "wrong_column_in_sql",
        2,
        r"""
spark-stream: error: there is no column `usr`
  where: mistaken_jobs.py:{here}
  why: ExtendedAnalysisException: [UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable, or function parameter with name `usr` cannot be resolved. Did you mean one of the following? [`ts`, `user`, `v`]. SQLSTATE: 42703; line 1 pos 7;
  what to do: did you mean `user`? Others are `ts`, `v`
  exit code 2: nothing was written
  details: {details}
""",
        needs_spark=True,
    ),
    Mistake(
        "SQL that is wrong",
        "wrong_sql",
        2,
        r"""
spark-stream: error: the SQL is wrong at 'SELEC'
  where: mistaken_jobs.py:{here}
  why: ParseException: [PARSE_SYNTAX_ERROR] Syntax error at or near 'SELEC'. SQLSTATE: 42601 (line 1, pos 0)
  what to do: correct the SQL there
  exit code 2: nothing was written
  details: {details}
""",
        needs_spark=True,
    ),
    Mistake(
        "a view that is not there",
        "wrong_table_in_sql",
        2,
        r"""
spark-stream: error: there is no table or view `click`
  where: mistaken_jobs.py:{here}
  why: ExtendedAnalysisException: [TABLE_OR_VIEW_NOT_FOUND] The table or view `click` cannot be found. Verify the spelling and correctness of the schema and catalog.
  what to do: correct the name, or make the view with df.createOrReplaceTempView(…) before
  exit code 2: nothing was written
  details: {details}
""",
        needs_spark=True,
    ),
    Mistake(
        "an SQL function that is not there",
        "wrong_function_in_sql",
        2,
        r"""
spark-stream: error: there is no SQL function `uper`
  where: mistaken_jobs.py:{here}
  why: AnalysisException: [UNRESOLVED_ROUTINE] Cannot resolve routine `uper` on search path [`system`.`builtin`, `system`.`session`, `spark_catalog`.`default`]. SQLSTATE: 42883; line 1 pos 0
  what to do: correct the name, or register yours with ctx.spark.udf.register(…)
  exit code 2: nothing was written
  details: {details}
""",
        needs_spark=True,
    ),
    Mistake(
        "an attribute that is no column",
        "wrong_attribute",
        2,
        r"""
spark-stream: error: a DataFrame has no column or method usr (this is PySpark 4.3.0; another version may have it)
  where: mistaken_jobs.py:{here}
  why: PySparkAttributeError: [ATTRIBUTE_NOT_SUPPORTED] Attribute `usr` is not supported.
  what to do: correct the name; df.columns has its columns
  exit code 2: nothing was written
  details: {details}
""",
        needs_spark=True,
    ),
    Mistake(
        "types that do not fit",
        "wrong_types",
        2,
        r"""
spark-stream: error: the types of "(v + array(v))" do not fit
  where: mistaken_jobs.py:{here}
  why: ExtendedAnalysisException: [DATATYPE_MISMATCH.BINARY_OP_DIFF_TYPES] Cannot resolve "(v + array(v))" due to data type mismatch: the left and right operands of the binary operator have incompatible types ("INT" and "ARRAY<INT>"). SQLSTATE: 42K09;
  what to do: cast one of them to the other's type
  exit code 2: nothing was written
  details: {details}
""",
        needs_spark=True,
    ),
    Mistake(
        "a format that is not there",
        "wrong_format",
        2,
        r"""
spark-stream: error: source 'clicks' (cvs at {root}/input) cannot be read: Spark has no format 'cvs'
  where: mistaken_jobs.py:{here}
  why: SparkClassNotFoundException: [DATA_SOURCE_NOT_FOUND] Failed to find the data source: cvs. Make sure the provider name is correct and the package is properly registered and compatible with your Spark version. SQLSTATE: 42K02
  what to do: did you mean 'csv'? Spark's own are csv, json, orc, parquet, text and rate; others need their package, as in --conf spark.jars.packages=…
  exit code 2: nothing was written
  details: {details}
""",
        needs_spark=True,
    ),
    Mistake(
        "a source without a schema",
        "no_schema",
        2,
        r"""
spark-stream: error: source 'clicks' (csv at {root}/input) cannot be read: a stream of files needs a schema
  where: mistaken_jobs.py:{here}
  why: IllegalArgumentException: Schema must be specified when creating a streaming source DataFrame. If some files already exist in the directory, then depending on the file format you may be able to create a static DataFrame on that directory with 'spark.read.load(directory)' and infer schema from it.
  what to do: give ctx.read a schema, such as schema="ts timestamp, user string"
  exit code 2: nothing was written
  details: {details}
""",
        needs_spark=True,
    ),
    Mistake(
        "a type that is not there",
        "bad_schema",
        2,
        r"""
spark-stream: error: source 'clicks' (csv at {root}/input) cannot be read: the schema has a type "STRIN" that Spark does not have
  where: mistaken_jobs.py:{here}
  why: ParseException: [UNSUPPORTED_DATATYPE] Unsupported data type "STRIN". SQLSTATE: 0A000 (line 1, pos 19)
  what to do: use one of string, int, bigint, double, boolean, date, timestamp, …
  exit code 2: nothing was written
  details: {details}
""",
        needs_spark=True,
    ),
    Mistake(
        "an input that is not there",
        "missing_input",
        3,
        r"""
spark-stream: error: source 'clicks' (csv at {root}/inputs) cannot be read: the input path does not exist: {root}/inputs
  where: mistaken_jobs.py:{here}
  why: AnalysisException: [PATH_NOT_FOUND] Path does not exist: {root}/inputs. SQLSTATE: 42K03
  what to do: deliver it, correct the path, or make the folder: it may be empty
  exit code 3: DATA_MISSING, nothing was written; the same command tries again
  details: {details}
""",
        needs_spark=True,
    ),
    Mistake(
        "a watermark on a column that is not there",
        "wrong_watermark_column",
        2,
        r"""
spark-stream: error: source 'clicks' (csv at {root}/input) cannot be read: there is no column `time`
  where: mistaken_jobs.py:{here}
  why: ExtendedAnalysisException: [UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable, or function parameter with name `time` cannot be resolved. Did you mean one of the following? [`ts`, `v`, `user`]. SQLSTATE: 42703;
  what to do: did you mean `ts`? Others are `v`, `user`
  exit code 2: nothing was written
  details: {details}
""",
        needs_spark=True,
    ),
    Mistake(
        "a watermark on text",
        "watermark_on_text",
        2,
        r"""
spark-stream: error: source 'clicks' (csv at {root}/input) cannot be read: a watermark needs a timestamp, and `user` is "STRING"
  where: mistaken_jobs.py:{here}
  why: ExtendedAnalysisException: [EVENT_TIME_IS_NOT_ON_TIMESTAMP_TYPE] The event time `user` has the invalid type "STRING", but expected "TIMESTAMP". SQLSTATE: 42K09;
  what to do: name a timestamp column, or make the column one: declare it timestamp in schema=
  exit code 2: nothing was written
  details: {details}
""",
        needs_spark=True,
    ),
    Mistake(
        "a delay that is none",
        "bad_watermark_delay",
        2,
        r"""
spark-stream: error: source 'clicks' (csv at {root}/input) cannot be read: 'ten minutes' is no interval
  where: mistaken_jobs.py:{here}
  why: AnalysisException: [CANNOT_PARSE_INTERVAL] Unable to parse 'ten minutes'. Please ensure that the value provided is in a valid format for defining an interval. You can reference the documentation for the correct format. If the issue persists, please double check that the input value is not null or empty and try again. SQLSTATE: 22006
  what to do: write a number and a unit, as in '10 minutes'
  exit code 2: nothing was written
  details: {details}
""",
        needs_spark=True,
    ),
    Mistake(
        "an aggregation without a watermark",
        "no_watermark",
        2,
        r"""
spark-stream: error: query 'counts': Spark cannot run it as a stream: Spark cannot run streaming aggregations without watermark in output mode append
  where: mistaken_jobs.py:{here}
  why: AnalysisException: [STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION] Invalid streaming output mode: append. This output mode is not supported for streaming aggregations without watermark on streaming DataFrames/DataSets. SQLSTATE: 42KDE
  what to do: BATCH can run it: --mode batch; or aggregate in append with a watermark=(column, delay) and F.window(column, …), or choose another output_mode, as far as the sink takes it
  exit code 2: nothing was written
  details: {details}
""",
        options=("--mode=streaming",),
        needs_spark=True,
    ),
    Mistake(
        "a stream that is sorted",
        "sorted_stream",
        2,
        r"""
spark-stream: error: query 'counts': Spark cannot run it as a stream: a stream cannot be sorted, since its last row never comes
  where: mistaken_jobs.py:{here}
  why: AnalysisException: Sorting is not supported on streaming DataFrames/Datasets, unless it is on aggregated DataFrame/Dataset in Complete output mode;
  what to do: BATCH can run it: --mode batch; or leave orderBy out, and sort what you read from the output
  exit code 2: nothing was written
  details: {details}
""",
        options=("--mode=streaming",),
        needs_spark=True,
    ),
    Mistake(
        "two limits of a source",
        "two_limits",
        2,
        r"""
spark-stream: error: query 'counts': Spark cannot run it as a stream: Options 'maxFilesPerTrigger' and 'maxBytesPerTrigger' can't be both set at the same time
  where: mistaken_jobs.py:{here}, source 'clicks'
  what to do: correct the job there
  exit code 2: nothing was written
  details: {details}
""",
        needs_spark=True,
    ),
    Mistake(
        "an aggregation in pandas of a stream",
        "pandas_mean_of_a_stream",
        2,
        r"""
spark-stream: error: query 'means': Spark cannot run it as a stream: Streaming aggregation doesn't support group aggregate pandas UDF
  where: mistaken_jobs.py:{here}
  what to do: correct the job there
  exit code 2: nothing was written
  details: {details}
""",
        needs_spark=True,
    ),
    Mistake(
        "a Kafka sink without its connector",
        "to_kafka_without_jar",
        2,
        r"""
spark-stream: error: query 'counts': the sink spark:kafka:t: this Spark has no connector for Kafka; run with --conf spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:4.3.0
  where: mistaken_jobs.py:{here}
  exit code 2: nothing was written
""",
        needs_spark=True,
    ),
    Mistake(
        "count() in the job's function",
        "counted",
        2,
        r"""
spark-stream: error: the job's function only declares its queries, and computes with a stream
  where: mistaken_jobs.py:{here}
  why: AnalysisException: Queries with streaming sources must be executed with writeStream.start(), or from a streaming table or flow definition within a Spark Declarative Pipeline.;
  what to do: leave count(), show(), collect() and the like out, and write the DataFrame with ctx.write
  exit code 2: nothing was written
  details: {details}
""",
        needs_spark=True,
    ),
    Mistake(
        "writeStream.start() in the job's function",
        "starts_by_itself",
        2,
        r"""
spark-stream: error: a job's function starts no query: write ctx.write(NAME, DF, to=…) in place of writeStream…start(); or run the file as it is, with --script
  where: mistaken_jobs.py:{here}
  exit code 2: nothing was written
""",
        needs_spark=True,
    ),
    Mistake(
        "writeStream.toTable() in the job's function",
        "into_a_table",
        2,
        r"""
spark-stream: error: a job's function starts no query: write ctx.write(NAME, DF, to=…) in place of writeStream…start(); or run the file as it is, with --script
  where: mistaken_jobs.py:{here}
  exit code 2: nothing was written
""",
        needs_spark=True,
    ),
    Mistake(
        "spark.stop() in the job's function",
        "stops_spark",
        2,
        r"""
spark-stream: error: a job's function does not stop Spark, which ends with the run; leave stop() out
  where: mistaken_jobs.py:{here}
  exit code 2: nothing was written
""",
        needs_spark=True,
    ),
    Mistake(
        "a watermark without its column",
        "delay_alone",
        2,
        r"""
spark-stream: error: source 'clicks': watermark='10 minutes' is no pair; write watermark=(COLUMN, DELAY), such as watermark=('ts', '10 minutes')
  where: mistaken_jobs.py:{here}
  exit code 2: nothing was written
""",
        needs_spark=True,
    ),
    Mistake(
        "an output that is None",
        "output_of_none",
        2,
        r"""
spark-stream: error: files(None): this names no folder; write files(ctx.params['output']), or a path
  where: mistaken_jobs.py:{here}
  exit code 2: nothing was written
""",
        needs_spark=True,
    ),
    Mistake(
        "a table in the place of a stream",
        "table_written",
        2,
        r"""
spark-stream: error: query 'counts': not a streaming DataFrame; begin with ctx.read
  where: mistaken_jobs.py:{here}
  exit code 2: nothing was written
""",
        needs_spark=True,
    ),
    Mistake(
        "no ctx.write",
        "nothing_written",
        2,
        r"""
spark-stream: error: entry '{jobs}:nothing_written': the function wrote no query; call ctx.write(name, df, to=…)
  where: mistaken_jobs.py:{here}
  exit code 2: nothing was written
""",
        needs_spark=True,
    ),
    Mistake(
        "two queries of one name",
        "one_name_twice",
        2,
        r"""
spark-stream: error: query 'counts' is written twice; give each query a name of its own
  where: mistaken_jobs.py:{here}
  exit code 2: nothing was written
""",
        needs_spark=True,
    ),
    Mistake(
        "an output in the input",
        "below_its_input",
        2,
        r"""
spark-stream: error: query 'counts' writes to {root}/input/out, which source 'clicks' reads, so that it would read its own rows; write to a folder outside of it
  where: mistaken_jobs.py:{here}
  exit code 2: nothing was written
""",
        needs_spark=True,
    ),
    Mistake(
        "two outputs in one folder",
        "one_folder_twice",
        2,
        r"""
spark-stream: error: queries 'counts' and 'again' both write to {root}/output, where readers could not tell them apart; union them before one ctx.write, or give each a folder of its own
  where: mistaken_jobs.py:{here}
  exit code 2: nothing was written
""",
        needs_spark=True,
    ),
    Mistake(
        "an output in the job directory",
        "in_the_job_directory",
        2,
        r"""
spark-stream: error: query 'counts' writes to {root}/job/out, which is in the job directory {root}/job; write to a folder outside of it, or take another job directory
  where: mistaken_jobs.py:{here}
  exit code 2: nothing was written
""",
        needs_spark=True,
    ),
    Mistake(
        "a path in the place of a sink",
        "path_as_sink",
        2,
        r"""
spark-stream: error: query 'counts': unknown sink '{root}/output'; use files(…) or a sink of your own
  where: mistaken_jobs.py:{here}
  exit code 2: nothing was written
""",
        needs_spark=True,
    ),
    Mistake(
        "an output mode that is not there",
        "bad_output_mode",
        2,
        r"""
spark-stream: error: query 'counts': output_mode 'overwrite' is none; use one of append, update, complete
  where: mistaken_jobs.py:{here}
  exit code 2: nothing was written
""",
        needs_spark=True,
    ),
    Mistake(
        "files in output mode update",
        "update_to_files",
        2,
        r"""
spark-stream: error: files:{root}/output: files can only be added to, and output_mode is 'update'; use 'append'
  where: mistaken_jobs.py:{here}
  exit code 2: nothing was written
""",
        needs_spark=True,
    ),
    Mistake(
        "files of a format that is not there",
        "bad_sink_format",
        2,
        r"""
spark-stream: error: files:{root}/output: unknown format 'paquet'; use one of parquet, json, csv, orc
  where: mistaken_jobs.py:{here}
  exit code 2: nothing was written
""",
        needs_spark=True,
    ),
    Mistake(
        "a mistyped parameter",
        "param_with_default",
        2,
        r"""
spark-stream: error: parameter 'treshold': the job's function does not read it, and looks for 'threshold', which is not given; correct the name, or leave it out
""",
        options=("--param=treshold=2",),
        needs_spark=True,
    ),
    Mistake(
        "a parameter that is missing",
        "missing_param",
        2,
        r"""
spark-stream: error: the job needs a parameter 'folder' (given: input, output); pass --param folder=VALUE
  where: mistaken_jobs.py:{here}
  exit code 2: nothing was written
""",
        needs_spark=True,
    ),
    Mistake(
        "a mistyped option of a source",
        "unknown_option",
        2,
        r"""
spark-stream: error: source 'clicks': csv has no option 'maxFilesPerTriger', which Spark would ignore; use 'maxFilesPerTrigger'
  where: mistaken_jobs.py:{here}
  exit code 2: nothing was written
""",
        needs_spark=True,
    ),
    Mistake(
        "an error of the job's own",
        "divides",
        2,
        r"""
spark-stream: error: ZeroDivisionError: integer division or modulo by zero
  where: mistaken_jobs.py:{here}
  what to do: correct the job there
  exit code 2: nothing was written
  details: {details}
""",
        needs_spark=True,
    ),
    Mistake(
        "a function that fails on a row",
        "udf_raises",
        4,
        r"""
spark-stream: error: KeyError: 'b'
  where: mistaken_jobs.py:{here}, query 'counts'
  what to do: correct the job, its options, its rights or the row
  exit code 4: NON_RECOVERABLE, a retry alone cannot help; what was committed stays
  details: {details}
""",
        needs_spark=True,
    ),
    Mistake(
        "a module that the workers have not",
        "udf_not_shipped",
        4,
        r"""
spark-stream: error: ModuleNotFoundError: No module named 'prices_of_the_shop'
  where: mistaken_jobs.py:{here}, query 'counts'
  what to do: install it where Spark's workers run, or ship the file: --conf spark.submit.pyFiles=…
  exit code 4: NON_RECOVERABLE, a retry alone cannot help; what was committed stays
  details: {details}
""",
        needs_spark=True,
    ),
    Mistake(
        "the session in a function of the workers",
        "udf_takes_the_session",
        2,
        r"""
spark-stream: error: a function that runs in Spark's workers uses the Spark session, or ctx
  where: mistaken_jobs.py:{here}
  why: PySparkRuntimeError: [CONTEXT_ONLY_VALID_ON_DRIVER] It appears that you are attempting to reference SparkContext from a broadcast variable, action, or transformation. SparkContext can only be used on the driver, not in code that runs on workers. For more information, see SPARK-5063.
  what to do: read what it needs before, into a plain variable, and use that in the function
  exit code 2: nothing was written
  details: {details}
""",
        needs_spark=True,
    ),
    Mistake(
        "a row that does not fit the schema",
        "failfast",
        4,
        r"""
spark-stream: error: a row cannot be read by the schema: [1767225660000000,b,null]
  where: query 'counts', source 'clicks', input {root}/input/a.csv
  why: NumberFormatException: For input string: "x"
  what to do: correct the row or the schema, or read with options={'mode': 'PERMISSIVE'}, which gives NULL
  exit code 4: NON_RECOVERABLE, a retry alone cannot help; what was committed stays
  details: {details}
""",
        needs_spark=True,
    ),
    Mistake(
        "a file of another format",
        "parquet",
        3,
        r"""
spark-stream: error: the file could not be read: file://{root}/input/a.csv
  where: query 'counts', source 'clicks', input {root}/input/a.csv
  why: RuntimeException: file:{root}/input/a.csv is not a Parquet file. Expected magic number at tail, but found [98, 44, 120, 10]
  what to do: look at the file; then give the command again
  exit code 3: DATA_MISSING, the same command resumes; what was committed stays
  details: {details}
""",
        needs_spark=True,
    ),
    Mistake(
        "a value that cannot be cast",
        "cast",
        4,
        r"""
spark-stream: error: the value 'a' is no "INT"
  where: query 'counts'
  why: SparkNumberFormatException: [CAST_INVALID_INPUT] The value 'a' of the type "STRING" cannot be cast to "INT" because it is malformed. Correct the value as per the syntax, or change its target type. Use `try_cast` to tolerate malformed input and return NULL instead. SQLSTATE: 22018
  what to do: correct the row, or use try_cast, which gives NULL
  exit code 4: NON_RECOVERABLE, a retry alone cannot help; what was committed stays
  details: {details}
""",
        options=("--conf=spark.sql.ansi.enabled=true",),
        needs_spark=True,
    ),
    Mistake(
        "a value that a setting cannot have",
        "right",
        2,
        r"""
spark-stream: error: the setting spark.sql.shuffle.partitions cannot be 'two'
  why: SparkIllegalArgumentException: [INVALID_CONF_VALUE.TYPE_MISMATCH] The value 'two' in the config "spark.sql.shuffle.partitions" is invalid. It should be a/an 'int' value. SQLSTATE: 22022
  what to do: correct it in --conf, or in Spark's own configuration
  exit code 2: nothing was written
  details: {details}
""",
        options=("--conf=spark.sql.shuffle.partitions=two",),
        needs_spark=True,
    ),
    Mistake(
        "a PostgreSQL that does not answer",
        "to_sql",
        3,
        r"""
spark-stream: error: sql:127.0.0.1/shop/counts: connection failed: connection to server at "127.0.0.1", port 1 failed: Connection refused\n Is the server running on that host and accepting TCP/IP connections?
  where: mistaken_jobs.py:{here}
  what to do: check that it runs and that its address is right; the same command tries again
  exit code 3: RECOVERABLE, nothing was written; the same command tries again
""",
        options=("--param=dsn=postgresql://127.0.0.1:1/shop",),
        needs_spark=True,
    ),
    Mistake(
        "a Kafka that does not answer",
        "kafka_away",
        3,
        r"""
spark-stream: error: source 'clicks' (spark-stream-kafka): Kafka at 127.0.0.1:1 does not answer within 15 s: 127.0.0.1:1/bootstrap: Connect to ipv4#127.0.0.1:1 failed: Connection refused; see option kafka.bootstrap.servers, and whether it runs
  where: mistaken_jobs.py:{here}
  what to do: check that it runs and that its address is right; the same command tries again
  exit code 3: RECOVERABLE, nothing was written; the same command tries again
  details: {details}
""",
        needs_spark=True,
    ),
)
