"""Spark's own checkpoint: its logs, the batch that drains it, the files that a copy of it needs."""
