"""Answers of EMR Serverless: the members that are read, by the service's own names."""

# ruff: noqa: N815 - the service's names
from __future__ import annotations

import dataclasses
from typing import Annotated, Final

from airflow_provider.runtime.base.typed_json import at_most

MOST_LISTED: Final = 10_000
"""How many job runs one answer may have; the service gives fifty."""


@dataclasses.dataclass(frozen=True)
class AutoStart:
    """Whether an application starts with its first job run."""

    enabled: bool = True


@dataclasses.dataclass(frozen=True)
class ApplicationState:
    """An application."""

    type: str
    state: str
    autoStartConfiguration: AutoStart = AutoStart()


@dataclasses.dataclass(frozen=True)
class ApplicationAnswer:
    """The answer of ``get_application``."""

    application: ApplicationState


@dataclasses.dataclass(frozen=True)
class StartedAnswer:
    """The answer of ``start_job_run``."""

    jobRunId: str


@dataclasses.dataclass(frozen=True)
class JobRunState:
    """A job run."""

    state: str
    name: str | None = None
    stateDetails: str | None = None


@dataclasses.dataclass(frozen=True)
class JobRunAnswer:
    """The answer of ``get_job_run``."""

    jobRun: JobRunState


@dataclasses.dataclass(frozen=True)
class ListedRun:
    """A job run in a listing."""

    id: str
    name: str | None = None


@dataclasses.dataclass(frozen=True)
class JobRunsAnswer:
    """The answer of ``list_job_runs``."""

    jobRuns: Annotated[tuple[ListedRun, ...], at_most(MOST_LISTED)] = ()
    nextToken: str | None = None
