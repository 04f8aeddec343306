"""Operators: the API of a DAG's author."""
