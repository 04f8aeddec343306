"""Rewrite of a savepoint, ``spark-stream state rewrite``: a new one is made, with changes."""
