"""Spark's queries, streams or batch jobs: start, watch, stop, and read what they report."""
