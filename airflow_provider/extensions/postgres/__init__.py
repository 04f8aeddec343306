"""The ``postgres`` sink: rows in a table of PostgreSQL, each epoch in one transaction.

Spark's executors copy an epoch into a table of its own. After Spark has committed its batch, one
transaction moves the rows into the table and records the epoch beside them: readers see all of an
epoch or nothing, and none is published twice. Each such transaction locks a row of the sink's own
table ``fences``, which shuts older drivers out at the database itself.
"""

from airflow_provider.extensions.postgres.sink import postgres

__all__ = ["postgres"]
