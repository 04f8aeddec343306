"""Stopping a job from outside, with or without drain, with or without a savepoint (FLIP-34).

The caller puts a request into the job directory, the driver answers there: see :mod:`.calling` and
:mod:`.desk`.
"""

from airflow_provider.runtime.stopping.calling import StopCall, request_stop, savepoint_address
from airflow_provider.runtime.stopping.desk import StopDesk

__all__ = ["StopCall", "StopDesk", "request_stop", "savepoint_address"]
