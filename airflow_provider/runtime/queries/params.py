"""The parameters of a run, as the job's function sees them."""

from __future__ import annotations

import difflib
import logging
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.errors.fixes import set_param

if TYPE_CHECKING:
    from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView

log = logging.getLogger(__name__)


class Params(dict[str, Any]):
    """Parameters by name. Iterating over all of them counts as reading each."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        super().__init__(given)
        self._unread = set(given)
        self._absent: set[str] = set()

    def __missing__(self, name: str) -> Any:
        given = ", ".join(sorted(super().keys())) or "none"
        raise ConfigError(f"the job needs a parameter {name!r} (given: {given}); {set_param(name)}")

    def __getitem__(self, name: str) -> Any:
        self._looked_for(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self._looked_for(name)
        return super().get(name, default)

    def __contains__(self, name: object) -> bool:
        self._looked_for(name)
        return super().__contains__(name)

    def __iter__(self) -> Iterator[str]:
        self._unread.clear()
        return super().__iter__()

    def keys(self) -> KeysView[str]:  # type: ignore[override]  # a view of this class has no other
        self._unread.clear()
        return super().keys()

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]  # the same
        self._unread.clear()
        return super().items()

    def values(self) -> ValuesView[Any]:  # type: ignore[override]  # the same
        self._unread.clear()
        return super().values()

    def check_read(self) -> None:
        """Check for parameters that the job's function, which has returned, has not read."""
        for name in sorted(self._unread):
            meant = difflib.get_close_matches(name, sorted(self._absent), n=1)
            if meant:
                raise ConfigError(
                    f"parameter {name!r}: the job's function does not read it, and looks for "
                    f"{meant[0]!r}, which is not given; correct the name, or leave it out"
                )
            log.warning("parameter %r is given, and the job's function does not read it", name)

    def _looked_for(self, name: object) -> None:
        self._unread.discard(str(name))
        if isinstance(name, str) and not super().__contains__(name):
            self._absent.add(name)
