"""A client of Flink's cluster that stays: it runs in Flink's environment, and reads SQL from stdin.

Each line is a JSON object with ``mode``, ``statements``, and ``conf``; the answer is a line with
the id of the job of the last statement, when the job has ended, or with the error.
"""

from __future__ import annotations

import json
import sys

from pyflink.common import Configuration  # type: ignore[import-not-found]
from pyflink.table import (  # type: ignore[import-not-found]  # only Flink's environment has it
    EnvironmentSettings,
    TableEnvironment,
)


def run(mode: str, statements: list[str], conf: dict[str, str]) -> str:
    """Execute statements, and wait for the job of the last one; return its id."""
    configuration = Configuration()
    for key, value in conf.items():
        configuration.set_string(key, value)
    builder = EnvironmentSettings.new_instance().with_configuration(configuration)
    builder = builder.in_batch_mode() if mode == "batch" else builder.in_streaming_mode()
    tables = TableEnvironment.create(builder.build())
    *before, last = statements
    for statement in before:
        tables.execute_sql(statement)
    result = tables.execute_sql(last)
    result.wait()
    return str(result.get_job_client().get_job_id())


for line in sys.stdin:
    try:
        answer = {"job": run(**json.loads(line))}
    except Exception as error:  # noqa: BLE001 - the other side decides
        answer = {"error": f"{type(error).__name__}: {error}"}
    print(f"ANSWER {json.dumps(answer)}", flush=True)
