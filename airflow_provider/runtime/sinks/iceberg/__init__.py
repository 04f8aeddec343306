"""The ``iceberg`` sink: an epoch is one snapshot of an Apache Iceberg table."""
