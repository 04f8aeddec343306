"""What a job is written as: a function of a file or module, a plain script, a file of SQL."""
