"""The position of a watcher among the events that it reports; each event carries it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any, Final

FIELD: Final = "position"
"""The field of an event's payload that holds the position after it, and where it is stored."""


@dataclasses.dataclass(frozen=True)
class Position:
    """The position of a watcher.

    Attributes:
        number: of reported events, which only grows.
        state: of the source of events after the last of them; plain JSON.
        ahead: the events that may have been reported after it, as they were found: each has ``id``,
            ``payload`` and ``state``.
    """

    number: int
    state: dict[str, Any]
    ahead: tuple[dict[str, Any], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        ahead = {"ahead": [*self.ahead]} if self.ahead else {}
        return {"v": 1, "number": self.number, "state": self.state, **ahead}

    @classmethod
    def from_dict(cls, raw: Any) -> Position | None:
        """Return what :meth:`to_dict` has written; None for anything else, such as nothing."""
        if not isinstance(raw, dict) or not isinstance(raw.get("number"), int):
            return None
        return cls(raw["number"], dict(raw["state"]), tuple(raw.get("ahead", ())))

    def is_newer(self, stored: Position | None) -> bool:
        return stored is None or self.number > stored.number


def position_key(kind: str, arguments: dict[str, Any]) -> str:
    """Return under which key a position is stored: one for each sort of events of each stream."""
    text = json.dumps(arguments, sort_keys=True)
    return f"spark_stream/{kind}/{hashlib.sha256(text.encode()).hexdigest()[:16]}"


_DESCRIPTION: Final = "The position of an asset watcher of streaming jobs; the watcher writes it"


class VariableStore:
    """Stores values as an asset's state store does, each in a variable of Airflow's database.

    A trigger's messages to its supervisor belong to the event loop, so variables are requested on
    threads that return to it.
    """

    async def aget(self, key: str) -> Any:
        from airflow.sdk import Variable
        from asgiref.sync import sync_to_async

        return await sync_to_async(Variable.get)(_name(key), default=None, deserialize_json=True)

    async def aset(self, key: str, value: Any) -> None:
        from airflow.sdk import Variable
        from asgiref.sync import sync_to_async

        await sync_to_async(Variable.set)(_name(key), value, _DESCRIPTION, serialize_json=True)


def _name(key: str) -> str:
    return key.replace("/", ".")  # Airflow's page has a variable's name in an address
