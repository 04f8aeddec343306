"""The contract of a sink, as tests: subclass it for a sink of your own, see docs/sinks.md.

A fixture ``spark`` gives the session that makes the rows. A test that replaces a sink's staging
gives ``make_frame`` instead, and needs no Spark. The suite kills and stops real processes in the
middle of a commit and of a revert, at every failpoint that the sink passes. It needs ``pytest``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from typing import TYPE_CHECKING

import pytest

from airflow_provider.runtime.api.sinks import (
    Committable,
    MarkedSink,
    OpenFence,
    RevertibleSink,
    Writer,
)
from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.errors import (
    CheckpointError,
    ConfigError,
    CorruptDocumentError,
    LeaseLostError,
    SinkError,
)
from airflow_provider.runtime.testing.sink_bench import (
    OTHER_QUERY_ID,
    QUERY_ID,
    SCHEMA,
    InterruptedFence,
    LosingFence,
    SinkBench,
    SinkCase,
    TamperedCase,
    together,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from airflow_provider.runtime.testing.sink_bench import Row


class SinkContract:
    """What :class:`~airflow_provider.runtime.api.sinks.Sink` promises.

    A subclass gives the fixture ``case``, a fresh :class:`SinkCase`, and a ``spark`` session or
    ``make_frame``, which returns a frame of rows ``(id, name)``.
    """

    @pytest.fixture
    def make_frame(self, spark: SparkSession) -> Callable[[list[Row]], DataFrame]:
        return lambda rows: spark.createDataFrame(rows, SCHEMA).repartition(2)

    @pytest.fixture
    def bench(self, case: SinkCase, make_frame: Callable[[list[Row]], DataFrame]) -> SinkBench:
        return SinkBench(case, make_frame)

    # --- staging and publishing -----------------------------------------------------------------

    def test_staged_rows_are_invisible(self, bench: SinkBench) -> None:
        """Before its commit no reader sees a row of an epoch."""
        bench.stage(0, "a", "b")

        assert [] == bench.visible()

    def test_a_commit_publishes_exactly_the_staged_rows(self, bench: SinkBench) -> None:
        """After the commit readers see the epoch's rows, each once."""
        bench.commit(bench.stage(0, "a", "b", "c"))

        assert bench.rows(0, "a", "b", "c") == bench.visible()

    def test_epochs_add_up(self, bench: SinkBench) -> None:
        """Every epoch adds its rows to those before it."""
        for epoch in range(3):
            bench.commit(bench.stage(epoch, f"row {epoch}"))

        assert sorted(r for e in range(3) for r in bench.rows(e, f"row {e}")) == bench.visible()

    def test_an_epoch_without_rows(self, bench: SinkBench) -> None:
        """An epoch without rows is staged and published like any other, first or later."""
        bench.commit(bench.stage(0))
        bench.commit(bench.stage(1, "a"))
        bench.commit(bench.stage(2))

        assert bench.rows(1, "a") == bench.visible()

    def test_a_committable_is_json_and_all_that_is_needed(self, bench: SinkBench) -> None:
        """Another sink object publishes what it reads from JSON."""
        staged = bench.stage(0, "a")
        read = Committable(staged.epoch, json.loads(json.dumps(staged.data)))
        bench.case.open().commit(read, OpenFence())

        assert bench.rows(0, "a") == bench.visible()

    def test_a_commit_twice_is_a_commit(self, bench: SinkBench) -> None:
        """A second commit changes nothing, by any process at any time, also after a later epoch."""
        committable = bench.stage(0, "a")
        for sink in (bench.sink, bench.sink, bench.case.open()):
            sink.commit(committable, OpenFence())
        assert 0 == bench.child("commit", [committable]).wait()[0]
        assert bench.rows(0, "a") == bench.visible()

        for again in (bench.stage(1, "b"), committable):
            bench.commit(again)
        assert bench.all_rows() == bench.visible()

    def test_an_epoch_left_out_is_never_taken_for_published(self, bench: SinkBench) -> None:
        """After a later epoch an earlier one is published or refused, each time it is tried."""
        late, later = bench.stage(0, "a"), bench.stage(1, "b")
        bench.commit(later)
        with contextlib.suppress(CheckpointError):
            bench.commit(late)  # files may still be put beside others
            assert bench.all_rows() == bench.visible()
        assert bench.visible() in (bench.rows(1, "b"), bench.all_rows())

    @pytest.mark.parametrize("refusal", [CheckpointError, LeaseLostError])
    def test_an_epoch_left_out_during_its_commit_is_not_taken_for_published(
        self, bench: SinkBench, refusal: type[Exception]
    ) -> None:
        """A later epoch is published between two steps: the earlier one is seen, or refused.

        A driver whose lease was lost meanwhile learns that first.
        """
        late, later = bench.stage(0, "a"), bench.stage(1, "b")
        lease = LosingFence(2 if refusal is LeaseLostError else sys.maxsize)

        def happen() -> None:
            lease.check()
            bench.commit(later)

        try:
            bench.case.open().commit(late, InterruptedFence(happen, times=2))
        except refusal:
            assert bench.rows(1, "b") == bench.visible()
        else:
            assert bench.all_rows() == bench.visible()

    def test_an_overtaken_driver_learns_of_its_lease_first(self, bench: SinkBench) -> None:
        """A driver whose lease is lost learns that, and not that its epoch was left out."""
        late, later, fence = bench.stage(0, "a"), bench.stage(1, "b"), LosingFence(sys.maxsize)
        bench.commit(later)
        try:
            bench.case.open().commit(late, fence)
        except CheckpointError:
            with pytest.raises(LeaseLostError):
                bench.case.open().commit(late, LosingFence(fence.checks))

    @pytest.mark.parametrize("epoch", [0, 1])
    def test_an_epoch_published_during_its_commit_is_there_once(
        self, bench: SinkBench, epoch: int
    ) -> None:
        """Another driver publishes the epoch between two steps of its commit."""
        for number in range(epoch):
            bench.commit(bench.stage(number, "before"))
        committable = bench.stage(epoch, "a", "b")
        bench.case.open().commit(committable, InterruptedFence(lambda: bench.commit(committable)))

        assert bench.all_rows() == bench.visible()

    def test_each_query_has_its_own_epochs(self, bench: SinkBench) -> None:
        """Two queries that write to one location number their epochs independently."""
        bench.commit(bench.stage(5, "a"))
        bench.commit(bench.stage(0, "b", query_id=OTHER_QUERY_ID))

        assert bench.all_rows() == bench.visible()

    def test_a_commit_without_its_staging_is_an_error(self, bench: SinkBench) -> None:
        """A commit whose staged rows are gone is no success, and shows nothing."""
        committable = bench.stage(0, "a")
        bench.sink.abort(committable)
        with pytest.raises(SinkError):
            bench.commit(committable)

        assert [] == bench.visible()

    def test_a_record_that_names_other_data_is_refused(self, bench: SinkBench) -> None:
        """It publishes and reverts nothing, also beside a true one, and what it names stays."""
        if not isinstance(bench.case, TamperedCase):
            pytest.skip("the case changes no record")
        kept, true = bench.stage(0, "kept"), bench.stage(1, "a")
        bench.commit(kept)
        for data in bench.case.tampered(true):
            changed, sink = Committable(true.epoch, data), bench.case.open()
            with contextlib.suppress(CorruptDocumentError):
                sink.abort(changed)  # a sink may go by the epoch alone
            true = bench.stage(1, "a")
            with pytest.raises(CorruptDocumentError, match="the record of epoch 1 of query 'q'"):
                sink.commit(changed, OpenFence())
            if isinstance(sink, RevertibleSink):
                with pytest.raises(CorruptDocumentError, match="the record of epoch 1"):
                    sink.revert([changed, kept], OpenFence())
            assert bench.rows(0, "kept") == bench.visible(), data
        bench.commit(true)

        assert bench.all_rows() == bench.visible()

    def test_it_records_which_job_directory_has_published(self, bench: SinkBench) -> None:
        """By the directory's address; and the last epoch of each query."""
        sink = bench.sink
        if not isinstance(sink, MarkedSink):
            pytest.skip("the sink does not record it")
        assert (0, -1) == (len(sink.writers("/jobs/a")), sink.last_epoch(QUERY_ID))
        for epoch, (job_dir, identity) in enumerate((("/jobs/a", "a" * 15), ("/jobs/b", "b" * 15))):
            writer = Writer(job_dir, identity)
            bench.commit(dataclasses.replace(bench.stage(epoch, "x"), writer=writer))

        assert (["a" * 15], ["b" * 15]) == (
            [*sink.writers("/jobs/a")],
            [*sink.writers("/jobs/b")],
        )
        assert 1 == sink.last_epoch(QUERY_ID)

    def test_two_at_once_publish_once(self, bench: SinkBench) -> None:
        """Two drivers that commit one epoch at the same moment publish its rows once."""
        for epoch in range(3):
            committable = bench.stage(epoch, "a", "b")
            together([bench.case.open() for _ in range(3)], committable)

        assert sorted(r for e in range(3) for r in bench.rows(e, "a", "b")) == bench.visible()

    def test_processes_at_once_publish_once(self, bench: SinkBench) -> None:
        """Three processes that commit one epoch at the same moment publish its rows once."""
        committable = bench.stage(0, "a", "b")
        children = [bench.child("commit", [committable]) for _ in range(3)]
        ended = [child.wait() for child in children]
        assert [0, 0, 0] == [code for code, _ in ended], ended

        assert bench.rows(0, "a", "b") == bench.visible()

    # --- aborting, recovering -------------------------------------------------------------------

    def test_abort_takes_nothing_but_what_was_staged(self, bench: SinkBench) -> None:
        """An aborted epoch is gone, twice aborted as well; published and staged ones stay."""
        published = bench.stage(0, "a")
        bench.commit(published)
        aborted, staged = bench.stage(1, "b", token=1), bench.stage(1, "c", token=2)
        for committable in (aborted, aborted, published):
            bench.sink.abort(committable)
        bench.commit(staged)

        assert sorted(bench.rows(0, "a") + bench.rows(1, "c")) == bench.visible()

    def test_recovery_removes_garbage_only(self, bench: SinkBench) -> None:
        """What is garbage goes; published rows and what still waits stay. Twice as well."""
        bench.commit(bench.stage(0, "a"))
        bench.stage(1, "half", token=1)
        waiting = bench.stage(1, "b", token=2)
        for _ in range(2):  # a published epoch is no garbage, even if it is called so
            bench.sink.recover(QUERY_ID, lambda e, t: (e, t) != (1, 2), OpenFence(3))
        assert bench.rows(0, "a") == bench.visible()

        bench.sink.commit(waiting, OpenFence(3))
        assert sorted(bench.rows(0, "a") + bench.rows(1, "b")) == bench.visible()

    def test_recovery_of_nothing(self, bench: SinkBench) -> None:
        """A query that never staged anything has nothing to recover, whatever is garbage."""
        bench.sink.recover(QUERY_ID, lambda *_: True, OpenFence())

        assert [] == bench.visible()

    def test_recovery_leaves_other_queries_alone(self, bench: SinkBench) -> None:
        """What another query has staged for the same location is not touched."""
        theirs = bench.stage(0, "a", query_id=OTHER_QUERY_ID)
        bench.sink.recover(QUERY_ID, lambda *_: True, OpenFence())
        bench.commit(theirs)

        assert bench.rows(0, "a") == bench.visible()

    # --- fencing --------------------------------------------------------------------------------

    def test_every_visible_step_is_fenced(self, bench: SinkBench) -> None:
        """A driver that loses its lease at any check stops; the next commit completes it."""
        first = bench.stage(0, "a", "b")
        with pytest.raises(LeaseLostError):
            bench.sink.commit(first, LosingFence(1))
        assert [] == bench.visible()

        for lost_at in range(2, 50):
            with contextlib.suppress(LeaseLostError):
                bench.case.open().commit(first, LosingFence(lost_at))
                break
            assert set(bench.visible()) <= set(bench.rows(0, "a", "b"))
        assert bench.rows(0, "a", "b") == bench.visible()

    def test_a_driver_stopped_in_a_commit_changes_nothing_later(self, bench: SinkBench) -> None:
        """A driver stopped at any step continues after another one has taken over: rows once."""
        points = bench.points("commit", [bench.stage(0, "a")])
        for epoch, point in enumerate(points, start=1):
            committable = bench.stage(epoch, "b", "c")
            # Not lower than the last one that took over: a sink may have shut those out.
            stopped = bench.child(
                "commit", [committable], token=1 + epoch, fails_at=point, stops=True
            )
            assert stopped.wait_until_stopped(), stopped.wait()
            later = bench.case.open()
            later.recover(QUERY_ID, lambda *_: False, OpenFence(2 + epoch))
            later.commit(committable, OpenFence(2 + epoch))
            before = bench.visible()
            stopped.go_on()
            stopped.wait()

            assert bench.all_rows() == before == bench.visible(), point

    # --- dying ----------------------------------------------------------------------------------

    def test_a_commit_that_dies_anywhere_is_completed(self, bench: SinkBench) -> None:
        """A process dies at every step, a second one at the same step again; then it completes."""
        points = bench.points("commit", [bench.stage(0, "a")])
        assert points
        for epoch, point in enumerate(points, start=1):
            committable = bench.stage(epoch, "b", "c")
            for again in (False, True):
                died, stderr = bench.child("commit", [committable], fails_at=point).wait()
                # The second time there may be nothing left to do at that step.
                assert failpoints.CRASH_EXIT == died or (again and died == 0), stderr
                assert set(bench.visible()) <= set(bench.all_rows())
            bench.case.open().commit(committable, OpenFence())

            assert bench.all_rows() == bench.visible(), point

    # --- refusing -------------------------------------------------------------------------------

    def test_check_writes_nothing(self, bench: SinkBench) -> None:
        """What can work is accepted, and nothing is visible afterwards; what cannot is refused."""
        df = bench.frame("a")
        bench.sink.check(df, "append")
        with pytest.raises(ConfigError, match=r"complete"):
            bench.sink.check(df, "complete")

        assert [] == bench.visible()

    def test_the_name_is_stable(self, bench: SinkBench) -> None:
        """Two objects for the same location have the same name."""
        assert bench.sink.name == bench.case.open().name


class RevertibleSinkContract(SinkContract):
    """What :class:`~airflow_provider.runtime.api.sinks.RevertibleSink` promises, too."""

    def test_reverting_removes_the_given_epochs(self, bench: SinkBench) -> None:
        """Exactly the rows of the given epochs go, published or not; twice is once."""
        kept = bench.stage(0, "kept")
        others = bench.stage(4, "others", query_id=OTHER_QUERY_ID)
        first, second, waiting = (bench.stage(epoch, "a", "b") for epoch in (1, 2, 3))
        for committable in (kept, first, others, second):
            bench.commit(committable)
        for _ in range(2):
            bench.revertible.check_revert([waiting, second, first])
            bench.revertible.revert([waiting, second, first], OpenFence())

            assert sorted(bench.rows(0, "kept") + bench.rows(4, "others")) == bench.visible()

    def test_a_late_commit_does_not_bring_rows_back(self, bench: SinkBench) -> None:
        """A driver that was paused before it committed publishes nothing after a revert."""
        published, waiting = bench.stage(0, "a"), bench.stage(1, "b")
        bench.commit(published)
        bench.revertible.revert([waiting, published], OpenFence())
        for late in (published, waiting):
            with contextlib.suppress(LeaseLostError, SinkError):
                bench.case.open().commit(late, OpenFence())

        assert [] == bench.visible()

    @pytest.mark.parametrize("epoch", [0, 1])
    def test_a_revert_during_a_commit_wins(self, bench: SinkBench, epoch: int) -> None:
        """An epoch that is reverted between two steps of its commit is not seen."""
        for number in range(epoch):
            bench.commit(bench.stage(number, "before"))
        before, waiting = bench.visible(), bench.stage(epoch, "a")
        fence = InterruptedFence(lambda: bench.revertible.revert([waiting], OpenFence()))
        with contextlib.suppress(LeaseLostError, SinkError):
            bench.case.open().commit(waiting, fence)

        assert before == bench.visible()

    def test_a_driver_stopped_in_a_commit_loses_to_a_revert(self, bench: SinkBench) -> None:
        """A driver stopped at any step continues after its epoch was reverted: no row appears."""
        points = bench.points("commit", [bench.stage(0, "a")])
        for number, point in enumerate(points, start=2):
            taken = [bench.stage(number, "b", query_id=f"{number}{QUERY_ID[1:]}")]
            stopped = bench.child("commit", taken, fails_at=point, stops=True)
            assert stopped.wait_until_stopped(), stopped.wait()
            bench.case.open().recover(taken[0].epoch.query_id, lambda *_: False, OpenFence(2))
            bench.revertible.revert(taken, OpenFence(2))
            stopped.go_on()
            stopped.wait()

            assert bench.rows(0, "a") == bench.visible(), point

    def test_of_two_stagings_the_published_one_is_reverted(self, bench: SinkBench) -> None:
        """The published rows of an epoch that was staged twice go, and a new query may write."""
        obsolete, published = bench.stage(0, "half"), bench.stage(0, "a", "b", token=2)
        bench.commit(published, token=2)
        bench.revertible.check_revert([published, obsolete])
        bench.revertible.revert([published, obsolete], OpenFence(2))
        assert [] == bench.visible()

        bench.commit(bench.stage(0, "new", query_id=OTHER_QUERY_ID))
        assert bench.rows(0, "new") == bench.visible()

    def test_a_revert_that_dies_anywhere_is_completed(self, bench: SinkBench) -> None:
        """A process dies at every step of a revert; the same call again completes it."""
        kept = bench.stage(0, "kept")
        bench.commit(kept)
        trial = bench.stage(1, "a")
        bench.commit(trial)
        points = bench.points("revert", [trial])
        assert points
        for epoch, point in enumerate(points, start=2):
            # A query's id ends with a revert.
            taken = [bench.stage(epoch, "b", "c", query_id=f"{epoch}{QUERY_ID[1:]}")]
            bench.commit(taken[0])
            died, stderr = bench.child("revert", taken, fails_at=point).wait()
            assert failpoints.CRASH_EXIT == died, stderr
            bench.revertible.revert(taken, OpenFence())

            assert bench.rows(0, "kept") == bench.visible(), point

    def test_a_revert_is_fenced(self, bench: SinkBench) -> None:
        """A driver that loses its lease at any check stops; the next revert completes it."""
        bench.revertible.revert([], OpenFence())
        committable = bench.stage(0, "a")
        bench.commit(committable)
        with pytest.raises(LeaseLostError):
            bench.revertible.revert([committable], LosingFence(1))
        assert bench.rows(0, "a") == bench.visible()

        for lost_at in range(2, 50):
            with contextlib.suppress(LeaseLostError):
                bench.revertible.revert([committable], LosingFence(lost_at))
                break
            assert set(bench.visible()) <= set(bench.rows(0, "a"))
        assert [] == bench.visible()
