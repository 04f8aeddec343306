"""``spark-stream status --watch``: follows a run until it ends, or nobody drives it any more."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.cli.batch_lines import batch_lines, last_batches
from airflow_provider.runtime.cli.live_block import live_block
from airflow_provider.runtime.cli.progress_lines import progress_lines
from airflow_provider.runtime.cli.rates import Rates
from airflow_provider.runtime.clock import utc_text
from airflow_provider.runtime.observe.observer import RunWatcher
from airflow_provider.runtime.observe.state import RunState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider.runtime.cli.batch_lines import Batches
    from airflow_provider.runtime.cli.live_block import LiveBlock
    from airflow_provider.runtime.cli.rates import QueryPace
    from airflow_provider.runtime.clock import Clock
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.jobdir.run_records import ProgressRecord

_AT_WORK: Final = frozenset({RunState.RUNNING, RunState.STARTING})


def follow(directory: JobDirectory, run_id: str, *, every_s: float, clock: Clock) -> None:
    """Show a run again and again: on a terminal in one place, elsewhere as lines.

    Returns when the run has ended, when nobody drives it, and when the caller is interrupted.

    Args:
        directory: the job directory.
        run_id: the run.
        every_s: seconds between two looks.
        clock: time.
    """
    watcher, run = RunWatcher(directory.storage, run_id, clock), directory.run(run_id)
    before: ProgressRecord | None = None
    rates = Rates(clock)
    with live_block(sys.stdout) as block:
        try:
            while watcher.decide(view := watcher.look()).run_state in _AT_WORK:
                if view.progress is not None and view.progress != before:
                    paces = rates.look(view.progress)
                    _show(block, view.progress, last_batches(run, view.progress.queries), paces)
                before = view.progress
                clock.sleep(every_s)
        except KeyboardInterrupt:  # so a person ends it
            return


def _show(
    block: LiveBlock | None,
    progress: ProgressRecord,
    batches: Batches,
    paces: Mapping[str, QueryPace],
) -> None:
    if block is not None:
        block.update(progress_lines(progress, paces, columns=block.columns(), batches=batches))
        return
    rate = f"{progress.rows_per_second:,.0f} rows/s"
    print(f"{utc_text(progress.at)} {progress.phase}, {progress.rows_read:,} rows read, {rate}")
    for line in batch_lines(batches, progress.to_dict()):
        print(f"  {line}", flush=True)
