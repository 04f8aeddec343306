"""The request of a run: every option of a driver, validated.

A submitted driver reads it in its submission, so that no option is an argument of a process.
The command line has its digest, so that other writers of the job directory cannot change it.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
import json
import os
from collections.abc import Mapping  # noqa: TC003 - documents are read by these annotations
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from airflow_provider.runtime.base.clock import from_iso, to_iso
from airflow_provider.runtime.base.names import check_name
from airflow_provider.runtime.base.typed_json import (
    Address,
    Mismatch,
    Name,
    decode,
    encode,
    read_json,
)
from airflow_provider.runtime.errors import (
    ConfigError,
    CorruptDocumentError,
    UnknownJobError,
    redaction,
)
from airflow_provider.runtime.errors.fixes import of_caller
from airflow_provider.runtime.errors.redaction import Secrets
from airflow_provider.runtime.jobdir.identity import is_identity
from airflow_provider.runtime.jobdir.run_options import RunOptions, option, whole
from airflow_provider.runtime.jobdir.submissions import SubmissionRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow_provider.runtime.api.storages import Storage


S = TypeVar("S", bound="DriverSpec")


MAX_PARTITIONS: Final = 32_768
"""As in Flink. Each is a task of every batch and a folder of every stateful operator; far above it
Spark fails only when everything is copied, or its driver has no memory left to plan a batch."""


def parse_interval(
    values: Sequence[str] | None, name: str | None = None
) -> tuple[dt.datetime, dt.datetime] | None:
    """Read the start and the end of an interval, None for none; without a zone they are in UTC."""
    if values is None:
        return None
    given = f"{name or of_caller('--interval', 'interval')} {' '.join(values)}"
    try:
        start, end = (_with_zone(from_iso(each)) for each in values)
    except ValueError as error:
        raise ConfigError(f"{given}: write two times such as 2026-01-01T00:00:00Z") from error
    if end < start:
        raise ConfigError(f"{given}: the end is before the start; exchange them")
    return start, end


def _with_zone(moment: dt.datetime) -> dt.datetime:
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.timezone.utc)


def check_replaces_job(identity: str | None) -> None:
    """Refuse what is no identity of a job directory."""
    if identity is not None and not is_identity(identity):
        raise ConfigError(
            f"replaces_job {identity!r}: the identity of a lost job directory, as the refusal of "
            "the new one says it, and as the lost identity.json had it"
        )


def check_begins_from(savepoint: str | None, state_partitions: int | None) -> None:
    """Refuse impossible partitions; the operator calls this when the DAG is parsed."""
    if state_partitions is None:
        return
    check_partitions(state_partitions)
    if savepoint is None:
        raise ConfigError(
            "state_partitions goes with a savepoint to begin from; a job that has begun keeps "
            "those that it has"
        )


def check_partitions(partitions: int | None) -> None:
    """Refuse a number that cannot be one of partitions."""
    if partitions is not None and not 1 <= partitions <= MAX_PARTITIONS:
        raise ConfigError(
            f"partitions {partitions}: state has from 1 to {MAX_PARTITIONS} partitions"
        )


ARGUMENTS: Final = "args"
"""The parameter of a run that a script gets as its command line."""


def with_arguments(arguments: Sequence[str]) -> str:
    """Return the command line of a script as people would write that parameter."""
    return f"{ARGUMENTS}:={json.dumps(list(arguments))}"


def parse_pairs(values: Sequence[str], option: str) -> dict[str, str]:
    """Read what was given as ``NAME=VALUE``, several times."""
    pairs: dict[str, str] = {}
    for value in values:
        key, separator, text = value.partition("=")
        if not separator or not key:
            raise ConfigError(f"{option} {value!r}: write {option} NAME=VALUE")
        pairs[key] = text
    return pairs


def parse_params(values: Sequence[str], option: str = "--param") -> dict[str, Any]:
    """Read parameters: ``NAME=TEXT``, or ``NAME:=JSON`` for a number, a list or any other value."""
    params: dict[str, Any] = {}
    for key, text in parse_pairs(values, option).items():
        if not key.endswith(":"):
            params[key] = text
            continue
        try:
            params[key[:-1]] = read_json(text)
        except ValueError as error:
            raise ConfigError(
                f"{option} {key}={text}: what follows := must be JSON: {error}"
            ) from error
    return params


def check_params(params: Mapping[str, Any]) -> None:
    """Refuse a parameter that is not a value of JSON, and would reach the job as something else."""
    for name, value in params.items():
        try:
            same = read_json(json.dumps({name: value}, allow_nan=False)) == {name: value}
        except (TypeError, ValueError, RecursionError):
            same = False
        if not same:
            raise ConfigError(
                f"parameter {name!r}: {type(value).__name__} {value!r:.80} is not a value of JSON "
                "(text, number, true or false, null, list, object with text keys); pass text"
            )


def check_secret_params(params: Mapping[str, Any], secret_params: Mapping[str, str]) -> None:
    """Refuse a parameter that is given in the clear and as a secret."""
    if twice := sorted({*params} & {*secret_params}):
        raise ConfigError(
            f"parameter {twice[0]!r} is given in the clear and as a secret; give it once"
        )


def read_secrets(variables: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the values of secret parameters; no text that leaves this process has them."""
    for name, variable in variables.items():
        if variable not in environ:
            raise ConfigError(
                f"parameter {name!r} is a secret that is read from the environment variable "
                f"{variable}, which is not set; set it for this command"
            )
    values = {name: environ[variable] for name, variable in variables.items()}
    redaction.remember(values)
    return values


def check_not_in_clear_text(request: DriverSpec, values: Mapping[str, str]) -> None:
    """Refuse a request that has the value of a secret parameter in one of its other texts."""
    secrets = Secrets.of(values)
    for field in dataclasses.fields(request):
        for text in _texts(encode(getattr(request, field.name))):
            if (name := secrets.find(text)) is not None:
                what = field.metadata["option"].argument if "option" in field.metadata else None
                raise ConfigError(
                    f"{what or field.name}: has the value of the secret parameter {name!r}, and is "
                    "stored and shown; let the job put the value in, from ctx.params"
                )


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield key
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DriverSpec:
    """Base of what a submitted driver reads in its :class:`.SubmissionRecord`.

    Attributes:
        COMMAND: what the driver does with it.
        driver_id: the submission that starts the driver; None for a user's command.
        entry: ``FILE.py:FUNC`` or ``pkg.mod:FUNC``; or a whole ``FILE.py`` or ``FILE.sql``.
        secret_params: for each secret parameter, the environment variable that the driver reads it
            from; its value is never stored or compared.
        interval: for ``ctx.interval``.
    """

    COMMAND: ClassVar[str] = ""

    driver_id: Name | None = None
    job_dir: Address = option(
        "job_dir", "the job directory, on shared storage", argument="job_dir", metavar="JOB_DIR"
    )
    entry: str = option(
        "--entry",
        "the job's function, or pkg.mod:FUNC",
        argument="job",
        metavar="FILE.py:FUNC",
    )
    params: Mapping[str, Any] = option(
        "--param",
        "a parameter of the job; K:=JSON for a value that is not text",
        default=dict,
        argument="params",
        parse=parse_params,
        fixed=whole,
        action="append",
        metavar="K=V",
    )
    secret_params: Mapping[str, str] = option(
        "--secret-param",
        "a secret parameter: its value is read from this environment variable, and never stored "
        "or shown",
        default=dict,
        argument="secret_params",
        parse=parse_pairs,
        fixed=sorted,
        action="append",
        metavar="K=VARIABLE",
    )
    interval: tuple[dt.datetime, dt.datetime] | None = option(
        "--interval",
        "the slice of data that the run is for, as two ISO 8601 times",
        default=None,
        argument="interval",
        parse=parse_interval,
        fixed=whole,
        nargs=2,
        metavar=("START", "END"),
    )
    master: str | None = option(
        "--master",
        "Spark's master; default: spark-submit's, else local[*]",
        default=None,
        metavar="URL",
    )
    conf: Mapping[str, str] = option(
        "--conf",
        "a setting of Spark",
        default=dict,
        parse=parse_pairs,
        action="append",
        metavar="K=V",
    )

    def check_params(self) -> None:
        check_params(self.params)
        check_secret_params(self.params, self.secret_params)

    def all_params(self) -> dict[str, Any]:
        """Return the parameters with the secret ones, read from this process's environment."""
        return {**self.params, **read_secrets(self.secret_params, os.environ)}

    def sha256(self) -> str:
        """Return the SHA-256 digest of the request, the same before and after it is stored."""
        try:  # 60 is stored as it is given, and read back as 60.0
            read = decode(type(self), decode(dict[str, Any], encode(self)))
        except Mismatch as error:
            raise ConfigError(f"the request cannot be stored: {error}") from None
        return hashlib.sha256(json.dumps(encode(read)).encode()).hexdigest()

    def inside(self, record: SubmissionRecord) -> SubmissionRecord:
        """Return the submission with this request; it has the driver's id."""
        return dataclasses.replace(record, command=self.COMMAND, request=encode(self))

    def is_what_was_sent(self, record: SubmissionRecord) -> bool:
        """Whether a submission asks for the same as this."""
        own = dataclasses.replace(self, driver_id=record.driver_id).inside(record)
        return own.to_bytes() == record.to_bytes()

    @classmethod
    def receive(cls: type[S], run: Storage, driver_id: str, digest: str) -> S:
        """Return the request that a driver was submitted with.

        Raises:
            CorruptDocumentError: the document is damaged, or was changed after it was submitted.
        """
        path = f"submissions/{driver_id}.json"
        record = SubmissionRecord.read(run, path)
        if record is None or record.command != cls.COMMAND:
            raise UnknownJobError(
                f"{run.url}/{path}: no such request; a driver is started by its submission"
            )
        try:
            spec: S = decode(cls, record.request)
        except Mismatch as error:
            raise CorruptDocumentError(f"{run.url}/{path}: not a {cls.__name__}: {error}") from None
        if spec.sha256() != digest:
            raise CorruptDocumentError(
                f"{run.url}/{path}: it was changed after driver {driver_id} was submitted"
            )
        return spec


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSpec(RunOptions, DriverSpec):
    """The request of a run; None where the job decides.

    Attributes:
        run_id: None for the job's unfinished run, or a new one.
        from_savepoint: URL of the savepoint that the job begins from, in a new job directory.
        state_partitions: repartition the savepoint's state; None for its own number.
        replaces_job: the identity of a lost job directory, whose outputs a new job continues.
        bootstrap: ``discard`` or ``keep``, for a run that only makes state: no query or source ends
            in it, and ``discard`` writes nothing. None for any other run.
    """

    COMMAND: ClassVar[str] = "run"

    run_id: str | None = option(
        "--run-id",
        "the run to begin or resume; default: the unfinished one of the newest ten, or a new one",
        default=None,
        argument="run_id",
        metavar="ID",
    )
    from_savepoint: str | None = option(
        "--from-savepoint",
        "begin a new job from a savepoint",
        default=None,
        argument="from_savepoint",
        fixed=whole,
        metavar="URL",
    )
    state_partitions: int | None = option(
        "--state-partitions",
        "with a savepoint to begin from: spread its state over N partitions",
        default=None,
        argument="state_partitions",
        is_once=True,
        type=int,
        metavar="N",
    )
    replays: str | None = option(
        "--replay",
        "first undo this run: revert its rows, and set the job back to before it",
        default=None,
        is_once=True,
        metavar="RUN_ID",
    )
    with_later: bool = option(
        "--with-later",
        "with --replay: first undo the runs that have built on that one, too, the newest first",
        default=False,
        is_once=True,
        action="store_true",
    )
    replaces_job: str | None = option(
        "--replaces-job",
        "the identity of a lost job directory, to whose output this new job adds rows",
        default=None,
        argument="replaces_job",
        is_once=True,
        metavar="IDENTITY",
    )
    bootstrap: str | None = None

    def __post_init__(self) -> None:
        self.check()
        if self.mode == "batch" and self.from_savepoint is not None:
            raise ConfigError(
                "mode 'batch' begins empty, without a savepoint; use mode 'streaming'"
            )
        if self.run_id is not None:
            check_name(self.run_id, what="run id")
        if self.run_id is not None and self.run_id == self.replays:
            raise ConfigError(
                f"run {self.run_id!r} cannot take its own place: what is rewound no longer counts; "
                "use another run id"
            )
        if self.with_later and self.replays is None:
            raise ConfigError(
                "--with-later goes with --replay: name the run that is undone with the later ones"
            )
        check_begins_from(self.from_savepoint, self.state_partitions)
        check_replaces_job(self.replaces_job)
        self.check_params()

    @property
    def stored_interval(self) -> tuple[str, str] | None:
        return (to_iso(self.interval[0]), to_iso(self.interval[1])) if self.interval else None
