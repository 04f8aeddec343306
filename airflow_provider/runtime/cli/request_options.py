"""Options of the commands that take a request: made from its fields, and read back into one."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider.runtime.jobdir.run_options import Option
    from airflow_provider.runtime.jobdir.run_spec import DriverSpec

S = TypeVar("S", bound="DriverSpec")


def add_options(
    command: argparse.ArgumentParser, kind: type[DriverSpec]
) -> argparse._MutuallyExclusiveGroup:
    """Add an argument for each option of a request.

    Returns:
        The ways to name a job, of which exactly one is given.
    """
    jobs = command.add_mutually_exclusive_group(required=True)
    for name, option in _options(kind):
        place: dict[str, Any] = {"dest": name} if option.flag.startswith("-") else {}
        # What nobody gives is left out, so that the request has the one default.
        (jobs if name == "entry" else command).add_argument(
            option.flag, help=option.help, default=argparse.SUPPRESS, **place, **option.how
        )
    command.add_argument("--driver-id", help=argparse.SUPPRESS, default=None)
    return jobs


def read_options(arguments: argparse.Namespace, kind: type[S]) -> S:
    """Return the request that the arguments are.

    Raises:
        ConfigError: one of them cannot be read, or they contradict each other.
    """
    given = vars(arguments)
    values: dict[str, Any] = {
        name: option.parse(given[name]) if option.parse is not None else given[name]
        for name, option in _options(kind)
        if name in given
    }
    return kind(driver_id=arguments.driver_id, **values)


def _options(kind: type[DriverSpec]) -> Iterator[tuple[str, Option]]:
    for field in dataclasses.fields(kind):
        if "option" in field.metadata:
            yield field.name, field.metadata["option"]
