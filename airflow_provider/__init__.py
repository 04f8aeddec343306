"""Run Apache Spark streams from Apache Airflow; a task is done when its final checkpoint commits.

The package is shipped to Spark drivers as a zip, so importing it loads neither Airflow nor PySpark.
"""

from __future__ import annotations

from typing import Any, Final

__version__: Final = "0.1.0"

_INTEGRATION: Final = "Spark Streaming"

__all__ = ["__version__", "get_provider_info"]


def get_provider_info() -> dict[str, Any]:
    """Describe the provider to Airflow (entry point ``apache_airflow_provider``).

    Returns:
        The document that Airflow's ``provider_info.schema.json`` describes.
    """
    return {
        "package-name": "airflow-provider-spark-streaming",
        "name": "Spark Streaming",
        "description": "Spark streams that end with a final checkpoint and exactly-once sinks.",
        "versions": [__version__],
        "integrations": [
            {
                "integration-name": _INTEGRATION,
                "external-doc-url": "https://spark.apache.org/docs/latest/streaming/index.html",
                "tags": ["apache"],
            }
        ],
        "operators": _modules(
            "operators", "spark_bootstrap", "spark_savepoint", "spark_stop", "spark_streaming"
        ),
        "sensors": _modules("sensors", "spark_watermark"),
        "hooks": _modules("hooks", "spark_streaming"),
        "triggers": _modules("triggers", "spark_stop", "spark_streaming", "spark_watermark"),
        "extra-links": [
            f"airflow_provider.operators.extra_links.{name}"
            for name in ("DriverLogLink", "SavepointLink", "SparkUILink", "StreamLink")
        ],
    }


def _modules(room: str, *names: str) -> list[dict[str, Any]]:
    """Describe the modules of one folder of this package."""
    modules = [f"airflow_provider.{room}.{name}" for name in names]
    return [{"integration-name": _INTEGRATION, "python-modules": modules}]
