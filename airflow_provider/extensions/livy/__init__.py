"""Launcher: drivers as batches of Apache Livy."""
