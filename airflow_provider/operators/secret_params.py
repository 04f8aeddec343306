"""Secret parameters of a job: they travel in the environment of its driver, and are never stored.

The request names the environment variables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider.airflow_versions import mask_secret
from airflow_provider.runtime.errors import redaction

if TYPE_CHECKING:
    from collections.abc import Mapping


class SecretParams:
    """The secret parameters of one task.

    Args:
        values: by name; they are masked in this process's texts and the task's log.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = {name: str(value) for name, value in sorted(values.items())}
        for value in self._values.values():
            mask_secret(value)
        redaction.remember(self._values)

    @property
    def values(self) -> dict[str, str]:
        return dict(self._values)

    @property
    def variables(self) -> dict[str, str]:
        return {name: f"{redaction.VARIABLES}{n}" for n, name in enumerate(self._values, start=1)}

    @property
    def environment(self) -> dict[str, str]:
        return {variable: self._values[name] for name, variable in self.variables.items()}
