"""The published interface of the Airflow side: launchers and tabs of the page "Streams".

A package names its kind of launcher as an entry point of the group ``spark_stream.launchers``,
under the launcher's name, as in ``launcher="livy"``; a tab has the group ``spark_stream.views``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence  # noqa: TC003 - pydantic reads sections
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from airflow_provider.runtime.errors import ConfigError

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from airflow_provider.runtime.api.launchers import Launcher


@runtime_checkable
class LauncherKind(Protocol):
    """A kind of launcher: its connection, its options, and its factory.

    Attributes:
        api_version: the version of this interface that the package was written for.
        conn_types: the accepted types of connections; the first one is its own.
        options: a dataclass; each field is a text option of ``launcher_options``. One with the
            metadata ``mapping`` may also be given as a mapping, and arrives as its JSON.
        is_experimental: whether it was never run against the real service.
        reads_local_paths: whether its drivers reach a job directory on a mounted filesystem.
    """

    api_version: int
    conn_types: tuple[str, ...]
    options: type
    is_experimental: bool
    reads_local_paths: bool

    def open(self, connection: Connection, options: Mapping[str, str], named: str) -> Launcher:
        """Return the launcher with the connection's address and credentials.

        Args:
            connection: one of :attr:`conn_types`.
            options: known options of the launcher, by name.
            named: the connection's id, for messages.

        Raises:
            ConfigError: the connection or an option is wrong.
        """


VIEWS: Final = "spark_stream.views"
"""The group of entry points of tabs."""


@dataclasses.dataclass(frozen=True)
class Bytes:
    """A number of bytes, which the page shows in a unit that fits."""

    bytes: int


@dataclasses.dataclass(frozen=True)
class Moment:
    """A moment, which the page shows in the user's time zone."""

    at: str


@dataclasses.dataclass(frozen=True)
class Link:
    """A text with an address."""

    text: str
    url: str

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(
                f"{self.url!r} is no address of a link: begin it with https:// or http://"
            )


Value = str | int | float | bool | None | Bytes | Moment | Link
"""A value on the page; a text may have several lines."""


@dataclasses.dataclass(frozen=True)
class Table:
    """A table."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of a tab; the page shows its parts in the order of the attributes.

    Attributes:
        detail: small text beside the title.
        is_nested: whether it belongs to the section before it and has a smaller heading.
        facts: values by name; the page omits None.
    """

    title: str | None = None
    detail: str | None = None
    is_nested: bool = False
    text: str | None = None
    facts: Mapping[str, Value] = dataclasses.field(default_factory=dict)
    table: Table | None = None


@runtime_checkable
class View(Protocol):
    """A tab of the page "Streams"; its entry point's name is in the page's address.

    Both methods run on threads of the API server, with a time limit. They only read, must not
    import pyspark, and must not return lines of a driver's log, which need another right.

    Attributes:
        api_version: the version of this interface that the package was written for.
    """

    api_version: int
    title: str

    def concerns(self, job_dir: str) -> bool:
        """Whether the page shows the tab for the job in this directory."""

    def read(self, job_dir: str) -> Sequence[Section]:
        """Return the tab's content.

        Args:
            job_dir: the address of the job directory; the task's storage connection is open.

        Raises:
            ConfigError: a user must fix something.
            OSError: the storage cannot be read.
        """
