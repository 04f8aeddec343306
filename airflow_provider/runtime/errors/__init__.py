"""Errors of the runtime: the class says what the caller may assume, the exit code what to do next.

2: the caller's mistake, nothing was written. 3: a retry may help. 4: a retry cannot help.
5: another driver holds the lease.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.errors.explanation import Explanation
from airflow_provider.runtime.errors.fixes import FROM_SCRATCH

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from airflow_provider.runtime.errors.explanation import Failure


EXIT_OK = 0
EXIT_USAGE = 2
EXIT_RETRY = 3
EXIT_FATAL = 4
EXIT_LEASE = 5

# All that `str.splitlines` takes for the end of a line.
_LINE_ENDS: Final = {ord(end): repr(end)[1:-1] for end in "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"}


class SparkStreamError(Exception):
    """Root of all errors that the runtime raises on purpose; as text each is one line."""

    exit_code: int = EXIT_RETRY
    explanation: Explanation | None = None
    details: str | None = None

    def __str__(self) -> str:
        text = self._message() if self.explanation is None else self.explanation.line
        return text.translate(_LINE_ENDS)

    def _message(self) -> str:
        return super().__str__()

    def at(self, location: str) -> None:
        """Add the line of the job that the error is about, unless one is known."""
        if location and not self.parts.location:
            self.explanation = dataclasses.replace(self.parts, location=location)

    @property
    def parts(self) -> Explanation:
        found = self.explanation or Explanation(what=self._message())
        return dataclasses.replace(found, what=found.what.translate(_LINE_ENDS))


class ConfigError(SparkStreamError, ValueError):
    """The request cannot be met; the message names the thing and the fix."""

    exit_code = EXIT_USAGE


class UnsupportedStorageError(ConfigError):
    """The filesystem has no atomic put-if-absent, so two drivers could own one job."""


class UnsupportedVersionError(ConfigError):
    """A document was written by a newer version of this package."""


class UnknownJobError(ConfigError):
    """There is no job, run or checkpoint at the given location."""


class NotAStreamError(ConfigError):
    """Spark cannot run a query as a stream; it may run it as a batch job."""


class JobDrainedError(ConfigError):
    """The job was drained: its state is flushed, so a resumed run would repeat its last windows."""


class SavepointBusyError(ConfigError):
    """Another process is taking, restoring or removing the savepoint."""


class OutageError(SparkStreamError):
    """A service that the job needs does not answer; nothing was written, a retry may succeed."""


class AbsentInputError(SparkStreamError):
    """The input of a source is not there yet; nothing was written, a retry may find it."""


class SubmissionRefusedError(ConfigError):
    """A cluster refuses to start, show or end a driver; this call started nothing."""


class LauncherAwayError(SparkStreamError):
    """A cluster did not answer and may have acted: repeat the call with the same token."""


class WrongAnswerError(LauncherAwayError):
    """A service's answer does not match its documentation."""


class StopRefusedError(ConfigError):
    """A job cannot be stopped in the requested way; it continues."""


class LeaseHeldError(SparkStreamError):
    """Another driver owns the job directory and is alive; nothing was written."""

    exit_code = EXIT_LEASE


class LeaseLostError(SparkStreamError):
    """Another driver has taken over the job; this one has committed nothing since."""

    exit_code = EXIT_LEASE


class CheckpointError(SparkStreamError):
    """A checkpoint or a document is not what its protocol says."""

    exit_code = EXIT_FATAL


class RefusedCheckpointError(ConfigError, CheckpointError):
    """The requested checkpoint is damaged or has an unknown format; nothing was written."""


class CorruptDocumentError(CheckpointError):
    """A document of the job directory or a log entry of Spark's cannot be read."""


class UnknownFormatError(CorruptDocumentError):
    """Spark wrote it in a version, format or codec that this package does not know."""


def some_of(paths: Sequence[str]) -> str:
    """Return the first of some paths, and how many others there are."""
    named, others = paths[:3], paths[3:]
    return ", ".join(named) + (f" and {len(others)} more" if others else "")


class MissingStateError(CheckpointError):
    """A file that a batch needs is missing, or not as it was listed.

    In a checkpoint in use Spark may have removed it: list again, and take a newer batch.
    """

    def __init__(self, where: str, batch: int, paths: tuple[str, ...]) -> None:
        super().__init__(where, batch, paths)
        self.where, self.batch, self.paths = where, batch, paths

    def _message(self) -> str:
        return (
            f"{self.where}: batch {self.batch} needs what is not there{self._how()}: "
            f"{some_of(self.paths)}. If a query runs on the checkpoint, list again and take a "
            "newer batch; if none does, the checkpoint is damaged"
        )

    def _how(self) -> str:
        return ""


class TruncatedStateError(MissingStateError):
    """A state file does not have the size in bytes with which it was written."""

    def __init__(
        self, where: str, batch: int, paths: tuple[str, ...], sizes: tuple[int, int]
    ) -> None:
        super().__init__(where, batch, paths)
        self.args = (where, batch, paths, sizes)
        self.size, self.expected_size = sizes

    def _how(self) -> str:
        return f" as a whole (it has {self.size} bytes instead of {self.expected_size})"


class MissingInputError(SparkStreamError):
    """Files that a batch was planned with are missing when it runs."""

    def __init__(self, query: str, batch: int, paths: tuple[str, ...]) -> None:
        super().__init__(query, batch, paths)
        self.query, self.batch, self.paths = query, batch, paths

    def _message(self) -> str:
        return (
            f"query {self.query!r}: batch {self.batch} was planned with input that is not there "
            f"any more: {some_of(self.paths)}. Bring it back, or begin at an earlier savepoint"
        )


class MisreadInputError(SparkStreamError):
    """Spark reads other input in a batch than its offset log lists for it."""

    def __init__(self, query: str, batch: int, what: str) -> None:
        super().__init__(query, batch, what)
        self.query, self.batch, self.what = query, batch, what

    def _message(self) -> str:
        return (
            f"query {self.query!r}: batch {self.batch} does not read what was planned for it: "
            f"{self.what}. Nothing of it is published"
        )


class UnreachedEndError(SparkStreamError):
    """A query has no more input but has not reached the end that its run recorded."""

    def __init__(self, query: str, left: Mapping[str, Sequence[str]]) -> None:
        super().__init__(query, left)
        self.query, self.left = query, left

    def _message(self) -> str:
        missing = "; ".join(f"{name}: {some_of(each)}" for name, each in self.left.items())
        return (
            f"query {self.query!r}: its input ends before the end that its run has recorded: "
            f"{missing}. Bring it back and run it again, or begin at an earlier savepoint"
        )


class LateRowsError(SparkStreamError):
    """A query has dropped more late rows than its run accepts; the batch is not published."""

    exit_code = EXIT_FATAL

    def __init__(
        self,
        query: str,
        batch: int,
        late: Mapping[str, int],
        *,
        read: int | None,
        limit: str | None,
    ) -> None:
        super().__init__(query, batch, late, read, limit)
        self.query, self.batch, self.late = query, batch, late
        self.read, self.limit = read, limit

    def _message(self) -> str:
        rows = sum(self.late.values())
        share = f" of {self.read:,} read ({100 * rows / self.read:.3g} %)" if self.read else ""
        operators = ", ".join(f"{n:,} by operator {name}" for name, n in self.late.items())
        late = (
            f"query {self.query!r}: with batch {self.batch}, which is not published, {rows:,} rows"
            f"{share} came late: {operators}. "
        )
        if self.limit is None:
            return (
                f"{late}late='wait' holds the watermark where the run began, and these rows are "
                "before that (or before 1970); use late='count', which drops such rows and counts "
                f"them, or {FROM_SCRATCH}"
            )
        return (
            f"{late}Accepted are {self.limit}; give the watermark a longer delay, read files by "
            "name (read_order='name'), or run with late='wait' from the beginning"
        )


class RefusedRowsError(SparkStreamError):
    """More rows break a rule of the job than it accepts; the batch is not published."""

    exit_code = EXIT_FATAL


class RowCountsError(SparkStreamError):
    """The rows of a batch do not add up; it is not published, and may run again."""


class LostInputError(SparkStreamError):
    """Input that a query has yet to read is gone: it expired, or its topic was deleted."""


class OpenBatchError(CheckpointError):
    """A batch is planned and not committed, so nothing can be planned after it."""


class SavepointError(SparkStreamError):
    """A savepoint could not be taken; its partial copy is removed, the job is unchanged."""


class StopError(SparkStreamError):
    """A job was not stopped as requested; the message has its state."""

    exit_code = EXIT_FATAL


class StopNotYetError(SparkStreamError):
    """A job was not stopped as requested; the same request may succeed later."""


class SinkError(SparkStreamError):
    """A sink could not stage or publish; what was published stays, the next start continues."""


class RevertError(SinkError):
    """The output of a run cannot be removed exactly; nothing was removed."""

    exit_code = EXIT_FATAL


class RunFailedError(SparkStreamError):
    """The attempt failed; all that was committed stays committed."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure
        self.details = failure.details or None
        self.exit_code = EXIT_FATAL if failure.is_fatal else EXIT_RETRY

    def _message(self) -> str:
        return self.failure.describe()

    @property
    def parts(self) -> Explanation:
        return self.failure.explanation


class RunCancelledError(SparkStreamError):
    """The attempt was cancelled; the same command resumes the run."""


class IllegalTransitionError(SparkStreamError):
    """The lifecycle does not allow this event in its phase: a bug of this package."""

    exit_code = EXIT_FATAL


@contextlib.contextmanager
def refusing(where: str, doing: str) -> Iterator[None]:
    """Turn errors about a requested checkpoint (damaged, not permitted) into ConfigErrors."""
    try:
        yield
    except ConfigError:
        raise
    except CheckpointError as error:
        raise RefusedCheckpointError(str(error)) from error
    except PermissionError as error:
        raise ConfigError(
            f"{error.filename or where}: cannot be {doing}: {error.strerror or error}; use an "
            "account that may, or another location"
        ) from error
