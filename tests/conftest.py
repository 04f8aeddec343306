"""What holds for every test."""

from __future__ import annotations

import functools
import gc
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).parents[1]
# Modules that share servers, of which one each is enough.
SHARING = ("tests/contract/", "tests/unit/test_sql_sink.py")


def pytest_configure() -> None:
    """Look for no garbage while the tests are imported: there is none yet."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Never look again at what was imported: half a million objects that stay to the end."""
    gc.freeze()
    gc.enable()


class OneJvmAtATime(LoadScopeScheduling):  # type: ignore[misc]  # xdist tells no types here
    """Gives one process all that starts a JVM or Airflow, and the other ones the rest.

    Marks could not say so: xdist's groups do nothing with pytest 9.2.
    """

    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.partition("::")[0]
        if starts_jvm(module):
            return "jvm"
        return next((shared for shared in SHARING if module.startswith(shared)), nodeid)


@functools.cache
def starts_jvm(module: str) -> bool:
    """Tell whether tests of the module start a JVM, or Airflow."""
    return module.startswith("tests/airflow/") or "mark.spark" in (ROOT / module).read_text("utf-8")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneJvmAtATime:
    """Spread the tests over the processes of ``-n``."""
    return OneJvmAtATime(config, log)
