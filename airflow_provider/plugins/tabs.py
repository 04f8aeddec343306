"""Tabs of the page that are found by entry points; an error of one stays in its tab."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
from typing import TYPE_CHECKING

from fastapi import HTTPException

from airflow_provider.hooks.api import VIEWS, View
from airflow_provider.plugins.responses import SectionsView, TabsView, TabView
from airflow_provider.runtime.base.extensions import load_extension, names_in
from airflow_provider.runtime.errors import ConfigError, SparkStreamError

if TYPE_CHECKING:
    from airflow_provider.plugins.service import StreamService
    from airflow_provider.plugins.task_index import IndexedTask


async def tabs_of(service: StreamService, task: IndexedTask) -> TabsView:
    """Return the tabs that concern a job, also those that cannot tell: each shows its own error."""
    found = await asyncio.gather(*(_tab(service, task, name) for name in names_in(VIEWS)))
    return TabsView(tabs=[tab for tab in found if tab is not None])


async def read_tab(service: StreamService, task: IndexedTask, name: str) -> SectionsView:
    """Return what a tab shows of a job.

    Raises:
        HTTPException: there is no such tab, or it has failed.
    """
    return await service.read_tab(task, name, functools.partial(_sections, name))


async def _tab(service: StreamService, task: IndexedTask, name: str) -> TabView | None:
    look = functools.partial(_listed, name)
    try:
        return await service.read_tab(task, f"{name}: concerns", look)
    except HTTPException:  # its storage is silent
        return TabView(name=name, title=name)


def _listed(name: str, job_dir: str) -> TabView | None:
    title = name
    try:
        view = _view(name)
        title = str(view.title)
        return TabView(name=name, title=title) if view.concerns(job_dir) else None
    except Exception:  # noqa: BLE001 - another package's code may raise anything
        return TabView(name=name, title=title)


def _sections(name: str, job_dir: str) -> SectionsView:
    if name not in names_in(VIEWS):
        raise LookupError(name)
    try:
        plain = [dataclasses.asdict(section) for section in _view(name).read(job_dir)]
        json.dumps(plain, allow_nan=False)  # what is no JSON fails here, and not in the answer
        return SectionsView.model_validate({"sections": plain})
    except (OSError, SparkStreamError):
        raise
    except Exception as error:
        first = next(iter(str(error).splitlines()), "")
        msg = f"the tab {name!r} of {VIEWS} has failed: {type(error).__name__}: {first}"
        raise ConfigError(msg) from error


def _view(name: str) -> View:
    view: View = load_extension(VIEWS, name)
    return view
