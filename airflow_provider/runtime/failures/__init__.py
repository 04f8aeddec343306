"""What a failure means for the next attempt."""

from airflow_provider.runtime.failures.classify import classify, refusal_of
from airflow_provider.runtime.failures.failure import Failure, FailureClass
from airflow_provider.runtime.failures.marks import Marks, fails_as
from airflow_provider.runtime.failures.system import of_the_system

__all__ = [
    "Failure",
    "FailureClass",
    "Marks",
    "classify",
    "fails_as",
    "of_the_system",
    "refusal_of",
]
