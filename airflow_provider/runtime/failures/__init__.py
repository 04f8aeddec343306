"""What a failure means for the next attempt."""

from airflow_provider.runtime.failures.classify import classify
from airflow_provider.runtime.failures.failure import Failure, FailureClass
from airflow_provider.runtime.failures.marks import Marks, fails_as

__all__ = ["Failure", "FailureClass", "Marks", "classify", "fails_as"]
