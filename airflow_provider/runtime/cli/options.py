"""Options that several commands have."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse


def add_secret_param(command: argparse.ArgumentParser) -> None:
    """Add the option for parameters that are neither stored nor shown."""
    command.add_argument(
        "--secret-param",
        action="append",
        default=[],
        metavar="K=VARIABLE",
        help="for the job, from this environment variable; its value is neither stored nor shown",
    )
