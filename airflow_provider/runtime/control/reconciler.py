"""Reconciler: decides what a task does about the state of the job directory; pure.

=======================================  ===========================================================
found                                    what follows
=======================================  ===========================================================
the final checkpoint                     FINISH
another run's live driver                REFUSE; WAIT with ``on_existing="wait"``, and for the run
                                         that this one replaces, whose driver is stopped
this run's driver, requested to end      WAIT for its end
this run's driver, alive or starting     ADOPT it; REFUSE with ``on_existing="fail"``
anything else                            SUBMIT: nothing yet; an intent that nobody has acted on,
                                         which is revoked; a driver that has ended, died, was
                                         cancelled, or has not come up in time
=======================================  ===========================================================

Airflow's own stores are not read: they may be empty, of another run, or gone.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.observe.state import RunState, driver_at_work

if TYPE_CHECKING:
    from airflow_provider.runtime.observe.state import Assessment, RunSnapshot

ON_EXISTING: Final = ("adopt", "wait", "fail")


class Action(str, enum.Enum):
    """What a task does."""

    FINISH = "finish"
    ADOPT = "adopt"
    WAIT = "wait"  # for the end of a driver that is in the way
    SUBMIT = "submit"
    REFUSE = "refuse"


@dataclasses.dataclass(frozen=True)
class Decision:
    """An action, and the driver it is about.

    Attributes:
        driver_id: of ADOPT, the driver; of WAIT, the one that ends, if it is this run's.
        reason: of REFUSE.
        ends_replaced: whether the driver of the run that is replaced gets a request to end.
    """

    action: Action
    driver_id: str | None = None
    reason: str = ""
    ends_replaced: bool = False


def reconcile(
    view: RunSnapshot,
    assessment: Assessment,
    *,
    on_existing: str = "adopt",
    replays: str | None = None,
    is_leaving: bool = False,
) -> Decision:
    """Decide what to do.

    Args:
        view: what was seen when it was known whether a driver lives.
        assessment: the assessment of that view.
        on_existing: one of :data:`ON_EXISTING`.
        replays: the run that this one takes the place of.
        is_leaving: whether this run's driver was requested to end before its run is over.
    """
    if assessment.run_state is RunState.DONE:
        return Decision(Action.FINISH)
    if assessment.run_state is RunState.FOREIGN:
        is_replaced = view.lease is not None and view.lease.run_id == replays
        waits = on_existing == "wait" or is_replaced
        return (
            Decision(Action.WAIT, ends_replaced=is_replaced)
            if waits
            else Decision(Action.REFUSE, reason=assessment.reason)
        )
    driver_id = driver_at_work(view, assessment.run_state)
    if driver_id is None:
        return Decision(Action.SUBMIT)
    if is_leaving:
        return Decision(Action.WAIT, driver_id)
    if on_existing == "fail":
        reason = f"driver {driver_id} of this run is alive, and on_existing is 'fail'"
        return Decision(Action.REFUSE, driver_id, reason)
    return Decision(Action.ADOPT, driver_id)
