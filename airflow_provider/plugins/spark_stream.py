"""The plugin of the page "Streams"; every process of Airflow imports it, so it imports little."""

from __future__ import annotations

import functools
import sys
from typing import Any, Final

from airflow_provider.airflow_versions import AirflowPlugin, has_asset_state

URL_PREFIX: Final = "/spark-stream"
"""Where the API and the static files are mounted, below Airflow's own address."""
PAGE: Final = "Streams"
"""The name in the bar, under which the page's module registers its component in the browser."""
_TRIGGERER: Final = "airflow.jobs.triggerer_job_runner"


class SparkStreamPlugin(AirflowPlugin):
    """Adds the page "Streams" to Airflow's bar, and its API to the API server."""

    name = "spark_stream"

    @property
    def listeners(self) -> list[Any]:  # type: ignore[override]  # looked at in each process
        """The listener that registers positions, in processes that register triggers' events.

        Elsewhere none: with any listener Airflow's DAG processor refuses tasks with
        ``end_from_trigger``.
        """
        if _TRIGGERER not in sys.modules or not has_asset_state():
            return []
        from airflow_provider.plugins import event_positions

        return [event_positions]

    @functools.cached_property
    def fastapi_apps(self) -> list[Any]:  # type: ignore[override]  # made once, when it is read
        """Return the application, which only the API server asks for."""
        from airflow_provider.plugins.app import make_app

        return [{"app": make_app(), "url_prefix": URL_PREFIX, "name": "streaming jobs"}]

    @functools.cached_property
    def react_apps(self) -> list[Any]:  # type: ignore[override]  # the same
        """Return the page; its address is relative, so that it holds behind any prefix."""
        from airflow_provider.plugins.app import content_version

        bundle = f"{URL_PREFIX.lstrip('/')}/static/{content_version()}/app.js"
        return [
            {
                "name": PAGE,
                "bundle_url": bundle,
                "destination": "nav",
                "url_route": "spark-stream",
                "nav_top_level": True,
            }
        ]
