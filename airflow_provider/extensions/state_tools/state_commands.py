"""``spark-stream state``: show, query, diff and growth, which only read; and actions that write."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.extensions.state_tools.contents import describe_state
from airflow_provider.extensions.state_tools.diff import diff_states, state_growth
from airflow_provider.extensions.state_tools.open_state import open_state
from airflow_provider.extensions.state_tools.reader import (
    StateReader,
    query_state,
    spark_errors,
    sql_errors,
)
from airflow_provider.runtime.base.extensions import STATE_ACTIONS, load_known
from airflow_provider.runtime.base.typed_json import read_json
from airflow_provider.runtime.cli.command_parser import add_conf, add_job_dir, add_json
from airflow_provider.runtime.cli.output import print_json, text_table
from airflow_provider.runtime.cli.run_command import add_bootstrap
from airflow_provider.runtime.errors import EXIT_OK, ConfigError
from airflow_provider.runtime.jobdir.run_spec import parse_pairs
from airflow_provider.runtime.spark.session import job_session, start_spark, using_spark
from airflow_provider.runtime.spark.versions import silence
from airflow_provider.runtime.storage.open import open_storage, spark_url

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from airflow_provider.extensions.state_tools.contents import State
    from airflow_provider.extensions.state_tools.diff import TableDiff


FORMATS: Final = ("table", "json", "parquet")


_LOCATION: Final = "a savepoint, checkpoint or job directory"

api_version: Final = 1


def add_commands(commands: Any, add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the commands; see :class:`.api.commands.CommandModule`."""
    group = commands.add_parser("state", help="read, make or change the state of streams")
    actions = group.add_subparsers(required=True, metavar="ACTION")
    _add_show(actions, add)
    query = add(actions, "query", _query, "run a SQL query over state")
    add_job_dir(query, "url", metavar="URL", help=_LOCATION)
    query.add_argument("sql", metavar="SQL", help="a query over tables such as QUERY.keyed_state")
    _add_batch(query)
    text = "how rows are written; default: %(default)s"
    query.add_argument("--format", choices=FORMATS, default="table", help=text)
    query.add_argument("--to", metavar="PATH", help="with --format parquet: a new folder")
    add_conf(query)
    diff = add(actions, "diff", _diff, "count the keys that differ between two states")
    diff.add_argument("before", metavar="A", help=_LOCATION)
    diff.add_argument("after", metavar="B", help=_LOCATION)
    diff.add_argument(
        "query", nargs="?", metavar="QUERY", help="only this query; default: all that both have"
    )
    text = "compare the states after these batches; default: the last ones"
    diff.add_argument("--batches", nargs=2, type=int, metavar=("N", "M"), help=text)
    text = "show up to N changed keys of each table, too"
    diff.add_argument("--changes", type=int, default=0, metavar="N", help=text)
    add_json(diff)
    add_conf(diff)
    growth = add(actions, "growth", _growth, "measure the state in each savepoint of a job")
    add_job_dir(growth)
    text = "show bytes only, without Spark"
    growth.add_argument("--bytes-only", action="store_true", help=text)
    add_json(growth)
    add_conf(growth)
    add_bootstrap(actions, add)
    load_known(STATE_ACTIONS, "rewrite")(actions, add)


def _add_show(actions: Any, add: Callable[..., argparse.ArgumentParser]) -> None:
    show = add(actions, "show", _show, "list operators, tables, columns and sizes, without Spark")
    add_job_dir(show, "url", metavar="URL", help=_LOCATION)
    show.add_argument("query", nargs="?", metavar="QUERY", help="only this query")
    show.add_argument("operator", nargs="?", metavar="OPERATOR", help="only this operator")
    _add_batch(show)
    show.add_argument("--rows", action="store_true", help="count the rows, too, with Spark")
    add_json(show)
    add_conf(show)


def _add_batch(command: argparse.ArgumentParser) -> None:
    text = "the state after this batch; default: the last committed one"
    command.add_argument("--batch", type=int, metavar="N", help=text)


# --- show ---------------------------------------------------------------------------------------


def _show(arguments: argparse.Namespace) -> int:
    state = open_state(arguments.url, batch=arguments.batch, query=arguments.query)
    document = describe_state(state, arguments.operator)
    if arguments.rows:
        with state_session(arguments.conf) as spark:
            _count_rows(document, StateReader(spark, state))
    if arguments.json:
        print_json(document)
    else:
        for line in _described(document):
            print(line)
    return EXIT_OK


def _count_rows(document: dict[str, Any], reader: StateReader) -> None:
    for name, query in document["queries"].items():
        for operator in query["operators"]:
            for table in operator["tables"]:
                with spark_errors(query["checkpoint"]):
                    table["rows"] = reader.table(name, table["name"]).count()


def _described(document: dict[str, Any]) -> Iterator[str]:
    job = f", job {document['job']}" if document["job"] else ""
    yield f"{document['kind']} {document['url']}{job}"
    for name, query in document["queries"].items():
        yield f"query {name}: after batch {query['batch']}, watermark {query['watermark']}"
        for source in query["sources"]:
            called = source["name"] or source["id"]
            yield f"  source {called}: {source['finish_state']}, {json.dumps(source['offset'])}"
        if not query["operators"]:
            yield "  no state"
        for operator in query["operators"]:
            yield from _described_operator(operator)


def _described_operator(operator: dict[str, Any]) -> Iterator[str]:
    yield (
        f"  operator {operator['name']}: {operator['kind']}, {operator['provider']}, "
        f"{operator['partitions']} partition(s), {operator['bytes']:,} bytes, "
        f"{operator['finish_state'].replace('_', ' ')}"
    )
    for table in operator["tables"]:
        rows = f", {table['rows']:,} row(s)" if "rows" in table else ""
        yield f"    table {table['name']}{rows}"
        for column in table["columns"]:
            key = ", key" if column["is_key"] else ""
            yield f"      {column['name']} {column['type']}{key}"


# --- query --------------------------------------------------------------------------------------


def _query(arguments: argparse.Namespace) -> int:
    if (arguments.to is not None) != (arguments.format == "parquet"):
        raise ConfigError(
            "--format parquet needs --to PATH, a new folder, and the other formats take none"
        )
    state = open_state(arguments.url, batch=arguments.batch)
    if arguments.to is not None:
        _check_outside(state, arguments.to)
    with state_session(arguments.conf) as spark:
        reader = StateReader(spark, state)
        frame = query_state(reader, arguments.sql)
        with sql_errors(state):
            if arguments.to is not None:
                frame.write.parquet(spark_url(arguments.to))
                print(f"{arguments.to}: written")
            elif arguments.format == "json":
                for line in json_lines(frame):
                    print(line)
            else:
                print_frame(frame)
    return EXIT_OK


def _check_outside(state: State, path: str) -> None:
    target = f"{open_storage(path).url}/"
    if target.startswith(f"{state.url}/"):
        raise ConfigError(
            f"{path}: lies within {state.url}, which is only read; name a folder elsewhere"
        )


# --- diff ---------------------------------------------------------------------------------------


def _diff(arguments: argparse.Namespace) -> int:
    batches: Sequence[int | None] = arguments.batches or (None, None)
    before = open_state(arguments.before, batch=batches[0])
    after = open_state(arguments.after, batch=batches[1])
    for state in (before, after):
        state.check_has_state()
    with state_session(arguments.conf) as spark:
        found = diff_states(StateReader(spark, before), StateReader(spark, after), arguments.query)
        tables = [_described_diff(each, arguments.changes) for each in found]
    if arguments.json:
        print_json({"version": 1, "before": before.url, "after": after.url, "tables": tables})
        return EXIT_OK
    for table in tables:
        counts = table["keys"]
        said = table["reason"] or ", ".join(f"{n:,} {change}" for change, n in counts.items())
        print(f"{table['query']}.{table['table']}: {said}")
        for change in table["changes"]:
            print(f"  {json.dumps(change)}")
    return EXIT_OK


def _described_diff(diff: TableDiff, shown: int) -> dict[str, Any]:
    changes: list[Any] = []
    if diff.frame is not None and shown > 0:
        with spark_errors(f"{diff.query}.{diff.table}"):
            changes = [read_json(line) for line in json_lines(diff.frame.limit(shown))]
    return {
        "query": diff.query,
        "table": diff.table,
        "keys": diff.counts(),
        "reason": diff.reason,
        "changes": changes,
    }


# --- growth -------------------------------------------------------------------------------------


def _growth(arguments: argparse.Namespace) -> int:
    if arguments.bytes_only:
        measures = state_growth(arguments.job_dir)
    else:
        with state_session(arguments.conf) as spark:
            measures = state_growth(arguments.job_dir, spark)
    plain = [dataclasses.asdict(measure) for measure in measures]
    if arguments.json:
        print_json({"version": 1, "measures": plain})
        return EXIT_OK
    columns = ("savepoint", "taken", "query", "batch", "operator", "kind", "bytes", "rows")
    for line in text_table(columns, [[_cell(each[c]) for c in columns] for each in plain]):
        print(line)
    return EXIT_OK


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else str(value)


_SHOWN_ROWS: Final = 1000  # of a table for people, which is held in memory
_TIME_ZONE: Final = "spark.sql.session.timeZone"


def json_lines(frame: DataFrame) -> Iterator[str]:
    """Yield the rows as JSON objects, fetched a partition at a time."""
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

    row = F.to_json(F.struct("*"), {"ignoreNullFields": "false"})
    for each in frame.select(row).toLocalIterator():
        yield str(each[0])


def print_frame(frame: DataFrame) -> None:
    """Print the first rows as a table."""
    shown = _as_text(frame, _SHOWN_ROWS + 1)
    for line in text_table(frame.columns, shown[:_SHOWN_ROWS]):
        print(line)
    if len(shown) > _SHOWN_ROWS:
        print(f"(the first {_SHOWN_ROWS:,} rows; --format json or parquet gives all)")


def _as_text(frame: DataFrame, limit: int) -> list[list[str | None]]:
    names = [f"c{number}" for number in range(len(frame.columns))]
    texts = frame.limit(limit).toDF(*names)
    texts = texts.selectExpr(*(f"CAST({name} AS STRING)" for name in names))
    return [list(row) for row in texts.collect()]


@contextlib.contextmanager
def state_session(conf_pairs: Sequence[str]) -> Iterator[SparkSession]:
    """Yield a session that shows and reads times in UTC. Another session's JVM is left running."""
    from pyspark import SparkContext

    silence()
    conf = {_TIME_ZONE: "UTC", **parse_pairs(conf_pairs, "--conf")}
    app_name = "spark-stream state"
    is_ours = SparkContext._active_spark_context is None
    borrowed = None if is_ours else start_spark(app_name, None, conf)
    with using_spark(borrowed, app_name, None, conf) as spark:
        if is_ours:
            spark.sparkContext.setLogLevel("FATAL")  # errors are printed in one line
        yield job_session(spark, conf)
