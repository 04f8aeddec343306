"""Forms of a job: a function of a file or module, a plain script, a file of SQL."""
