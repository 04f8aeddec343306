"""Run Spark Structured Streaming jobs from Airflow; a task is done when its last commit is.

The package is shipped to Spark drivers as a zip, so importing it loads neither Airflow nor PySpark.
"""

from __future__ import annotations

from typing import Any, Final

__version__: Final = "0.1.0.dev0"

_INTEGRATION: Final = "Spark Structured Streaming"

# Read by hooks/airflow_settings.py; docs/airflow.md has the table for users.
_OPTIONS: Final = {
    "driver_outlives_task": {
        "description": "Whether a driver on this worker outlives the process of its task, so that "
        "the task may defer: True or False; empty for what the task finds out about its process.",
        "version_added": "0.1.0",
        "type": "string",
        "example": "True",
        "default": "",
    },
    "history_server": {
        "description": "Address of Spark's history server. Of an application that has ended, the "
        "page Streams links to <history_server>/history/<application id>.",
        "version_added": "0.1.0",
        "type": "string",
        "example": "https://history.example.com:18080",
        "default": "",
    },
    "local_drivers": {
        "description": "Drivers that start or read bounded input at once on a worker's machine, or "
        "off for no limit; empty for as many as the machine has cores, at least two.",
        "version_added": "0.1.0",
        "type": "string",
        "example": "4",
        "default": "",
    },
    "metrics": {
        "description": "Whether numbers of streams are reported as Airflow's metrics.",
        "version_added": "0.1.0",
        "type": "boolean",
        "example": "False",
        "default": "True",
    },
    "refresh_s": {
        "description": "Seconds after which the page Streams asks again, while it is visible.",
        "version_added": "0.1.0",
        "type": "float",
        "example": "30",
        "default": "5",
    },
    "storage_conn_id": {
        "description": "Connection of type aws with the keys for job directories in S3, for tasks "
        "that name none. Without one the environment's credentials are used.",
        "version_added": "0.1.0",
        "type": "string",
        "example": "aws_default",
        "default": "",
    },
}

__all__ = ["__version__", "get_provider_info"]


def get_provider_info() -> dict[str, Any]:
    """Describe the provider to Airflow (entry point ``apache_airflow_provider``).

    Returns:
        The document that Airflow's ``provider_info.schema.json`` describes.
    """
    return {
        "package-name": "airflow-provider-spark-streaming",
        "name": "Apache Spark Structured Streaming",
        "description": "Run Spark Structured Streaming jobs that end with a final checkpoint.",
        "versions": [__version__],
        "integrations": [
            {
                "integration-name": _INTEGRATION,
                "external-doc-url": "https://spark.apache.org/docs/latest/streaming/index.html",
                "tags": ["apache"],
            }
        ],
        "operators": _modules(
            "operators",
            "spark_bootstrap",
            "spark_savepoint",
            "spark_stop",
            "spark_streaming",
        )
        + _modules("extensions.comparisons", "operator")
        + _modules("extensions.maintenance", "operator")
        + _modules("extensions.upgrades", "operator"),
        "sensors": _modules("sensors", "spark_watermark"),
        "hooks": _modules("hooks", "spark_streaming"),
        "triggers": _modules(
            "triggers", "spark_stop", "spark_streaming", "spark_watermark", "stream_events"
        ),
        "task-decorators": [
            {
                "name": "spark_stream",
                "class-name": "airflow_provider.decorators.spark_stream.spark_stream_task",
            }
        ],
        "cli": ["airflow_provider.cli.definition.get_commands"],
        "extra-links": [
            f"airflow_provider.operators.extra_links.{name}"
            for name in ("DriverLogLink", "SavepointLink", "SparkUILink", "StreamLink")
        ],
        "config": {
            "spark_stream": {
                "description": "Settings of the provider for Apache Spark Structured Streaming.",
                "options": _OPTIONS,
            }
        },
    }


def _modules(room: str, *names: str) -> list[dict[str, Any]]:
    """Describe the modules of one folder of this package."""
    modules = [f"airflow_provider.{room}.{name}" for name in names]
    return [{"integration-name": _INTEGRATION, "python-modules": modules}]
