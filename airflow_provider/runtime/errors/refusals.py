"""Refusals of a start that are reported together, so that no correction leads to the next one."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from airflow_provider.runtime.errors import ConfigError, NotAStreamError
from airflow_provider.runtime.errors.explanation import Explanation, line_here

if TYPE_CHECKING:
    from collections.abc import Iterator


class Refusals:
    """The mistakes that were found in what one start is to do.

    Args:
        collects: whether they wait for :meth:`check`; else each is raised where it is found.
    """

    def __init__(self, *, collects: bool) -> None:
        self._collects = collects
        self._found: list[ConfigError] = []

    def __bool__(self) -> bool:
        return bool(self._found)

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        """Keep a mistake that ends the block."""
        try:
            yield
        except NotAStreamError:  # which decides the mode
            raise
        except ConfigError as error:
            if not self._collects:
                raise
            self._found.append(error)

    @contextlib.contextmanager
    def declaring(self) -> Iterator[None]:
        """Keep a mistake that ends the block, with the line of the job that is being run."""
        with self.collecting():
            try:
                yield
            except ConfigError as error:
                error.at(line_here())
                raise

    @contextlib.contextmanager
    def reporting(self) -> Iterator[None]:
        """Report what was found before with an error that ends the block."""
        try:
            yield
        except NotAStreamError:
            raise
        except Exception as error:
            if not self._found:
                raise
            if isinstance(error, ConfigError):
                self._found.append(error)
            raise _as_one(self._found) from error

    def check(self) -> None:
        """Raise what was found as one error."""
        if self._found:
            raise _as_one(self._found)


def _as_one(found: list[ConfigError]) -> ConfigError:
    different = list({str(each): each for each in found}.values())
    if len(different) == 1:
        return different[0]
    numbered = (f"({number}) {each}" for number, each in enumerate(different, start=1))
    said = "; ".join(numbered)
    error = ConfigError(said)
    error.explanation = Explanation(what=said, mistakes=len(different))
    return error
