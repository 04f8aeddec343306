"""Failures as Spark 4.3 has really raised them, rebuilt without a JVM from what was recorded.

``recorded_failures.json`` has, for each of them, the exceptions that a driver gets, with their texts
and what the JVM's objects behind them answer; stack frames beyond two are left out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RECORDED: dict[str, list[dict[str, Any]]] = json.loads(
    Path(__file__).with_name("recorded_failures.json").read_text("utf-8")
)


class JavaClass:
    """Answers as a ``java.lang.Class`` does through Py4J."""

    def __init__(self, names: list[str]) -> None:
        self._names = names

    def getName(self) -> str:  # noqa: N802 - Java's own name
        return self._names[0]

    def getSuperclass(self) -> JavaClass | None:  # noqa: N802 - Java's own name
        return JavaClass(self._names[1:]) if self._names[1:] else None


class JavaThrowable:
    """Answers as a ``java.lang.Throwable`` does through Py4J."""

    def __init__(self, links: list[dict[str, Any]]) -> None:
        self._links = links

    def getClass(self) -> JavaClass:  # noqa: N802 - Java's own name
        return JavaClass(self._links[0]["classes"])

    def getMessage(self) -> str | None:  # noqa: N802 - Java's own name
        return self._links[0]["message"]

    def getCause(self) -> JavaThrowable | None:  # noqa: N802 - Java's own name
        return JavaThrowable(self._links[1:]) if self._links[1:] else None


def recorded(name: str) -> BaseException:
    """Return the exception that a driver has got."""
    error: BaseException | None = None
    for link in reversed(RECORDED[name]):
        error = _rebuilt(link, error)
    assert error is not None
    return error


def _rebuilt(link: dict[str, Any], following: BaseException | None) -> BaseException:
    module, _, name = link["type"].rpartition(".")
    members = {
        "__module__": module,
        "__str__": lambda _: link["text"],
        "getCondition": lambda _: link["condition"],
    }
    error: BaseException = type(name, (Exception,), members)()
    if link["java"]:
        error._origin = JavaThrowable(link["java"])  # type: ignore[attr-defined]  # as PySpark's
    if link["next"] == "cause":
        error._cause = following  # type: ignore[attr-defined]  # as PySpark's
    elif following is not None:
        error.__cause__ = following
    return error
