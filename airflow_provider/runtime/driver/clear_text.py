"""Clear text of a job: refuses secret parameters in what a run stores and shows as it is.

Names, addresses and keys of the state cannot be redacted: they are how a run finds its data again.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime import redaction
from airflow_provider.runtime.api.sinks import LocatedSink
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.clear_text import check_not_in_clear_text
from airflow_provider.runtime.jobdir.run_options import read_secrets
from airflow_provider.runtime.spark.defaults import configured
from airflow_provider.runtime.spark.installation import is_submitted
from airflow_provider.runtime.spark.secrecy import check_event_log

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow_provider.runtime.api.sinks import NamedSink
    from airflow_provider.runtime.jobdir.run_spec import RunSpec
    from airflow_provider.runtime.queries.query import QueryDefinition

# What returns its arguments' characters; a hash, a cipher or a comparison does not.
_READABLE: Final = re.compile(
    r"base64|cast|coalesce|concat(ws)?|createarray|createnamedstruct|decode|encode|formatstring|hex"
    r"|[lu]case|[lr]pad|lower|reverse|string(l|r)pad|stringrepeat|stringreplace|stringtrim\w*"
    r"|substring|union|upper"
)
_CALL: Final = re.compile(r"(\w+)\(")


def check_kept_secret(spec: RunSpec) -> None:
    """Read the secret parameters of a run; refuse a run that would store or show one.

    Raises:
        ConfigError: a variable is not set, a value is also given in the clear, or Spark would write
            an event log.
    """
    values = read_secrets(spec.secret_params, os.environ)
    if values:
        check_not_in_clear_text(spec, values)
        check_event_log({**({} if is_submitted() else configured(os.environ)), **spec.conf})


def check_names_and_places(queries: Sequence[QueryDefinition]) -> None:
    """Refuse a secret in a name, a path or a column of a job's queries, or as a key of their state.

    Raises:
        ConfigError: the message names the parameter and the query, and no value.
    """
    secrets = redaction.known()
    if not secrets:
        return
    for query in queries:
        for what, text, way_out in _clear_texts(query):
            if (name := secrets.find(text)) is not None:
                msg = (
                    f"query {secrets.redact(query.name)!r}: {what} has the value of the secret "
                    f"parameter {name!r}, and is stored and shown; {way_out}"
                )
                raise ConfigError(msg)
        _check_keys(query)


def _clear_texts(query: QueryDefinition) -> Iterator[tuple[str, str, str]]:
    leave_out = "leave the secret out of it"
    yield "its name", query.name, leave_out
    for operator in query.operators:
        yield "the name of an operator", operator, leave_out
    for source in query.sources:
        yield "the name of a source", source.name, leave_out
        yield "the path of a source", str(source.path or ""), leave_out
    sinks: list[NamedSink] = [*query.sinks]
    if query.native is not None:
        sinks.append(query.native)
    for sink in sinks:
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
            msg = (
                f"query {query.name!r}: the key {key} groups by the value of the secret parameter "
                f"{name!r}, and Spark stores the keys of its state; group by a hash of it"
            )
            raise ConfigError(msg)


def _marked(text: str) -> Iterator[str]:
    for name in redaction.known().values:
        if redaction.marker(name) in text:
            yield name
