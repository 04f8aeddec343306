"""Connections to the storage of jobs: Airflow's keys in place of the environment's."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from airflow_provider.hooks import airflow_settings
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.storage.open import (
    StoreCredentials,
    credentials_in_use,
    is_in_s3,
    using,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from airflow.sdk import Connection

P = ParamSpec("P")
T = TypeVar("T")

_TYPE: Final = "aws"
# Of the Amazon provider's connection: what makes other credentials than the keys it has.
_NOT_TAKEN: Final = (
    *("assume_role_method", "assume_role_kwargs", "config_kwargs", "external_id", "profile_name"),
    *("role_arn", "session_kwargs", "verify"),
)


class OpensStorage(Protocol):
    """A task that opens a job directory."""

    storage_conn_id: str | None
    job_dir: Any


Self = TypeVar("Self", bound=OpensStorage)


def credentials_of(conn_id: str | None, job_dir: str | None) -> StoreCredentials | None:
    """Return the credentials of a connection; None for those of the environment.

    Args:
        conn_id: the connection; None for that of Airflow's configuration, if the job is in S3.
        job_dir: URL of the job directory; None if there is none.

    Raises:
        ConfigError: the connection does not exist, or has no keys for S3.
    """
    if not conn_id and job_dir is not None and is_in_s3(job_dir):
        conn_id = airflow_settings.storage_conn_id()
    return _read(conn_id) if conn_id else None  # a template may render to nothing


def opening_storage(
    method: Callable[Concatenate[Self, P], T],
) -> Callable[Concatenate[Self, P], T]:
    """Decorate a method of a task: it opens storage with the task's connection.

    A nested call uses the outer call's credentials: ``on_kill`` may interrupt a request to Airflow,
    and cannot send another.

    Raises:
        AirflowFailException: see :func:`credentials_of`; a retry would fail again.
    """

    @functools.wraps(method)
    def opened(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> T:
        from airflow_provider.airflow_versions import AirflowFailException

        if credentials_in_use() is not None:
            return method(self, *args, **kwargs)
        try:
            location = self.job_dir or getattr(self, "checkpoint", None)
            credentials = credentials_of(self.storage_conn_id, location)
        except ConfigError as error:
            raise AirflowFailException(str(error)) from error
        with using(credentials):
            return method(self, *args, **kwargs)

    return opened


class TaskStorage:
    """Storage as a task opens it, for its trigger, which looks the connection up once."""

    def __init__(self, conn_id: str | None, job_dir: str) -> None:
        self._look_up = functools.cache(lambda: credentials_of(conn_id, job_dir))

    def opened(self) -> AbstractContextManager[None]:
        """Return a block in which storage is opened with the connection; call it in a thread."""
        return using(self._look_up())


def _read(conn_id: str) -> StoreCredentials:
    from airflow.sdk import BaseHook

    from airflow_provider.airflow_versions import AirflowNotFoundException

    named = f"storage_conn_id {conn_id!r}"
    try:
        connection = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise ConfigError(
            f"{named}: Airflow has no such connection; add one of type {_TYPE}"
        ) from error
    if connection.conn_type != _TYPE:
        raise ConfigError(
            f"{named}: is of type {connection.conn_type!r}, and only {_TYPE!r} is taken, for S3; "
            "give the credentials of another store to the environment, as docs/storage.md says"
        )
    return _keys(connection, named)


def _keys(connection: Connection, named: str) -> StoreCredentials:
    from airflow_provider.airflow_versions import mask_secret

    extra = connection.extra_dejson
    other = next((name for name in _NOT_TAKEN if extra.get(name)), None)
    if other is not None:
        raise ConfigError(
            f"{named}: its extra has {other!r}, which is not taken: a stream outlives credentials "
            "that end; give keys to the connection, or the role to the machines, without a "
            "connection"
        )
    key = connection.login or extra.get("aws_access_key_id")
    secret = connection.password or extra.get("aws_secret_access_key")
    if not key or not secret:
        raise ConfigError(
            f"{named}: has no keys; its login is the access key's id, its password the secret one"
        )
    token = extra.get("aws_session_token")
    for value in (secret, token):
        if value:
            mask_secret(value)
    service = (extra.get("service_config") or {}).get("s3") or {}
    return StoreCredentials(
        named=named,
        key=key,
        secret=secret,
        token=token,
        region=extra.get("region_name"),
        endpoint=service.get("endpoint_url") or extra.get("endpoint_url"),
    )
