"""Files of others in a folder that is to become a job directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.jobdir import identity
from airflow_provider.runtime.storage.open import local_path_of

if TYPE_CHECKING:
    from airflow_provider.runtime.jobdir.layout import JobDirectory

_JOB: Final = "job.json"
_OURS: Final = frozenset(
    (
        *("bells", "bootstraps", "heartbeats", "leases", "queries", "replies", "requests"),
        *("restores", "retired.json", "runs", "savepoints", "upgrades"),
        *(identity.PATH, identity.PREDECESSORS),
    )
)
_SHOWN: Final = 3


def neighbour_lines(directory: JobDirectory) -> list[str]:
    """Return a warning if a job would begin among files that are not its own.

    They are never touched. But a job directory that is no longer needed is removed as a whole, by
    its owner, and a project's or the input's folder is easily given by mistake. A store is not
    looked at: a prefix has no owner.
    """
    local = local_path_of(directory.url)
    if local is None or not Path(local).is_dir():
        return []
    names = {path.name for path in Path(local).iterdir() if not path.name.startswith(".")}
    others = sorted(names - _OURS)
    if _JOB in names or not others:
        return []
    more = "" if len(others) <= _SHOWN else f" and {len(others) - _SHOWN} more"
    return [
        f"{directory.url}: files that are no job's are there ({', '.join(others[:_SHOWN])}{more}); "
        "a job directory is removed as a whole one day, so name a folder of its own"
    ]
