"""Credentials for S3 that somebody hands over, in place of those of the process's environment.

They hold for a block of code, in its thread or task: one process, such as Airflow's triggerer,
opens the jobs of many people. They are never part of an address, which is logged and stored.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoreCredentials:
    """Keys for S3, and where it is; what is None comes from the environment.

    Attributes:
        named: what an error calls them.
        key: the access key's id.
        secret: the secret access key.
        token: of a session; None without one, also if the environment has one.
        region: of the bucket.
        endpoint: of another store with S3's protocol.
    """

    named: str
    key: str
    secret: str = dataclasses.field(repr=False)
    token: str | None = dataclasses.field(default=None, repr=False)
    region: str | None = None
    endpoint: str | None = None

    def options(self) -> dict[str, Any]:
        """Return the arguments of ``s3fs.S3FileSystem``."""
        given = {"key": self.key, "secret": self.secret, "token": self.token}
        place = {"region_name": self.region, "endpoint_url": self.endpoint}
        return {**given, "client_kwargs": {name: value for name, value in place.items() if value}}

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return *environ* with these credentials, as boto, Spark and Hadoop read them there."""
        given = {
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_SESSION_TOKEN": self.token,
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ENDPOINT_URL_S3": self.endpoint,
        }
        # The token of another key would make this one invalid.
        others = {name: value for name, value in environ.items() if name != "AWS_SESSION_TOKEN"}
        return {**others, **{name: value for name, value in given.items() if value}}


_in_use: Final[contextvars.ContextVar[StoreCredentials | None]] = contextvars.ContextVar(
    "spark_stream_credentials", default=None
)


def credentials_in_use() -> StoreCredentials | None:
    """Return what S3 is opened with here; None for what the environment says."""
    return _in_use.get()


@contextlib.contextmanager
def using(credentials: StoreCredentials | None) -> Iterator[None]:
    """Open S3 with these until the block ends; None for what the environment says."""
    before = _in_use.get()
    _in_use.set(credentials)
    try:
        yield
    finally:
        _in_use.set(before)
