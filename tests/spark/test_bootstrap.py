"""A job's first state from history: as if one job had read everything, with any kind of state."""

from __future__ import annotations

import dataclasses
import json
import threading

import pytest
import state_jobs
from driving import Driver
from streams import CONF, JOBS, ROCKSDB, Location, read_with_pandas, windows_of, write_events

from airflow_provider.runtime.bootstrap import bootstrap_job
from airflow_provider.runtime.control.bootstrap_request import BootstrapSpec
from airflow_provider.runtime.driver.run import run_job
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.savepoints.catalog import verify_savepoint
from tests.dying import dies_at

pytestmark = pytest.mark.spark

# The watermark of the past is 18: what ends at 10 is over, what ends at 20 is in the state.
PAST = [(1, "a", 1), (4, "b", 2), (12, "b", 2), (23, "a", 3)]
LIVE = [(24, "a", 3), (26, "b", 4), (28, "a", 9), (31, "a", 5), (47, "a", 6)]
SHOWN = [(2, "x", 1), (22, "y", 1)], [(25, "z", 1), (46, "x", 1)]
CLICKED = [(3, "x", 1), (23, "q", 1)], [(26, "y", 1), (45, "z", 1)]
SOURCES = {"input": (PAST, LIVE), "shown": SHOWN, "clicked": CLICKED}
KINDS = ("windows", "sessions", "distinct", "timers", "joined")


@pytest.fixture
def parted(location):
    """Return the parameters of what was up to a moment, of what came after, and of both."""
    found: dict[str, dict[str, str]] = {"past": {}, "live": {}, "all": {}}
    for name, (past, live) in SOURCES.items():
        for part, files in {"past": [past], "live": [live], "all": [past, live]}.items():
            found[part][name] = str(write_events(location.root / part / name, *files))
    return found


def bootstrap(spark, location, job, params, *, stop=None, **asked):
    ask = BootstrapSpec(
        job_dir=str(location.job_dir),
        entry=asked.pop("entry", f"{JOBS}:{job}"),
        params={"output": str(location.output), **params},
        conf={**CONF, **ROCKSDB},
        **asked,
    )
    return bootstrap_job(ask, spark=spark, stop=stop)


def rows_of(location, kinds=KINDS):
    return {kind: read_with_pandas(location.output / kind) for kind in kinds}


def rows_in(folder):
    return read_with_pandas(folder) if any(folder.glob("*.parquet")) else []


@pytest.mark.soak
def test_history_and_then_the_live_rest_are_one_job_over_everything(spark, location, parted):
    """
    Windows, sessions, deduplication, timers and an outer join: no row lost, none twice, and what
    was not over at the end of history comes after the start and not before.
    """
    before = bootstrap(spark, location, "everything", parted["past"], output="keep")
    early = rows_of(location)
    location.run(
        spark, "everything", params=parted["live"], from_savepoint=before.url, conf=ROCKSDB
    )
    whole = Location(location.root / "whole")
    whole.run(spark, "everything", params=parted["all"], conf=ROCKSDB)

    assert rows_of(whole) == rows_of(location)
    assert windows_of(PAST[:2]) == early["windows"]
    assert [("a", 1), ("b", 1)] == sorted((k, n) for k, _, n in early["timers"])
    saved = before.record.queries["joined"]
    assert [None, None] == saved.sources
    assert ["shown", "clicked"] == [source["name"] for source in saved.source_finish_states]


DEATHS = (
    "bootstrap.recorded",
    "final.sealed",
    "final.put",
    "bootstrap.read",
    "bootstrap.reset_one",
    "savepoint.copied",
    "savepoint.put",
)


@pytest.mark.long
def test_output_is_discarded_and_a_death_at_any_step_is_made_good(spark, location, parted):
    """The same ask goes on; before its end there is no savepoint, and never any output."""
    params = {"input": parted["past"]["input"]}
    target = location.job_dir / "savepoints" / "bootstrap"
    for point in DEATHS:
        assert not (target / "savepoint.json").exists()
        with dies_at(point):
            bootstrap(spark, location, "tumbling_window", params)
    made = bootstrap(spark, location, "tumbling_window", params)

    assert [] == verify_savepoint(made)
    assert not location.output.exists()
    assert ["savepoints"] == [path.name for path in location.job_dir.iterdir()]
    live = {"input": parted["live"]["input"]}
    location.run(spark, "tumbling_window", params=live, from_savepoint=made.url, conf=ROCKSDB)
    assert windows_of([*PAST[2:], *LIVE]) == read_with_pandas(location.output)
    (saved,) = made.record.queries.values()
    assert {"zip"} == {f.path.rpartition(".")[2] for f in saved.files} & {"zip", "changelog"}
    assert made.record == bootstrap(spark, location, "tumbling_window", params).record
    with pytest.raises(ConfigError, match="the job has begun already"):
        bootstrap(spark, location, "tumbling_window", params, to=str(location.root / "second"))


@pytest.mark.long
def test_an_empty_history_is_corrected_by_the_next_command(spark, location, parted):
    """It has left nothing, so nothing has to be removed by hand."""
    (location.root / "empty").mkdir()
    with pytest.raises(ConfigError, match="history has no row for it"):
        bootstrap(spark, location, "tumbling_window", {"input": str(location.root / "empty")})
    assert not (location.job_dir / "bootstraps").exists()

    made = bootstrap(spark, location, "tumbling_window", {"input": parted["past"]["input"]})
    assert [] == verify_savepoint(made)


@pytest.mark.whole
def test_timers_of_the_clock_wait_for_the_live_job(spark, location):
    """
    History ends though its timers and timeouts are still to come; they come when the job runs.
    """
    history = write_events(location.root / "history", [(1, "a", 1), (2, "b", 2), (3, "a", 3)])
    entry, given_up = f"{state_jobs.__file__}:alarms", threading.Event()
    clock = threading.Timer(120, given_up.set)  # a query that does not end ends the test
    clock.start()
    asked = {"output": "keep", "entry": entry, "stop": given_up}
    made = bootstrap(spark, location, "alarms", {"input": str(history)}, **asked)
    clock.cancel()

    def written():
        return {name: rows_in(location.output / name) for name in ("timers", "timeouts")}

    assert {"timers": [], "timeouts": []} == written()
    write_events(location.input, [(10, "c", 1)])  # without a row Spark runs no batch
    asked = {"until": "stopped", "entry": entry, "conf": ROCKSDB, "from_savepoint": made.url}
    driver = Driver(spark, location, "alarms", **asked)
    everything = {name: [("a", 2), ("b", 1), ("c", 1)] for name in ("timers", "timeouts")}
    driver.until(lambda: written() == everything)
    driver.cancel()


@pytest.mark.long
def test_what_would_be_read_twice_is_refused_or_goes_on_where_history_ended(
    spark, location, parted
):
    """
    The same folder in history and in the live job: before anything is read, when the live job
    starts, and with its position kept, each row once.
    """
    params = {"input": parted["past"]["input"]}
    same = {"input": f"{parted['past']['input']}/", "output": "elsewhere"}
    with pytest.raises(ConfigError, match="'events' of the live job .* would read again"):
        bootstrap(spark, location, "tumbling_window", params, live_params=same)
    other = {"input": parted["live"]["input"], "output": "elsewhere"}
    with pytest.raises(ConfigError, match="a position has no meaning in another location"):
        bootstrap(spark, location, "tumbling_window", params, live_params=other, kept=("events",))
    with pytest.raises(ConfigError, match="no such source; it has events"):
        bootstrap(spark, location, "tumbling_window", params, kept=("rows",))
    assert not location.job_dir.exists()

    made = bootstrap(spark, location, "tumbling_window", params)
    ask = location.ask("tumbling_window", params=params, from_savepoint=made.url, conf=ROCKSDB)
    with pytest.raises(ConfigError, match="would read again what the bootstrap of"):
        run_job(ask, spark=spark)

    kept = bootstrap(
        spark, location, "tumbling_window", params, kept=("events",), to=f"{made.url}-kept"
    )
    assert [{"logOffset": 0}] == kept.record.queries["out"].sources
    write_events(location.root / "past" / "input", LIVE, first=1)
    final = run_job(dataclasses.replace(ask, from_savepoint=kept.url), spark=spark)
    assert len(LIVE) == final.rows_read
    assert windows_of([*PAST[2:], *LIVE]) == read_with_pandas(location.output)


@pytest.mark.whole
def test_queries_that_read_each_other_need_their_output(spark, location, parted):
    """Discarded output would leave the second one nothing to read; kept, it goes on after it."""
    params = {"input": parted["past"]["input"]}
    with pytest.raises(ConfigError, match="bootstrap with --output keep"):
        bootstrap(spark, location, "chain", params)
    assert not location.job_dir.exists()

    made = bootstrap(spark, location, "chain", params, output="keep").record.queries

    assert [None] == made["fine"].sources
    assert None not in [*made["coarse"].sources, *made["top"].sources]


@pytest.mark.whole  # Flink's example, of both kinds of state below
def test_accounts_and_rates_of_before_are_used_by_the_live_stream(spark, location):
    """Flink's example: three accounts from a table, the rates of their currencies from history."""
    accounts = location.root / "accounts.json"
    rows = [("ann", "usd", 10), ("bob", "usd", 20), ("eve", "eur", 5)]
    fields = ("account", "k", "balance")
    accounts.write_text(
        "".join(json.dumps(dict(zip(fields, row, strict=True))) + "\n" for row in rows)
    )
    history = write_events(location.root / "history", [(1, "usd", 2), (2, "eur", 3), (3, "usd", 4)])
    params = {"accounts": str(accounts)}

    made = bootstrap(spark, location, "worth", {**params, "input": str(history)})
    write_events(location.input, [(30, "usd", 5), (31, "eur", 6)])
    location.run(spark, "worth", params=params, from_savepoint=made.url, conf=ROCKSDB)

    worth = [("ann", 40, 50), ("bob", 80, 100), ("eve", 15, 30)]
    assert worth == read_with_pandas(location.output)


@pytest.mark.soak
def test_a_mixed_job_keeps_what_ends(spark, location, parted):
    """
    Of two sources the one that ends is the same in history: its position is kept, and the live job
    reads none of it again.
    """
    past = {"input": parted["past"]["input"], "past": parted["past"]["shown"]}
    made = bootstrap(spark, location, "half_bounded", past, kept=("past",))
    live = {**past, "input": parted["live"]["input"]}
    location.run(
        spark,
        "half_bounded",
        params=live,
        from_savepoint=made.url,
        until="available",
        at_end="drain",
        conf=ROCKSDB,
    )

    assert windows_of([*PAST[2:], SHOWN[0][1], *LIVE]) == read_with_pandas(location.output)
