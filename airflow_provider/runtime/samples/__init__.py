"""Jobs on sample input, without a job directory: for tests and notebooks."""
