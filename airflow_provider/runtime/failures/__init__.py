"""What a failure means for the next attempt."""

from airflow_provider.runtime.failures.classify import Failure, FailureClass, classify

__all__ = ["Failure", "FailureClass", "classify"]
