"""The state of a job as a database: made from history, and changed, in savepoints."""
