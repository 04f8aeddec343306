"""Kafka: topics as sources and as a sink, through the Python client, without a jar.

The options, columns and offsets of the source ``spark-stream-kafka`` are those of Spark's own
connector, ``kafka``. Spark's driver plans a batch as one range of offsets for each partition
(:mod:`.planner`); executors read exactly these (:mod:`.client`). Nothing is committed to Kafka: how
far a query has read is in its checkpoint.

The first batch of a new query reads nothing: it writes where the query starts into the checkpoint.
Spark does not keep what a source in Python answers to ``initialOffset``, and asks again when the
first batch is run again; with ``latest`` or ``earliest`` the answer would be another one then.

The sink (:mod:`.sink`) sends an epoch in one transaction, with a record that says so.
"""

from airflow_provider.extensions.kafka.sink import kafka

__all__ = ["kafka"]
