"""Every error of the runtime.

::

    SparkStreamError                 .exit_code: what the command line returns
    ├ ConfigError(ValueError)        the caller's mistake; nothing was written           2
    │ ├ UnsupportedStorageError      no atomic put-if-absent there
    │ ├ UnsupportedVersionError      written by a newer version of this package
    │ ├ NotAStreamError              Spark cannot run a query as a stream; BATCH may
    │ ├ UnknownJobError              no job, run or checkpoint at that place
    │ ├ JobDrainedError              the job has ended for good and cannot resume
    │ ├ RefusedCheckpointError       the requested thing is damaged; a CheckpointError, too
    │ ├ SubmissionRefusedError       a cluster refuses a driver; nothing was started
    │ ├ SavepointBusyError           somebody else is taking or removing that savepoint
    │ └ StopRefusedError             a stop that this job cannot have; it goes on running
    ├ OutageError                    what the job needs does not answer; nothing written 3
    ├ AbsentInputError               a source's input is not there yet; nothing written  3
    ├ LauncherAwayError              a cluster does not answer: ask it the same again    3
    ├ LeaseHeldError                 another live driver owns the job; nothing written   5
    ├ LeaseLostError                 another driver took over; this one stops            5
    ├ CheckpointError                a checkpoint or document is not what it must be     4
    │ ├ CorruptDocumentError
    │ │ └ UnknownFormatError         Spark wrote it in a way that is not known here
    │ ├ MissingStateError            a file that a batch needs is gone: list again
    │ │ └ TruncatedStateError        it is there, and not as long as it was written
    │ └ OpenBatchError               a planned batch has not been committed
    ├ MissingInputError              input that a batch was planned with is gone         3
    ├ UnreachedEndError              input of a run is gone, or is not there yet         3
    ├ LateRowsError                  more rows came late than the run accepts            4
    ├ LostInputError                 input is gone before a query has read it            3
    ├ SavepointError                 a savepoint could not be taken; there is none of it 3
    ├ StopError                      a job was not stopped as requested                  4
    ├ StopNotYetError                the same, and the same stop may work later          3
    ├ SinkError                      a sink could not stage or publish                   3
    │ └ RevertError                what was published cannot be removed exactly        4
    ├ RunFailedError                 the attempt ended; .failure says class and reason   3 or 4
    ├ RunCancelledError              somebody cancelled it; the same command resumes     3
    └ IllegalTransitionError         a bug of this package                               4
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.errors.explanation import Explanation

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from airflow_provider.runtime.errors.failure import Failure


EXIT_OK = 0
EXIT_USAGE = 2
EXIT_RETRY = 3
EXIT_FATAL = 4
EXIT_LEASE = 5

# All that `str.splitlines` takes for the end of a line.
_LINE_ENDS: Final = {ord(end): repr(end)[1:-1] for end in "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"}


class SparkStreamError(Exception):
    """Root of all errors that the runtime raises on purpose.

    As text each is one line: names of files, which may have any characters, are parts of many.

    Attributes:
        exit_code: of a command that ends with it.
        explanation: its parts, where more is known than a message; None for the message alone.
        details: the file that has all of it; None where nobody has kept it.
    """

    exit_code: int = EXIT_RETRY
    explanation: Explanation | None = None
    details: str | None = None

    def __str__(self) -> str:
        text = self._message() if self.explanation is None else self.explanation.line
        return text.translate(_LINE_ENDS)

    def _message(self) -> str:
        return super().__str__()

    def at(self, place: str) -> None:
        """Add the line of the job that it is about, if that is known and was not."""
        if place and not self.parts.place:
            self.explanation = dataclasses.replace(self.parts, place=place)

    @property
    def parts(self) -> Explanation:
        """Return what it says, in parts."""
        return self.explanation or Explanation(what=self._message().translate(_LINE_ENDS))


class ConfigError(SparkStreamError, ValueError):
    """The request cannot be met; the message names the thing and the way out."""

    exit_code = EXIT_USAGE


class UnsupportedStorageError(ConfigError):
    """The filesystem has no atomic put-if-absent, so two drivers could own one job."""


class UnsupportedVersionError(ConfigError):
    """A document was written by a newer version of this package than the one reading it."""


class UnknownJobError(ConfigError):
    """There is no job, run or checkpoint at the given place."""


class NotAStreamError(ConfigError):
    """Spark cannot run a query as a stream; it may be able to run it as a batch job."""


class JobDrainedError(ConfigError):
    """The job was drained: its state is flushed, so running on would repeat its last windows."""


class SavepointBusyError(ConfigError):
    """Another process is taking, restoring or removing the savepoint."""


class OutageError(SparkStreamError):
    """What a job needs does not answer yet; nothing was written, the same command may succeed."""


class AbsentInputError(SparkStreamError):
    """The input of a source is not there yet; nothing was written, a retry finds it later."""


class SubmissionRefusedError(ConfigError):
    """A cluster refuses to start, to show or to end a driver; nothing was started by this call."""


class LauncherAwayError(SparkStreamError):
    """A cluster has not answered; it may have done it: ask the same again, with the same token."""


class StopRefusedError(ConfigError):
    """A job cannot be stopped in the way that was requested; it goes on running."""


class LeaseHeldError(SparkStreamError):
    """Another driver owns the job directory and is alive; nothing was written."""

    exit_code = EXIT_LEASE


class LeaseLostError(SparkStreamError):
    """Another driver has taken the job over; this one has committed nothing since."""

    exit_code = EXIT_LEASE


class CheckpointError(SparkStreamError):
    """A checkpoint does not hold what its protocol says it must hold."""

    exit_code = EXIT_FATAL


class RefusedCheckpointError(ConfigError, CheckpointError):
    """The requested thing is damaged, or of an unknown form; nothing was written."""


class CorruptDocumentError(CheckpointError):
    """A document of the job directory or a log entry of Spark's cannot be read."""


class UnknownFormatError(CorruptDocumentError):
    """Spark wrote it in a version, format or codec that this package does not know."""


def _some_of(paths: tuple[str, ...]) -> str:
    named, others = paths[:3], paths[3:]
    return ", ".join(named) + (f" and {len(others)} more" if others else "")


class MissingStateError(CheckpointError):
    """A file that a batch needs is not there, or not as it was listed.

    Of a checkpoint in use Spark may have cleaned it up: list again, and take a newer batch.

    Args:
        where: the checkpoint.
        batch: the batch.
        paths: the files, relative to the checkpoint.
    """

    def __init__(self, where: str, batch: int, paths: tuple[str, ...]) -> None:
        super().__init__(where, batch, paths)
        self.where, self.batch, self.paths = where, batch, paths

    def _message(self) -> str:
        return (
            f"{self.where}: batch {self.batch} needs what is not there{self._how()}: "
            f"{_some_of(self.paths)}. If a query runs on the checkpoint, list again and take a "
            "newer batch; if none does, the checkpoint is damaged"
        )

    def _how(self) -> str:
        return ""


class TruncatedStateError(MissingStateError):
    """A state file does not have the size with which it was written.

    Args:
        where: the checkpoint.
        batch: the batch.
        paths: the file.
        sizes: its size in bytes, and the one that it should have.
    """

    def __init__(
        self, where: str, batch: int, paths: tuple[str, ...], sizes: tuple[int, int]
    ) -> None:
        super().__init__(where, batch, paths)
        self.args = (where, batch, paths, sizes)
        self.size, self.expected_size = sizes

    def _how(self) -> str:
        return f" as a whole (it has {self.size} bytes instead of {self.expected_size})"


class MissingInputError(SparkStreamError):
    """Files that a batch was planned with are not there when it runs.

    Args:
        query: the query.
        batch: the batch.
        paths: the files, as Spark knows them.
    """

    def __init__(self, query: str, batch: int, paths: tuple[str, ...]) -> None:
        super().__init__(query, batch, paths)
        self.query, self.batch, self.paths = query, batch, paths

    def _message(self) -> str:
        return (
            f"query {self.query!r}: batch {self.batch} was planned with input that is not there "
            f"any more: {_some_of(self.paths)}. Bring it back, or begin at an earlier savepoint"
        )


class UnreachedEndError(SparkStreamError):
    """A query finds nothing more to read, and has not reached the end that its run has recorded.

    Args:
        query: the query.
        left: what is missing of each source: addresses of files, or how far it was read.
    """

    def __init__(self, query: str, left: Mapping[str, Sequence[str]]) -> None:
        super().__init__(query, left)
        self.query, self.left = query, left

    def _message(self) -> str:
        missing = "; ".join(f"{name}: {_some_of(tuple(each))}" for name, each in self.left.items())
        return (
            f"query {self.query!r}: its input ends before the end that its run has recorded: "
            f"{missing}. Bring it back and run it again, or begin at an earlier savepoint"
        )


class LateRowsError(SparkStreamError):
    """A query has dropped more late rows than its run accepts; the batch is not published.

    Args:
        query: the query.
        batch: the batch.
        late: the run's late rows up to then, by the name of the stateful operator.
        read: rows read up to then; None when not known.
        limit: how many are accepted, in words; None where the watermark was held back.
    """

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
                "before that (or before 1970); begin a new job directory, or use late='count'"
            )
        return (
            f"{late}Accepted are {self.limit}; give the watermark a longer delay, read files by "
            "name (read_order='name'), or run with late='wait' from the beginning"
        )


class LostInputError(SparkStreamError):
    """Input that a query has yet to read is gone: expired, or its topic was deleted."""


class OpenBatchError(CheckpointError):
    """A batch is planned and not committed, so nothing can be planned after it."""


class SavepointError(SparkStreamError):
    """A savepoint could not be taken; what was copied of it is removed, the job is not touched."""


class StopError(SparkStreamError):
    """A job was not stopped as requested; the message says in what state it is."""

    exit_code = EXIT_FATAL


class StopNotYetError(SparkStreamError):
    """A job was not stopped as it was asked, for a reason that may pass: the same may be asked."""


class SinkError(SparkStreamError):
    """A sink could not stage or publish; what was published stays, the next start goes on."""


class RevertError(SinkError):
    """What a run has published cannot be removed exactly; nothing was removed."""

    exit_code = EXIT_FATAL


class RunFailedError(SparkStreamError):
    """The attempt ended in failure; all that was committed stays committed.

    Args:
        failure: its class, reason and origin.
    """

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure
        self.details = failure.details or None
        self.exit_code = EXIT_FATAL if failure.is_fatal else EXIT_RETRY

    def _message(self) -> str:
        return self.failure.describe()

    @property
    def parts(self) -> Explanation:
        """Return what the failure says, in parts."""
        return self.failure.explanation


class RunCancelledError(SparkStreamError):
    """Somebody cancelled the attempt; the same command resumes the run."""


class IllegalTransitionError(SparkStreamError):
    """An event reached the lifecycle in a phase that has no place for it."""

    exit_code = EXIT_FATAL


@contextlib.contextmanager
def refusing(where: str, doing: str) -> Iterator[None]:
    """Turn errors into those of a caller whose request cannot be met.

    Args:
        where: the requested place, named when the error names none.
        doing: ``read`` or ``written``.

    Raises:
        RefusedCheckpointError: a checkpoint, a savepoint or a document there is damaged, or of a
            form that is not known.
        ConfigError: this process has not the right.
    """
    try:
        yield
    except ConfigError:
        raise
    except CheckpointError as error:
        raise RefusedCheckpointError(str(error)) from error
    except PermissionError as error:
        msg = (
            f"{error.filename or where}: cannot be {doing}: {error.strerror or error}; use an "
            "account that may, or another place"
        )
        raise ConfigError(msg) from error
