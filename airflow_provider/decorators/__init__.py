"""Decorators of TaskFlow: ``@task.spark_stream``."""
