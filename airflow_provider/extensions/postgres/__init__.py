"""The ``sql`` sink: rows in a table of PostgreSQL, each epoch in one transaction.

An epoch is copied into a table of its own by Spark's executors. When Spark has committed its batch,
one transaction moves the rows to where they belong and records the epoch beside them, so that a
reader sees all of an epoch or nothing, and nobody publishes it twice. A row of the sink's own table
``fences`` is locked in every such transaction, and shuts older drivers out at the database itself.
"""

from airflow_provider.extensions.postgres.sink import sql

__all__ = ["sql"]
