"""Sinks with a two-phase commit: staged, pre-committed, then published after Spark's commit."""
