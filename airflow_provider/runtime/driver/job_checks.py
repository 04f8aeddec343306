"""Checks of what a job's function does and declares, before anything is written."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.api.sinks import LocatedSink, MarkedSink, Writer
from airflow_provider.runtime.errors import ConfigError, redaction
from airflow_provider.runtime.errors.fixes import of_caller
from airflow_provider.runtime.jobdir.identity import (
    check_writers,
    identity_of,
    lineage_of,
)
from airflow_provider.runtime.jobdir.run_spec import check_not_in_clear_text, read_secrets
from airflow_provider.runtime.queries.cleaned_sources import (
    check_never_read_again,
    check_read_once,
)
from airflow_provider.runtime.queries.known_bugs import check_allowed, describe
from airflow_provider.runtime.savepoints.catalog import open_savepoint
from airflow_provider.runtime.savepoints.restores import is_begun_from_savepoint
from airflow_provider.runtime.spark.defaults import configured
from airflow_provider.runtime.spark.installation import is_submitted
from airflow_provider.runtime.spark.spark_log import check_event_log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.jobdir.run_spec import RunSpec
    from airflow_provider.runtime.queries.query import QueryDefinition


log = logging.getLogger(__name__)

_STARTS: Final = (
    "a job's function starts no query: write ctx.write(NAME, DF, to=…) in place of "
    "writeStream…start(); or run the file as it is, with {script}"
)
_STOPS: Final = "a job's function does not stop Spark, which ends with the run; leave stop() out"
_here: Final = threading.local()
_lock: Final = threading.Lock()
_guarded: list[tuple[Any, str, Any]] = []
_declarations = 0


@contextlib.contextmanager
def declares_only() -> Iterator[None]:
    """Refuse calls that start a query or stop Spark, in this thread and inside the context."""
    _guard()
    _here.depth = getattr(_here, "depth", 0) + 1
    try:
        yield
    finally:
        _here.depth -= 1
        _release()


def _guard() -> None:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    global _declarations  # noqa: PLW0603 - PySpark's classes are there once in a process, too
    with _lock:
        _declarations += 1
        if _declarations > 1:
            return
        for owner, name, why in (
            (DataStreamWriter, "start", _STARTS),
            (DataStreamWriter, "toTable", _STARTS),
            (SparkSession, "stop", _STOPS),
            (SparkContext, "stop", _STOPS),
        ):
            before = vars(owner)[name]  # not getattr, which would bind a method
            _guarded.append((owner, name, before))
            setattr(owner, name, _refusing(before, why))


def _release() -> None:
    global _declarations  # noqa: PLW0603 - see above
    with _lock:
        _declarations -= 1
        while _declarations == 0 and _guarded:
            owner, name, before = _guarded.pop()
            setattr(owner, name, before)


def _refusing(before: Callable[..., Any], why: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        if getattr(_here, "depth", 0):
            script = of_caller("--script", "script= of the operator")
            raise ConfigError(why.format(script=script))
        return before(*args, **kwargs)

    return refuse


# What returns its arguments' characters; a hash, a cipher or a comparison does not.
_READABLE: Final = re.compile(
    r"base64|cast|coalesce|concat(ws)?|createarray|createnamedstruct|decode|encode|formatstring|hex"
    r"|[lu]case|[lr]pad|lower|reverse|string(l|r)pad|stringrepeat|stringreplace|stringtrim\w*"
    r"|substring|union|upper"
)
_CALL: Final = re.compile(r"(\w+)\(")


def check_kept_secret(spec: RunSpec) -> None:
    """Read the secret parameters of a run; refuse a run that would store or show one."""
    values = read_secrets(spec.secret_params, os.environ)
    if values:
        check_not_in_clear_text(spec, values)
        check_event_log({**({} if is_submitted() else configured(os.environ)), **spec.conf})


def check_names_and_locations(queries: Sequence[QueryDefinition]) -> None:
    """Refuse a secret in a name, a path or a column of a query, or as a key of its state."""
    secrets = redaction.known()
    if not secrets:
        return
    for query in queries:
        for what, text, fix in _clear_texts(query):
            if (name := secrets.find(text)) is not None:
                raise ConfigError(
                    f"query {secrets.redact(query.name)!r}: {what} has the value of the secret "
                    f"parameter {name!r}, and is stored and shown; {fix}"
                )
        _check_keys(query)


def _clear_texts(query: QueryDefinition) -> Iterator[tuple[str, str, str]]:
    leave_out = "leave the secret out of it"
    yield "its name", query.name, leave_out
    for operator in query.operators:
        yield "the name of an operator", operator, leave_out
    for source in query.sources:
        yield "the name of a source", source.name, leave_out
        yield "the path of a source", str(source.source.location().path or ""), leave_out
    for sink in query.all_sinks:
        yield "the name of a sink", sink.name, leave_out
        if isinstance(sink, LocatedSink):
            yield "the path of a sink", sink.location or "", leave_out
    yield "the name of a column", query.df.schema.json(), "give the column a name with alias()"


def _check_keys(query: QueryDefinition) -> None:
    """Refuse a key of the state that a secret can be read from: Spark stores the state's rows."""
    operators = query.fingerprint.operators if query.fingerprint is not None else ()
    for key in (key for operator in operators for key in operator.keys):
        readable = all(_READABLE.fullmatch(name) for name in _CALL.findall(key))
        if name := next((n for n in _marked(key) if readable), None):
            raise ConfigError(
                f"query {query.name!r}: the key {key} groups by the value of the secret parameter "
                f"{name!r}, and Spark stores the keys of its state; group by a hash of it"
            )


def _marked(text: str) -> Iterator[str]:
    for name in redaction.known().values:
        if redaction.marker(name) in text:
            yield name


def check_consumed(spec: RunSpec, queries: Sequence[QueryDefinition]) -> None:
    """Refuse a source that removes files which the job reads elsewhere, or may read again."""
    check_read_once(queries)
    if spec.bootstrap == "discard":
        why = (
            "and a bootstrap publishes none of its rows; leave cleanSource out of it, such as by a "
            "parameter of its own"
        )
        check_never_read_again(queries, why)
    if spec.replayable_runs > 0:
        option = of_caller("--replayable-runs", "on_clear='replay' and replayable_runs")
        why = (
            "and a run that can be replayed has to find it again; leave cleanSource out, and "
            f"remove files when their run is no longer replayable, or leave {option} out"
        )
        check_never_read_again(queries, why)


def check_known_bugs(spec: RunSpec, queries: Sequence[QueryDefinition], version: str) -> None:
    """Refuse queries to which a bug of this Spark gives wrong rows, unless it is allowed."""
    found = {query.name: query.known_bugs for query in queries}
    check_allowed(found, spec.allow_known_bugs, version)
    for name, bugs in found.items():
        for line in describe(bugs):
            log.warning("query=%s %s", name, line)


def check_outputs(
    spec: RunSpec, directory: JobDirectory, queries: Iterable[QueryDefinition]
) -> None:
    """Refuse an output that another job directory has written under this one's address."""
    sinks = [s for query in queries for s in query.sinks if isinstance(s, MarkedSink)]
    if not sinks:
        return
    lineage = {*lineage_of(directory.storage), *_followed_by(spec, directory)}
    for sink in sinks:
        check_writers(sink.name, sink.writers(directory.url), directory.url, lineage)


def _followed_by(spec: RunSpec, directory: JobDirectory) -> list[str]:
    given_up = [spec.replaces_job] if spec.replaces_job is not None else []
    if spec.from_savepoint is None or is_begun_from_savepoint(directory):
        return given_up
    return [*open_savepoint(spec.from_savepoint).record.lineage, *given_up]


def writer_of(directory: JobDirectory) -> Writer | None:
    """Return the directory's identity for sinks to record; None if it has none."""
    identity = identity_of(directory.storage)
    return Writer(directory.url, identity) if identity is not None else None
