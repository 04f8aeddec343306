"""Python functions in a query's plan: their names, and the lines where they begin."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.errors.explanation import definition_of
from airflow_provider.runtime.queries.plan import analyzed, items

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame


log = logging.getLogger(__name__)

_KINDS: Final = frozenset({"PythonUDF", "PythonUDAF", "PythonUDTF"})


def locations_of_functions(df: DataFrame) -> str:
    """Return where the functions begin that Python workers run for *df*; empty if it has none."""
    found = [*dict.fromkeys(_describe(each) for each in _functions(df))]
    return f"one of {', '.join(found)}" if len(found) > 1 else "".join(found)


def _functions(df: DataFrame) -> Iterator[Any]:
    waiting = [each for _, node in analyzed(df) for each in items(node.expressions())]
    while waiting:
        expression = waiting.pop(0)
        if expression.getClass().getSimpleName() in _KINDS:
            yield expression
        waiting += items(expression.children())


def _describe(expression: Any) -> str:
    name = str(expression.name())
    try:
        line = definition_of(_unpickled(expression.func().command()))
    except Exception as error:  # noqa: BLE001 - of any package that the function closes over
        log.debug("the line of function %s is not known: %s", name, error)
        line = ""
    return f"{line} ({name})" if line else f"function {name}"


def _unpickled(command: Any) -> Any:
    """Return the function of a command, which Spark keeps as a Scala sequence of bytes."""
    from pyspark import SparkContext
    from pyspark.serializers import CPickleSerializer

    jvm: Any = SparkContext._active_spark_context._jvm  # type: ignore[union-attr]
    tags = getattr(jvm.scala.reflect, "ClassTag$")
    data = command.toArray(getattr(tags, "MODULE$").Byte())
    serializer: Any = CPickleSerializer()
    return serializer.loads(bytes(data))[0]
