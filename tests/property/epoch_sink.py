"""A sink in memory for walks of restores, whose rows a test reads by epoch."""

from __future__ import annotations

from typing import Any

from airflow_provider.runtime.api.sinks import Committable, EpochId, Fence, Staged
from tests.unit.support import FakeSink


class EpochSink(FakeSink):
    """A sink that has the rows of each query id and attempt apart, as folders have."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.kept: dict[str, list[str]] = {}

    def recover(self, query_id: str, is_garbage: Any, fence: Fence) -> None:
        for key in [key for key in self.staged if key.startswith(query_id)]:
            epoch, token = key.removeprefix(query_id).split("/")[1:]
            if is_garbage(int(epoch), int(token)):
                del self.staged[key]

    def stage(self, df: Any, epoch: EpochId) -> Staged:
        key = f"{epoch.query_id}/{epoch.epoch}/{epoch.token}"
        self.staged[key] = list(df.rows)
        return Staged({"key": key}, len(df.rows))

    def commit(self, committable: Committable, fence: Fence) -> None:
        fence.check()
        rows = self.staged.pop(committable.data["key"], None)
        if rows is not None:
            self.kept[committable.data["key"]] = rows

    def revert(self, committables: Any, fence: Fence) -> None:
        for committable in committables:
            fence.check()
            for rows in (self.staged, self.kept):
                rows.pop(committable.data["key"], None)
