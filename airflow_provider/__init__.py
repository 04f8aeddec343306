"""Run Apache Spark streams from Apache Airflow; a task is done when its final checkpoint commits.

The package is shipped to Spark drivers as a zip, so importing it loads neither Airflow nor PySpark.
"""

from __future__ import annotations

from typing import Any, Final

__version__: Final = "0.1.0"

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
                "integration-name": "Spark Streaming",
                "external-doc-url": "https://spark.apache.org/docs/latest/streaming/index.html",
                "tags": ["apache"],
            }
        ],
        "operators": [
            {
                "integration-name": "Spark Streaming",
                "python-modules": [
                    "airflow_provider.operators.spark_bootstrap",
                    "airflow_provider.operators.spark_savepoint",
                    "airflow_provider.operators.spark_stop",
                    "airflow_provider.operators.spark_streaming",
                ],
            }
        ],
        "hooks": [
            {
                "integration-name": "Spark Streaming",
                "python-modules": ["airflow_provider.hooks.spark_streaming"],
            }
        ],
        "triggers": [
            {
                "integration-name": "Spark Streaming",
                "python-modules": [
                    "airflow_provider.triggers.spark_stop",
                    "airflow_provider.triggers.spark_streaming",
                ],
            }
        ],
    }
