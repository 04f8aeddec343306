"""Launcher ``emr-serverless``: job runs of an application of Amazon EMR Serverless.

The service starts one job run for a client token. That token is forgotten some time later, and not
every service with this protocol knows it, so a run that has the token as its name is looked for
first. A run is neither limited in time nor started again by the service: a stream may have no end,
and who watches it submits another driver.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import re
import zlib
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

from airflow_provider.extensions.emr_serverless.answers import (
    ApplicationAnswer,
    JobRunAnswer,
    JobRunsAnswer,
    JobRunState,
    ListedRun,
    StartedAnswer,
)
from airflow_provider.extensions.emr_serverless.gzip_tail import Tail, gzip_tail
from airflow_provider.runtime.api.launchers import Handle, LaunchState, LaunchStatus, LogPart
from airflow_provider.runtime.base.extensions import require_extra
from airflow_provider.runtime.control.spark_submit import (
    ANSWER_S,
    WrongAnswerError,
    answer_as,
    exit_code_in,
    is_transient,
)
from airflow_provider.runtime.errors import (
    ConfigError,
    LauncherAwayError,
    SubmissionRefusedError,
)
from airflow_provider.runtime.errors.explanation import first_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
_NOT_THERE: Final = frozenset(["ResourceNotFoundException"])
_NO_NEW_LOG: Final = frozenset(["304", "NoSuchKey", "NotModified"])
_UNREADABLE: Final = (
    *(ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError),
    zlib.error,
)
"""The errors of boto3's parsers for values of another type, and of gzip for other bytes."""
_MOST_PAGES: Final = 1000
_ROLE: Final = re.compile(r"arn:[\w-]+:iam::\d{12}:role/\S+")
_CLOCKS_DIFFER: Final = dt.timedelta(days=1)  # by less than this, those that matter here


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmrOptions:
    """Options of the launcher, as the operator's ``launcher_options`` has them.

    Attributes:
        application_id: of the application, which is there and may run.
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
        """Refuse what the service would refuse in each try.

        Raises:
            ConfigError: the message names the option.
        """
        if not _ROLE.fullmatch(self.execution_role):
            msg = (
                f"emr-serverless: execution_role {self.execution_role!r} is no ARN of a role; "
                "write arn:aws:iam::ACCOUNT:role/NAME"
            )
            raise ConfigError(msg)
        for name in ("entry_point", "runtime", "log_uri"):
            given = getattr(self, name)
            if not given.startswith("s3://") and (given or name != "log_uri"):
                msg = (
                    f"emr-serverless: {name} {given!r} is no address in S3; upload what "
                    "'spark-stream package' makes, and write s3://BUCKET/KEY"
                )
                raise ConfigError(msg)


class _Stdout(NamedTuple):
    """The end of a driver's output, and the object that it was read from."""

    key: tuple[str, str]
    tag: str | None
    tail: Tail


class EmrServerlessLauncher:
    """Starts job runs in an application of EMR Serverless.

    Args:
        options: which application, and what it starts.
        session: arguments of ``boto3.Session``, such as keys and the region; what is not there is
            found as boto3 does.
        endpoint: the address of another service with this protocol; None for Amazon's.
        s3_endpoint: the same of S3, for logs.

    Raises:
        ConfigError: boto3 is not installed, or not configured: the region is unknown.
    """

    kind: ClassVar[str] = "emr-serverless"
    _stdout: _Stdout | None = None  # of the driver that was asked for last

    def __init__(
        self,
        options: EmrOptions,
        *,
        session: Mapping[str, Any] | None = None,
        endpoint: str | None = None,
        s3_endpoint: str | None = None,
    ) -> None:
        self._options = options
        self._client = _client("emr-serverless", session or {}, endpoint)
        self._s3 = _client("s3", session or {}, s3_endpoint or endpoint)
        self._named = f"emr-serverless application {options.application_id}"

    def check(self) -> None:
        """Look whether the application is there and may run."""
        self._options.check()
        asked = {"applicationId": self._options.application_id}
        application = self._ask("get_application", ApplicationAnswer, asked).application
        if application.type.upper() != "SPARK":
            msg = f"{self._named} is one of {application.type}; name one of Spark"
            raise ConfigError(msg)
        starts = application.autoStartConfiguration.enabled
        is_stopped = application.state == "STOPPED" and not starts
        if application.state in _ENDED_APPLICATIONS or is_stopped:
            msg = f"{self._named} is {application.state}; start it, or name another one"
            raise SubmissionRefusedError(msg)

    def submit(self, application: Application, token: str) -> Handle:
        """Start a job run, or return the one that has this token.

        Idempotent: by *token*: the run has it as its name, and the request as its client token.
        """
        self._options.check()
        found = self._find(application, token)
        if found is None:
            files = [self._options.runtime, *application.py_files]
            asked = self._request(application, token, files)
            found = self._ask("start_job_run", StartedAnswer, asked).jobRunId
        place = {"application_id": self._options.application_id}
        return Handle(driver_id=token, launcher=self.kind, id=found, place=place)

    def poll(self, handle: Handle) -> LaunchStatus:
        """Return how the job run is, with the service's own details."""
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
        """Cancel the job run, unless it has ended."""
        run = self._run(handle)
        if run is None or _STATES.get(run.state) is LaunchState.ENDED:
            return
        if run.name != _name(handle.driver_id):
            msg = f"{self._named}: run {handle.id} is called {run.name!r}, so it is not ours"
            raise SubmissionRefusedError(msg)
        asked = {"applicationId": _application_of(handle), "jobRunId": handle.id}
        self._ask("cancel_job_run", dict[str, Any], asked)

    def log(self, handle: Handle, offset: int = 0) -> LogPart:
        """Return what is in S3 of the driver's output, which the service brings there.

        Spark's Python runner writes all of Python's into the standard output; what is in the other
        file is Spark's own log. *offset* is in bytes of the text, of which only the end is kept.
        An object that has not changed since the last look is not read again.
        """
        if not self._options.log_uri:
            return LogPart((), offset)
        place = urlsplit(self._options.log_uri)
        folder = f"{place.path.strip('/')}/applications/{_application_of(handle)}/jobs/{handle.id}"
        tail = self._tail(place.netloc, f"{folder.lstrip('/')}/SPARK_DRIVER/stdout.gz")
        if tail is None:
            return LogPart((), offset)
        lines, end = tail.lines_from(offset)
        if not tail.is_whole and lines:
            cut = f"... the log continues: only its first {end:,} bytes were read"
            lines = (*lines, cut)
        return LogPart(lines, end)

    def _tail(self, bucket: str, key: str) -> Tail | None:
        asked, known = {"Bucket": bucket, "Key": key}, self._stdout
        is_known = known is not None and known.key == (bucket, key)
        if known is not None and is_known and known.tag:
            asked["IfNoneMatch"] = known.tag
        with self._explained("get_object"):
            answer = self._call(self._s3, "get_object", asked, missing=_NO_NEW_LOG)
            if answer is None:
                return known.tail if known is not None and is_known else None
            tail = gzip_tail(answer["Body"])
        self._stdout = _Stdout((bucket, key), answer.get("ETag"), tail)
        return tail

    def _request(self, application: Application, token: str, files: list[str]) -> dict[str, Any]:
        options = self._options
        conf = {**application.conf, "spark.submit.pyFiles": ",".join(files)}
        logs: dict[str, Any] = {}
        if options.log_uri:
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
                "monitoringConfiguration": logs,
            },
        }

    def _find(self, application: Application, token: str) -> str | None:
        """Return the job run that has this token; None when there is none."""
        listed = self._runs(application.intended)
        return next((run.id for run in listed if run.name == _name(token)), None)

    def _runs(self, intended: dt.datetime | None) -> Iterator[ListedRun]:
        asked: dict[str, Any] = {"applicationId": self._options.application_id}
        if intended is not None:
            asked["createdAtAfter"] = intended - _CLOCKS_DIFFER
        for _ in range(_MOST_PAGES):
            answer = self._call(self._client, "list_job_runs", asked, missing=_NOT_THERE)
            # That the application is not there is said by what follows.
            page = self._answer(JobRunsAnswer, answer or {}, "list_job_runs")
            yield from page.jobRuns
            if not page.nextToken:
                return
            asked["nextToken"] = page.nextToken
        msg = f"{self._named}: list_job_runs: no end after {_MOST_PAGES} answers"
        raise WrongAnswerError(msg)

    def _run(self, handle: Handle) -> JobRunState | None:
        asked = {"applicationId": _application_of(handle), "jobRunId": handle.id}
        found = self._call(self._client, "get_job_run", asked, missing=_NOT_THERE)
        return self._answer(JobRunAnswer, found, "get_job_run").jobRun if found else None

    def _ask(self, operation: str, kind: type[T], asked: Mapping[str, Any]) -> T:
        return self._answer(kind, self._call(self._client, operation, asked), operation)

    def _answer(self, kind: type[T], answer: Any, operation: str) -> T:
        return answer_as(kind, answer, where=f"{self._named}: {operation}")

    def _call(
        self,
        client: Any,
        operation: str,
        asked: Mapping[str, Any],
        *,
        missing: frozenset[str] = frozenset(),
    ) -> dict[str, Any] | None:
        """Return the answer; None when it is one of the errors *missing*.

        Raises:
            ConfigError, LauncherAwayError: see :meth:`_explained`.
        """
        from botocore.exceptions import ClientError

        with self._explained(operation):
            try:
                return dict(getattr(client, operation)(**asked))
            except ClientError as error:
                if error.response.get("Error", {}).get("Code") in missing:
                    return None
                raise

    @contextlib.contextmanager
    def _explained(self, operation: str) -> Iterator[None]:
        """Turn boto3's errors into ours.

        Raises:
            ConfigError: the service refuses it, or this process has no credentials.
            LauncherAwayError: no answer, an error of the service, or too many requests.
            WrongAnswerError: boto3 cannot read the answer, or it is not gzip.
        """
        from botocore import exceptions

        try:
            yield
        except exceptions.ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
            message = error.response.get("Error", {}).get("Message") or error
            msg = f"{self._named}: {operation}: {code}: {message}"
            if is_transient(status) or code in _PASSES:
                raise LauncherAwayError(msg) from None
            msg += f"; {_way_out(code)}"
            raise SubmissionRefusedError(msg) from None
        except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError) as error:
            msg = f"{self._named}: {error}; give the connection keys, or this machine a role"
            raise ConfigError(msg) from None
        except exceptions.ParamValidationError as error:
            msg = f"{self._named}: {operation}: {first_line(str(error))}"
            raise ConfigError(msg) from None
        except (exceptions.BotoCoreError, OSError) as error:
            msg = f"{self._named}: does not answer: {first_line(str(error))}"
            raise LauncherAwayError(msg) from None
        except _UNREADABLE as error:
            why = f"{type(error).__name__}: {first_line(str(error))}"
            msg = f"{self._named}: {operation}: not an answer that can be read: {why}"
            raise WrongAnswerError(msg) from None


def _way_out(code: str) -> str:
    if code in _NOT_THERE:
        return "correct application_id, and the region of the connection"
    if any(word in code for word in ("Access", "Client", "Signature", "Token")):
        return "correct the connection's keys, or their rights (docs/launchers.md lists them)"
    return "correct the operator's launcher_options"


def _name(token: str) -> str:
    return f"spark-stream-{token}"


def _application_of(handle: Handle) -> str:
    return handle.place.get("application_id", "")


def _client(service: str, session: Mapping[str, Any], endpoint: str | None) -> Any:
    require_extra("the launcher 'emr-serverless'", "emr", "boto3")
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    # Repeated here: a run that has the token is looked for before each try.
    once = Config(
        connect_timeout=ANSWER_S, read_timeout=ANSWER_S, retries={"total_max_attempts": 1}
    )
    try:
        return boto3.Session(**session).client(service, endpoint_url=endpoint, config=once)
    except (BotoCoreError, ValueError) as error:
        msg = f"emr-serverless: {error}; complete the connection's extra, such as region_name"
        raise ConfigError(msg) from None
