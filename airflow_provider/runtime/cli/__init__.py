"""The command line, ``spark-stream``."""
