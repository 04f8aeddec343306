"""Spark's file source as Py4J shows it: private fields, and its listing of files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.spark.versions import file_entry

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

    Raises:
        ValueError: an entry has another form (another version of Spark).
    """
    return map(file_entry, filter(None, str(listed.mkString("\n")).split("\n")))
