"""The contract of sinks that pass it without Spark, too."""

from __future__ import annotations

import pytest

from airflow_provider.runtime.testing.sink_bench import SinkBench
from airflow_provider.runtime.testing.sinks import RevertibleSinkContract


class DyingElsewhere(RevertibleSinkContract):
    """The contract; its processes die, stop and race without Spark in ``make test``."""

    @pytest.mark.whole
    def test_a_commit_that_dies_anywhere_is_completed(self, bench: SinkBench) -> None:
        """As the contract says."""
        super().test_a_commit_that_dies_anywhere_is_completed(bench)

    @pytest.mark.whole
    def test_a_revert_that_dies_anywhere_is_completed(self, bench: SinkBench) -> None:
        """As the contract says."""
        super().test_a_revert_that_dies_anywhere_is_completed(bench)

    @pytest.mark.whole
    def test_a_driver_stopped_in_a_commit_changes_nothing_later(self, bench: SinkBench) -> None:
        """As the contract says."""
        super().test_a_driver_stopped_in_a_commit_changes_nothing_later(bench)

    @pytest.mark.whole
    def test_a_driver_stopped_in_a_commit_loses_to_a_revert(self, bench: SinkBench) -> None:
        """As the contract says."""
        super().test_a_driver_stopped_in_a_commit_loses_to_a_revert(bench)

    @pytest.mark.whole
    def test_processes_at_once_publish_once(self, bench: SinkBench) -> None:
        """As the contract says."""
        super().test_processes_at_once_publish_once(bench)
