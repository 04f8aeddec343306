"""The source ``spark-stream-kafka``: Kafka through the Python client, without a jar.

Its options, columns and offsets are those of Spark's own connector, ``kafka``. Spark's driver plans
a batch as one range of offsets for each partition (:mod:`.planner`); executors read exactly these
(:mod:`.client`). Nothing is committed to Kafka: how far a query has read is in its checkpoint.

The first batch of a new query reads nothing: it writes where the query starts into the checkpoint.
Spark does not keep what a source in Python answers to ``initialOffset``, and asks again when the
first batch is run again; with ``latest`` or ``earliest`` the answer would be another one then.
"""
