"""The contract of sinks whose deaths have tests of their own without Spark."""

from __future__ import annotations

import pytest

from airflow_provider.runtime.testing.sink_bench import SinkBench
from airflow_provider.runtime.testing.sinks import RevertibleSinkContract


class DyingElsewhere(RevertibleSinkContract):
    """The contract; what dies or stops at each step does so in ``tests/unit``, too."""

    @pytest.mark.whole
    def test_a_commit_that_dies_anywhere_is_completed(self, bench: SinkBench) -> None:
        """
        As the contract says.
        """
        super().test_a_commit_that_dies_anywhere_is_completed(bench)

    @pytest.mark.whole
    def test_a_revert_that_dies_anywhere_is_completed(self, bench: SinkBench) -> None:
        """
        As the contract says.
        """
        super().test_a_revert_that_dies_anywhere_is_completed(bench)

    @pytest.mark.whole
    def test_a_driver_stopped_in_a_commit_changes_nothing_later(self, bench: SinkBench) -> None:
        """
        As the contract says.
        """
        super().test_a_driver_stopped_in_a_commit_changes_nothing_later(bench)
