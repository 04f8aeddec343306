"""Foundations of every room: time, retries, JSON, names, processes, failpoints, extensions."""
