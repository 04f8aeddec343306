"""Warm drivers: a pool of processes that have started Spark and wait for a run."""
