"""A task's own parameters of its job, without those that Airflow has merged into them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.jobdir.run_spec import check_params

if TYPE_CHECKING:
    from collections.abc import Mapping


def own_params(params: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the task's own parameters, checked; Airflow has merged the DAG's into them."""
    given = params if params is not None else {}
    get_param = getattr(given, "get_param", None)
    own = {  # not items(), whose values are Airflow's wrappers
        name: given[name]
        for name in given
        if get_param is None or getattr(get_param(name), "source", None) != "dag"
    }
    check_params(own)
    return own
