"""Entry point: ``python -m airflow_provider.runtime.cli`` is ``spark-stream``."""

from airflow_provider.runtime.cli.main import script

if __name__ == "__main__":
    script()
