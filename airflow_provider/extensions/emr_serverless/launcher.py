"""Launcher ``emr-serverless``: job runs of an application of Amazon EMR Serverless.

The service starts one job run for a client token. It forgets the token some time later, so the
launcher first looks for a run that has the token as its name. The service neither limits the run's
time nor starts it again: a stream may have no end, and Airflow's next try submits another driver.
"""

# ruff: noqa: N815 - fields of answers have the service's names
from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import functools
import gzip
import re
import zlib
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

from airflow_provider.runtime.api.errors import (
    ConfigError,
    LauncherAwayError,
    SparkStreamError,
    SubmissionRefusedError,
    WrongAnswerError,
)
from airflow_provider.runtime.api.kit.extras import require_extra
from airflow_provider.runtime.api.kit.messages import first_line
from airflow_provider.runtime.api.kit.service_answers import (
    ANSWER_S,
    answer_as,
    exit_code_in,
    is_transient,
)
from airflow_provider.runtime.api.kit.typed_json import at_most
from airflow_provider.runtime.api.launchers import Handle, LaunchState, LaunchStatus, LogPart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from airflow.sdk import Connection

    from airflow_provider.runtime.api.launchers import Application

T = TypeVar("T")

_STATES: Final = {
    "SUBMITTED": LaunchState.QUEUED,
    "PENDING": LaunchState.QUEUED,
    "SCHEDULED": LaunchState.QUEUED,
    "QUEUED": LaunchState.QUEUED,
    "RUNNING": LaunchState.RUNNING,
    "CANCELLING": LaunchState.RUNNING,
    "SUCCESS": LaunchState.ENDED,
    "FAILED": LaunchState.ENDED,
    "CANCELLED": LaunchState.ENDED,
}
_ENDED_APPLICATIONS: Final = frozenset({"TERMINATED", "STOPPING"})
_PASSES: Final = frozenset(
    ["ThrottlingException", "TooManyRequestsException", "ServiceQuotaExceededException"]
)
"""Refusals that another try may not meet."""
_NOT_THERE: Final = frozenset(["ResourceNotFoundException", "NoSuchKey", "304", "NotModified"])
_UNREADABLE: Final = (
    *(ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError),
    *(gzip.BadGzipFile, zlib.error),
)
"""The errors of boto3's parsers for values of another type, and of gzip for other bytes."""
_MOST_PAGES: Final = 1000
_MOST_LISTED: Final = 10_000  # job runs of one answer; the service gives fifty
_ROLE: Final = re.compile(r"arn:[\w-]+:iam::\d{12}:role/\S+")
_CLOCKS_DIFFER: Final = dt.timedelta(days=1)  # by less than this, those that matter here
_KEPT_BYTES: Final = 256 << 10  # of the end of a log: some thousand lines
_MOST_TEXT_BYTES: Final = 4 << 30  # decompressed at most: about ten seconds of one core
_STEP_BYTES: Final = 1 << 20


class _MissingError(SubmissionRefusedError):
    """The service lacks the requested object, or has nothing new."""


@dataclasses.dataclass(frozen=True)
class _AutoStart:
    enabled: bool = True


@dataclasses.dataclass(frozen=True)
class _Application:
    type: str
    state: str
    autoStartConfiguration: _AutoStart = _AutoStart()


@dataclasses.dataclass(frozen=True)
class _ApplicationAnswer:
    application: _Application


@dataclasses.dataclass(frozen=True)
class _StartedAnswer:
    jobRunId: str


@dataclasses.dataclass(frozen=True)
class _JobRun:
    state: str
    name: str | None = None
    stateDetails: str | None = None


@dataclasses.dataclass(frozen=True)
class _JobRunAnswer:
    jobRun: _JobRun


@dataclasses.dataclass(frozen=True)
class _ListedRun:
    id: str
    name: str | None = None


@dataclasses.dataclass(frozen=True)
class _JobRunsAnswer:
    jobRuns: Annotated[tuple[_ListedRun, ...], at_most(_MOST_LISTED)] = ()
    nextToken: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmrOptions:
    """Options of the launcher, as the operator's ``launcher_options`` has them.

    Attributes:
        application_id: of an existing application that may run.
        execution_role: ARN of the role that the driver has; it reaches the job directory.
        entry_point: ``s3://…/spark_stream_driver.py``, made by ``spark-stream package``.
        runtime: ``s3://…zip``, made by the same command.
        log_uri: ``s3://…``: where the service puts logs; empty for nowhere that is read here.
    """

    application_id: str
    execution_role: str = ""
    entry_point: str = ""
    runtime: str = ""
    log_uri: str = ""

    def check(self) -> None:
        if not _ROLE.fullmatch(self.execution_role):
            raise ConfigError(
                f"emr-serverless: execution_role {self.execution_role!r} is no ARN of a role; "
                "write arn:aws:iam::ACCOUNT:role/NAME"
            )
        for name in ("entry_point", "runtime", "log_uri"):
            given = getattr(self, name)
            if not given.startswith("s3://") and (given or name != "log_uri"):
                raise ConfigError(
                    f"emr-serverless: {name} {given!r} is no address in S3; upload what "
                    "'spark-stream package' makes, and write s3://BUCKET/KEY"
                )


class Tail(NamedTuple):
    """The end of a text."""

    begin: int
    data: bytes
    is_whole: bool

    def lines_from(self, offset: int) -> tuple[tuple[str, ...], int]:
        """Return the whole lines from an offset on, as far as they are kept, and where they end."""
        data = self.data[max(0, offset - self.begin) :]
        if offset < self.begin:  # the first one has lost its beginning
            data = data[data.find(b"\n") + 1 :]
        end = data.rfind(b"\n") + 1
        lines = tuple(line.decode(errors="replace") for line in data[:end].splitlines())
        return lines, max(offset, self.begin + len(self.data) - len(data) + end)


def gzip_tail(
    body: Any, *, kept_bytes: int = _KEPT_BYTES, most_text_bytes: int = _MOST_TEXT_BYTES
) -> Tail:
    """Return the end of a compressed text, with little memory: a few megabytes can be gigabytes.

    A text that breaks off is read up to there: the writer may still be at work.
    """
    kept, total, is_whole = b"", 0, True
    with contextlib.suppress(EOFError), gzip.GzipFile(fileobj=body, mode="rb") as text:
        while step := text.read1(_STEP_BYTES):
            kept, total = (kept + step)[-kept_bytes:], total + len(step)
            if total >= most_text_bytes:
                is_whole = False
                break
    return Tail(total - len(kept), kept, is_whole)


class _Stdout(NamedTuple):
    key: tuple[str, str]
    tag: str | None
    tail: Tail


class EmrServerlessLauncher:
    """Starts job runs in an application of EMR Serverless."""

    kind: ClassVar[str] = "emr-serverless"
    _stdout: _Stdout | None = None  # of the driver that was asked for last

    def __init__(self, options: EmrOptions, open_client: Callable[[str], Any]) -> None:
        self._options = options
        self._open_client = functools.cache(open_client)
        self._named = f"emr-serverless application {options.application_id}"

    def check(self) -> None:
        self._options.check()
        asked = {"applicationId": self._options.application_id}
        application = self._ask("get_application", _ApplicationAnswer, asked).application
        if application.type.upper() != "SPARK":
            raise ConfigError(f"{self._named} is one of {application.type}; name one of Spark")
        starts = application.autoStartConfiguration.enabled
        is_stopped = application.state == "STOPPED" and not starts
        if application.state in _ENDED_APPLICATIONS or is_stopped:
            raise SubmissionRefusedError(
                f"{self._named} is {application.state}; start it, or name another one"
            )

    def submit(self, application: Application, token: str) -> Handle:
        self._options.check()
        found = self._find(application, token)
        if found is None:
            asked = self._request(application, token)
            found = self._ask("start_job_run", _StartedAnswer, asked).jobRunId
        location = {"application_id": self._options.application_id}
        return Handle(driver_id=token, launcher=self.kind, id=found, location=location)

    def poll(self, handle: Handle) -> LaunchStatus:
        try:
            run = self._run(handle)
        except (ConfigError, LauncherAwayError) as error:
            return LaunchStatus(LaunchState.UNKNOWN, None, str(error))
        if run is None:
            return LaunchStatus(LaunchState.GONE, None, f"{self._named} has no such run")
        state = _STATES.get(run.state, LaunchState.UNKNOWN)
        details = run.stateDetails or ""
        code = exit_code_in(details) if state is LaunchState.ENDED else None
        if run.state == "SUCCESS":
            code = 0
        return LaunchStatus(state, code, first_line(f"{run.state} {details}"))

    def end(self, handle: Handle) -> None:
        run = self._run(handle)
        if run is None or _STATES.get(run.state) is LaunchState.ENDED:
            return
        if run.name != _name(handle.driver_id):
            raise SubmissionRefusedError(
                f"{self._named}: run {handle.id} is called {run.name!r}, so it is not ours"
            )
        self._ask("cancel_job_run", dict[str, Any], _location_of(handle))

    def log(self, handle: Handle, offset: int = 0) -> LogPart:
        """Return the driver's output that the service has stored in S3."""
        if not self._options.log_uri:
            return LogPart((), offset)
        location, run = urlsplit(self._options.log_uri), _location_of(handle)
        folder = f"{location.path.strip('/')}/applications/{run['applicationId']}/jobs/{handle.id}"
        tail = self._tail(location.netloc, f"{folder.lstrip('/')}/SPARK_DRIVER/stdout.gz")
        if tail is None:
            return LogPart((), offset)
        lines, end = tail.lines_from(offset)
        if not tail.is_whole and lines:
            cut = f"... the log continues: only its first {end:,} bytes were read"
            lines = (*lines, cut)
        return LogPart(lines, end)

    def _tail(self, bucket: str, key: str) -> Tail | None:
        asked = {"Bucket": bucket, "Key": key}
        known = self._stdout if self._stdout and self._stdout.key == (bucket, key) else None
        if known is not None and known.tag:
            asked["IfNoneMatch"] = known.tag
        try:
            with self._explained("get_object"):
                answer = self._open_client("s3").get_object(**asked)
                with contextlib.closing(answer["Body"]) as body:
                    tail = gzip_tail(body)
        except _MissingError:
            return known and known.tail
        self._stdout = _Stdout((bucket, key), answer.get("ETag"), tail)
        return tail

    def _request(self, application: Application, token: str) -> dict[str, Any]:
        options = self._options
        files = ",".join([options.runtime, *application.py_files])
        conf = {**application.conf, "spark.submit.pyFiles": files}
        logs = {"s3MonitoringConfiguration": {"logUri": options.log_uri}}
        return {
            "applicationId": options.application_id,
            "clientToken": token,
            "name": _name(token),
            "executionRoleArn": options.execution_role,
            "executionTimeoutMinutes": 0,  # else it is ended after twelve hours
            "jobDriver": {
                "sparkSubmit": {
                    "entryPoint": options.entry_point,
                    "entryPointArguments": list(application.arguments),
                }
            },
            "configurationOverrides": {
                # As values: the service would split a command line once more.
                "applicationConfiguration": [
                    {"classification": "spark-defaults", "properties": conf}
                ],
                "monitoringConfiguration": logs if options.log_uri else {},
            },
        }

    def _find(self, application: Application, token: str) -> str | None:
        try:
            runs = self._runs(application.intended)
            return next((run.id for run in runs if run.name == _name(token)), None)
        except _MissingError:  # an application that is not there: the next request reports it
            return None

    def _runs(self, intended: dt.datetime | None) -> Iterator[_ListedRun]:
        asked: dict[str, Any] = {"applicationId": self._options.application_id}
        if intended is not None:
            asked["createdAtAfter"] = intended - _CLOCKS_DIFFER
        for _ in range(_MOST_PAGES):
            page = self._ask("list_job_runs", _JobRunsAnswer, asked)
            yield from page.jobRuns
            if not page.nextToken:
                return
            asked["nextToken"] = page.nextToken
        raise WrongAnswerError(f"{self._named}: list_job_runs: no end after {_MOST_PAGES} answers")

    def _run(self, handle: Handle) -> _JobRun | None:
        try:
            return self._ask("get_job_run", _JobRunAnswer, _location_of(handle)).jobRun
        except _MissingError:
            return None

    def _ask(self, operation: str, kind: type[T], asked: dict[str, Any]) -> T:
        with self._explained(operation):
            answer = dict(getattr(self._open_client("emr-serverless"), operation)(**asked))
        return answer_as(kind, answer, where=f"{self._named}: {operation}")

    @contextlib.contextmanager
    def _explained(self, operation: str) -> Iterator[None]:
        from botocore import exceptions

        try:
            yield
        except SparkStreamError:
            raise
        except exceptions.ClientError as error:
            raise self._refusal(error.response, operation, str(error)) from None
        except (
            *(exceptions.NoCredentialsError, exceptions.PartialCredentialsError),
            *(exceptions.NoRegionError, exceptions.ProfileNotFound),
        ) as error:
            raise ConfigError(
                f"{self._named}: {error}; complete the connection (docs/clusters.md)"
            ) from None
        except exceptions.ParamValidationError as error:
            raise ConfigError(f"{self._named}: {operation}: {first_line(str(error))}") from None
        except _UNREADABLE as error:
            why = f"{type(error).__name__}: {first_line(str(error))}"
            raise WrongAnswerError(
                f"{self._named}: {operation}: not an answer that can be read: {why}"
            ) from None
        except (exceptions.BotoCoreError, OSError) as error:
            raise LauncherAwayError(
                f"{self._named}: does not answer: {first_line(str(error))}"
            ) from None

    def _refusal(self, response: dict[str, Any], operation: str, text: str) -> Exception:
        code = str(response.get("Error", {}).get("Code", ""))
        status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        message = response.get("Error", {}).get("Message") or text
        msg = f"{self._named}: {operation}: {code}: {message}"
        if is_transient(status) or code in _PASSES:
            return LauncherAwayError(msg)
        if code in _NOT_THERE:
            msg += "; correct application_id, and the region of the connection"
            return _MissingError(msg)
        if any(word in code for word in ("Access", "Client", "Signature", "Token")):
            msg += "; correct the connection's keys, or permissions (docs/clusters.md lists them)"
        else:
            msg += "; correct the operator's launcher_options"
        return SubmissionRefusedError(msg)


def _name(token: str) -> str:
    return f"spark-stream-{token}"


def _location_of(handle: Handle) -> dict[str, str]:
    return {"applicationId": handle.location.get("application_id", ""), "jobRunId": handle.id}


class EmrKind:
    """See :class:`airflow_provider.hooks.api.LauncherKind`."""

    api_version = 1
    conn_types = ("aws",)
    options = EmrOptions
    is_experimental = True
    reads_local_paths = False

    def open(
        self, connection: Connection, options: Mapping[str, str], named: str
    ) -> EmrServerlessLauncher:
        require_extra("the launcher 'emr-serverless'", "emr", "airflow.providers.amazon")
        if not options.get("application_id"):
            raise ConfigError(
                "launcher 'emr-serverless': application_id is not given; see launcher_options"
            )
        clients = functools.partial(_client, connection.conn_id, named)
        return EmrServerlessLauncher(EmrOptions(**options), clients)


def _client(conn_id: str, named: str, service: str) -> Any:
    # The only module that has it in every supported version.
    from airflow.exceptions import AirflowException  # type: ignore[attr-defined]
    from airflow.providers.amazon.aws.hooks.base_aws import AwsBaseHook
    from botocore.config import Config

    # The caller repeats a request: before each, it looks for a run that has the token.
    once = Config(
        connect_timeout=ANSWER_S, read_timeout=ANSWER_S, retries={"total_max_attempts": 1}
    )
    hook = AwsBaseHook(aws_conn_id=conn_id, client_type=service)
    try:
        config = once.merge(hook.config)  # config_kwargs of the connection go first
        return hook.get_client_type(region_name=hook.region_name, config=config)
    except (AirflowException, NotImplementedError, ValueError) as error:
        raise ConfigError(f"{named}: {first_line(str(error))}; correct the connection") from error


EMR_SERVERLESS: Final = EmrKind()
