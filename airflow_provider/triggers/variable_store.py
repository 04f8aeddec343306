"""Store of positions in Airflow's variables, for versions whose assets have no state store."""

from __future__ import annotations

from typing import Any, Final

_DESCRIPTION: Final = "How far a watcher of Spark streams has come; it is written by the watcher"


class VariableStore:
    """Stores values as an asset's state store does, each in a variable of Airflow's database.

    A trigger's messages to its supervisor belong to the event loop, so what asks for a variable
    runs in a thread that goes back to that loop, and not in one of our own.
    """

    async def aget(self, key: str) -> Any:
        """Return what is stored; None for nothing."""
        from airflow.sdk import Variable
        from asgiref.sync import sync_to_async

        return await sync_to_async(Variable.get)(_name(key), default=None, deserialize_json=True)

    async def aset(self, key: str, value: Any) -> None:
        """Replace what is stored.

        Crash safety: one statement of the database.
        Idempotent: by the key.
        """
        from airflow.sdk import Variable
        from asgiref.sync import sync_to_async

        await sync_to_async(Variable.set)(_name(key), value, _DESCRIPTION, serialize_json=True)


def _name(key: str) -> str:
    return key.replace("/", ".")  # Airflow's page has a variable's name in an address
