"""Jobs over Kafka, as a user writes them."""

from __future__ import annotations

import json
from typing import Any

from airflow_provider.runtime import JobContext, files


def copy(ctx: JobContext) -> None:
    """Copy messages as they are; the parameters are the source's options, and its format."""
    given = dict(ctx.params)
    target, source_format = given.pop("output"), given.pop("format", "spark-stream-kafka")
    asked: dict[str, Any] = {"bounded": given.pop("bounded", "yes") == "yes"}
    if "columns" in given:
        asked["schema"] = given.pop("columns")
    given.pop("input", None)
    if given.pop("ends", None) == "interval" and ctx.interval is not None:
        asked["ends"] = ctx.interval[1]
    options = json.loads(given.pop("options"))
    messages = ctx.read("messages", format=source_format, options=options, **asked)
    ctx.write("out", messages, to=files(target))
