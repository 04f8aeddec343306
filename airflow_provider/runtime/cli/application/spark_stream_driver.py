"""The application that ``spark-submit`` runs; alone in its folder, which Spark puts on the path."""

from airflow_provider.runtime.cli.main import script

if __name__ == "__main__":
    script()
