"""Errors of a store's libraries, translated to Python's own and ours."""

from __future__ import annotations

import contextlib
import errno
from typing import TYPE_CHECKING, Final, NamedTuple

from airflow_provider.runtime.errors import (
    ConfigError,
    CorruptDocumentError,
    UnsupportedStorageError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

# An error of other origin is a bug and passes as it is.
_LIBRARIES: Final = frozenset(
    {"adlfs", "aiobotocore", "aiohttp", "azure", "botocore", "fsspec", "gcsfs", "google"}
    | {"requests", "s3fs"}
)
_NO_BUCKET: Final = frozenset({"NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted"})
_NO_CREDENTIALS: Final = frozenset(
    {"ClientAuthenticationError", "CredentialRetrievalError", "GoogleAuthError"}
    | {"NoCredentialsError", "PartialCredentialsError", "TokenRetrievalError"}
)
_NO_CONNECTION: Final = frozenset(
    {"ClientConnectionError", "ConnectionError", "HTTPClientError", "ServiceRequestError"}
    | {"ServiceResponseError", "TimeoutError"}
)
_OF_AN_OBJECT: Final = frozenset({"copy", "read"})  # else it is the bucket that is not there
_CONDITIONAL: Final = frozenset({"copy", "create"})  # may be done where nothing is
_CONFLICT, _PRECONDITION, _NO_SUCH_RANGE, _NOT_IMPLEMENTED = 409, 412, 416, 501


class ConflictError(OSError):
    """Two conditional writes met and neither was done: a retry may succeed."""


class GivenUpError(Exception):
    """Raised in workers that are cancelled because another one failed."""


class Answer(NamedTuple):
    """A store's answer; without a status there was none."""

    status: int | None  # of HTTP
    code: str  # the store's own, such as NoSuchBucket


@contextlib.contextmanager
def explained(where: str, doing: str, *, credentials: str = "the credentials") -> Iterator[None]:
    """Turn what the libraries raise into errors that name the location and the fix.

    *doing* is ``read``, ``copy`` (perhaps with a condition), ``write``, ``create`` (write with a
    condition), ``list`` or ``remove``.

    Raises:
        ConfigError: the bucket does not exist, or its name is invalid.
        UnsupportedStorageError: the store has no conditional writes.
        FileExistsError: there is an object, and *doing* was ``create`` or ``copy``.
        ConflictError: another conditional write interfered.
        PermissionError: the store refuses these credentials, or there are none.
        ConnectionError: the store cannot be reached; the libraries have retried.
        OSError: any other error of the store.
    """
    try:
        yield
    except Exception as error:
        library = type(error).__module__.partition(".")[0]
        if isinstance(error, (ConfigError, ConflictError)) or not (
            library in _LIBRARIES or isinstance(error, (OSError, ValueError))
        ):
            raise
        raise _explain(error, where, doing, credentials) from error


def _explain(error: Exception, where: str, doing: str, credentials: str) -> Exception:
    answer = answer_of(error)
    is_missing = isinstance(error, FileNotFoundError) or answer.status == 404  # noqa: PLR2004 - HTTP
    if answer.code in _NO_BUCKET or (is_missing and doing not in _OF_AN_OBJECT):
        return ConfigError(
            f"{where}: the bucket or container does not exist; create it, or correct the address"
        )
    if is_missing:
        return FileNotFoundError(errno.ENOENT, "no such object", where)
    if doing in _CONDITIONAL:
        refused = _explain_refused(error, answer, where)
        if refused is not None:
            return refused
    return _explain_failure(error, answer, where, doing, credentials)


def _explain_refused(error: Exception, answer: Answer, where: str) -> Exception | None:
    if isinstance(error, FileExistsError) or answer.status == _PRECONDITION:
        return FileExistsError(errno.EEXIST, "there is an object already", where)
    if answer.status == _CONFLICT:
        return ConflictError(errno.EBUSY, f"another write interferes ({answer.code})", where)
    if answer.status == _NOT_IMPLEMENTED:
        return without_conditions(where)
    return None


def _explain_failure(
    error: Exception, answer: Answer, where: str, doing: str, credentials: str
) -> Exception:
    kinds = {kind.__name__ for kind in type(error).__mro__}
    detail = f"{answer.code or type(error).__name__}: {error}"
    is_forbidden = answer.status in {401, 403} or str(error).startswith("Forbidden")
    if kinds & (_NO_CREDENTIALS | {"PermissionError"}) or is_forbidden:
        return PermissionError(
            errno.EACCES, f"may not {doing} here; check {credentials} ({detail})", where
        )
    if kinds & _NO_CONNECTION and answer.status is None:
        return ConnectionError(errno.EHOSTUNREACH, f"the store did not answer ({detail})", where)
    if isinstance(error, ValueError) or "ParamValidationError" in kinds:
        return ConfigError(f"{where}: the store does not take this address ({detail})")
    return OSError(errno.EIO, f"could not {doing} ({detail})", where)


def without_conditions(where: str, what: str = "a write") -> UnsupportedStorageError:
    """Return the error for a store on which two drivers could both win."""
    return UnsupportedStorageError(
        f"{where}: this store does not heed the condition of {what} (If-None-Match), so it cannot "
        "decide between two drivers; use another store"
    )


def answer_of(error: BaseException | None) -> Answer:
    """Return the store's answer, from the first error of the chain that has one."""
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, dict):  # botocore
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            return Answer(status, str(response.get("Error", {}).get("Code", "")))
        status = getattr(error, "status_code", None) or getattr(error, "code", None)
        if status is not None and str(status).isdigit():  # azure, gcsfs
            code = getattr(error, "error_code", None) or ""
            return Answer(int(status), str(getattr(code, "value", code)))
        error = error.__cause__ or error.__context__
    return Answer(None, "")


def is_without_bytes(error: Exception) -> bool:
    """Whether a store has refused a range of bytes because the object is empty."""
    return answer_of(error).status == _NO_SUCH_RANGE


def checked_size(data: bytes, at_most_bytes: int, where: str) -> bytes:
    """Return *data*, of which one byte more than allowed was asked for, if it lacks that byte."""
    if len(data) > at_most_bytes:
        raise CorruptDocumentError(
            f"{where}: has more than {at_most_bytes} bytes, and at most that many are read"
        )
    return data
