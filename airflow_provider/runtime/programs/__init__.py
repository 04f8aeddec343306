"""Programs that know nothing of the runtime, as jobs: plain PySpark scripts, and files of SQL."""
