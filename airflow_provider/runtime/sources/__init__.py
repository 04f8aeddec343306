"""Sources that the runtime brings along, written in Python; Spark's executors import them."""
