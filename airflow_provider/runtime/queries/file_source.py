"""Spark's file source as Py4J shows it: private fields, and its listing of files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


def private_field(instance: Any, name: str) -> Any:
    """Return a private field of an object of the JVM's, to be read."""
    field = instance.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field


def private_value(instance: Any, name: str) -> Any:
    """Return the value of a private field."""
    return private_field(instance, name).get(instance)


def listed_files(listed: Any) -> Iterator[tuple[str, int]]:
    """Yield path and modification time in milliseconds of each file of a listing, in one call.

    An entry is ``NewFileEntry(<path>,<bytes>,<milliseconds>)``.

    Raises:
        ValueError: an entry has another form (another version of Spark).
    """
    for entry in filter(None, str(listed.mkString("\n")).split("\n")):
        path, _, modified_ms = entry.partition("(")[2].rstrip(")").rsplit(",", 2)
        yield path, int(modified_ms)
