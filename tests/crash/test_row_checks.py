"""Drivers die at every step of epochs whose rows are written and kept: each row in one place."""

from __future__ import annotations

import json

import pytest
from row_checks import JOBS, rule
from streams import write_events

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.errors import EXIT_OK
from tests.crash.targets import Target

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

EVENTS = [(n, "abc"[n % 3], n) for n in range(12)]
EPOCH = ("sink.staged", "sink.quarantined", "sink.precommitted", "sink.published", "sink.committed")
RECOVERY = ("recover.planned", "recover.aborted", "recover.published", "recover.cleaned")
KINDS = ("files", "bucket", "delta", "iceberg", "postgres")
CASES = [(kind, mode, "rules") for kind in KINDS for mode in ("streaming", "batch")]
# What comes late is kept in the same way, and corrected records are read beside the source.
CASES += [("files", "streaming", "late"), ("files", "streaming", "corrected")]
IN_TEST_ALL = {
    CASES[0],
    ("postgres", "streaming", "rules"),
    ("delta", "batch", "rules"),
    *CASES[-2:],
}


@pytest.mark.parametrize(
    ("kind", "mode", "what"),
    [
        pytest.param(
            *case,
            id="-".join(case),
            marks=pytest.mark.whole if case in IN_TEST_ALL else pytest.mark.soak,
        )
        for case in CASES
    ],
)
def test_each_row_is_in_one_location_wherever_a_driver_dies(
    location, drivers, url, store, *, kind, mode, what
):
    """
    Killed at each step of an epoch and of the recovery from it, the same command ends with each row
    in the output or among the kept ones, once; the run has counted them so.
    """
    late = what == "late"
    more = [(60, "a", 100), (61, "a", 101)] if what != "rules" else []
    ahead = more if late else []  # the watermark is a batch behind
    write_events(location.input, EVENTS[:6], *([event] for event in ahead), EVENTS[6:])
    corrected = location.root / "corrected"
    if what == "corrected":
        write_events(corrected, more)
    rules = location.root / "rules.json"
    rules.write_text(json.dumps([] if late else [rule("small", "v % 4 <> 0")]), encoding="utf-8")
    out, taken = Target(kind, location.root, url, "out"), Target(kind, location.root, url, "taken")
    params = {
        "files_per_batch": "1",
        "sink": kind,
        "output": out.location,
        "quarantine_sink": kind,
        "kept": taken.location,
        "rules": str(rules),
        **({"read": json.dumps({"also": str(corrected)})} if what == "corrected" else {}),
        **({"above": "distinct", "delay": "0 seconds"} if late else {}),
    }
    asked = (f"--entry={JOBS}:checked", f"--mode={mode}", *(("--late=quarantine",) if late else ()))

    deaths = EPOCH if mode == "batch" else [*EPOCH, *RECOVERY]
    for point in deaths:
        driver = drivers.run("checked", params, *asked, SPARK_STREAM_FAILPOINT=point)
        assert (point, failpoints.CRASH_EXIT) == (point, driver.wait()), driver.log[-3000:]
    last = drivers.run("checked", params, *asked)
    assert EXIT_OK == last.wait(), last.log[-3000:]

    written = sorted(int(v) for v in out.values("v"))
    kept = sorted(json.loads(row)["v"] for row in taken.values("row"))
    numbers = [v for _, _, v in [*EVENTS, *more]]
    taken_out = [6, 7, 8, 9, 10, 11] if late else [n for n in numbers if n % 4 == 0]
    assert sorted(set(numbers).difference(taken_out)) == written
    assert taken_out == kept
    final = last.final()
    sinks = final["queries"]["out"]["sinks"]
    assert [len(written), len(kept)] == [sink["rows"] for sink in sinks]
    assert ("FINISHED", len(numbers)) == (final["outcome"], final["rows_read"])
    assert len(deaths) + 1 == final["attempts"]
