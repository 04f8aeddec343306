"""Error log of a driver: the file with all that is known of its last failure, stack traces too.

A record and a screen have what people read first; Spark's plans and traces are kept beside the run,
in ``runs/<run id>/logs/<driver id>.error.log``, in a folder as in a bucket.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import tempfile
import traceback
from typing import TYPE_CHECKING

from airflow_provider.runtime.errors import RunFailedError, SparkStreamError
from airflow_provider.runtime.errors.explanation import safe_text
from airflow_provider.runtime.failures.classify import classify
from airflow_provider.runtime.failures.rules import DISK, JVM_GONE
from airflow_provider.runtime.storage.mounts import full_disk
from airflow_provider.runtime.storage.open import local_path_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.errors.explanation import Failure
    from airflow_provider.runtime.failures.classify import FailureOverrides
    from airflow_provider.runtime.queries.batch import BatchQuery
    from airflow_provider.runtime.queries.streaming import RunningQuery

log = logging.getLogger(__name__)


class ErrorLog:
    """Turns each error of a driver into a failure, and keeps the newest one whole.

    Args:
        run: the folder of the run.
        driver_id: the driver.
        marks: exception types whose class the caller has listed.
    """

    def __init__(self, run: Storage, driver_id: str, marks: FailureOverrides) -> None:
        self._run = run
        self._path = f"logs/{driver_id}.error.log"
        self._marks = marks

    def failure_of(
        self,
        error: BaseException,
        query: RunningQuery | BatchQuery | None = None,
        *,
        at_work: Iterable[RunningQuery | BatchQuery] = (),
    ) -> Failure:
        """Return the failure for *error*, which may have ended a query and one of its batches.

        Args:
            error: what has ended the query or the attempt.
            query: the query that it ended; None if unknown.
            at_work: the queries of the attempt, whose batches an end of the JVM interrupts.

        Crash safety: the file is written whole, before the failure is recorded; a later one
        replaces it. Idempotent.
        """
        if isinstance(error, RunFailedError):
            return error.failure
        failure = classify(error, marks=self._marks)
        if query is None and failure.rule == JVM_GONE.what:
            query = next((each for each in at_work if _open_batch(each) is not None), None)
        if query is not None:
            failure = dataclasses.replace(failure, query=query.name, batch=_open_batch(query))
            failure = dataclasses.replace(failure, source=_source_of(failure, query))
        failure = self._with_disk(failure)
        return dataclasses.replace(failure, details=self.keep(error) or "")

    def _with_disk(self, failure: Failure) -> Failure:
        """Name the full disk where Spark does not."""
        if failure.rule != DISK or "/" in failure.reason:
            return failure
        scratch = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
        places = [local_path_of(self._run.url), *scratch, tempfile.gettempdir()]
        full = full_disk(filter(None, places))
        if full is None:
            return failure
        return dataclasses.replace(failure, reason=f"{full}: {failure.reason}")

    def keep(self, error: BaseException) -> str | None:
        """Write all of *error* to the file, and return its address; None if that is impossible."""
        text = safe_text("".join(traceback.format_exception(error)))
        try:
            self._run.put(self._path, text.encode(errors="backslashreplace"))
        except (OSError, SparkStreamError):  # the storage may be what has failed
            log.info("%s/%s cannot be put", self._run.url, self._path, exc_info=error)
            return None
        return f"{self._run.url}/{self._path}"


def _open_batch(query: RunningQuery | BatchQuery) -> int | None:
    try:
        return query.logs.position().open_batch
    except Exception:  # noqa: BLE001 - the storage may be what has failed
        return None


def _source_of(failure: Failure, query: RunningQuery | BatchQuery) -> str | None:
    """Return the source of the file that could not be read, if its path tells."""
    sources = [each for each in query.definition.sources if each.path and failure.input_file]
    found = (s.name for s in sources if failure.input_file.startswith(str(s.path)))
    return failure.source or next(found, None)
