"""Sources of a job: Spark's formats and files, and what a job says of a source."""
