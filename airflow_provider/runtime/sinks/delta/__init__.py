"""The ``delta`` sink: an epoch is one version of a Delta Lake table."""
