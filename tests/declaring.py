"""Sources as ``ctx.read(format=…)`` declares them."""

from __future__ import annotations

from typing import Any

from airflow_provider.runtime.sources.declared import SourceDefinition
from airflow_provider.runtime.sources.files import MODIFIED
from airflow_provider.runtime.sources.shorthand import source_of_format


def declared(
    name: str,
    *,
    format: str = "csv",
    path: str | None = None,
    schema: Any = None,
    options: Any = None,
    read_order: str = MODIFIED,
    bounded: bool = True,
    **of_reading: Any,
) -> SourceDefinition:
    """Return the definition of a source; *of_reading* is what else ``ctx.read`` says."""
    source = source_of_format(format, path, schema, options, order=read_order)
    return SourceDefinition(name=name, source=source, bounded=bounded, **of_reading)
