"""The settings that change what a row means: what a start does with each, and where they are kept."""

from __future__ import annotations

import pytest

from airflow_provider.runtime.api.sinks import OpenFence
from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.errors import ConfigError, LeaseLostError
from airflow_provider.runtime.errors.fixes import Caller, addressing
from airflow_provider.runtime.jobdir.pinned_settings import (
    PinnedSettingsRecord,
    Pins,
    pin_settings,
    read_pins,
)
from airflow_provider.runtime.spark.row_settings import (
    LANGUAGE,
    changes_rows,
    conflicts,
    describe,
    given_among,
    is_same,
    to_apply,
)
from airflow_provider.runtime.storage.open import open_storage

ZONE = "spark.sql.session.timeZone"
ANSI = "spark.sql.ansi.enabled"
NEW_YORK, UTC = "America/New_York", "UTC"
CLOCK = SystemClock()


@pytest.mark.parametrize(
    ("pinned", "given", "usual", "starts_with"),
    [
        (NEW_YORK, None, NEW_YORK, "what it has"),
        (NEW_YORK, None, UTC, "the pinned value"),
        (NEW_YORK, NEW_YORK, UTC, "what it has"),
        (NEW_YORK, NEW_YORK.lower(), UTC, "what it has"),
        (NEW_YORK, UTC, UTC, "a refusal"),
        (NEW_YORK, UTC, NEW_YORK, "a refusal"),
        ("Etc/UTC", UTC, UTC, "what it has"),
        ("Etc/UTC", None, "GMT", "what it has"),
        (None, None, None, "what it has"),
        (None, None, UTC, "what it has"),  # a default that only a later Spark has
        (None, UTC, None, "a refusal"),
    ],
)
def test_a_start_takes_the_pinned_value_and_refuses_another(pinned, given, usual, starts_with):
    """What the user gives is never replaced: it is the pinned value, or the start is refused."""
    pins, user = {ZONE: pinned}, {} if given is None else {ZONE: given}
    applied = to_apply(pins, user, {ZONE: usual})
    now = {ZONE: applied.get(ZONE, given if given is not None else usual)}
    refused = conflicts(pins, now, {ZONE: usual})

    assert starts_with == (
        "a refusal" if refused else "the pinned value" if applied else "what it has"
    )


def test_what_the_job_sets_is_compared_too():
    """A pinned value that the job's function has replaced is a conflict, given or not."""
    assert [ZONE] == conflicts({ZONE: NEW_YORK, ANSI: "true"}, {ZONE: UTC, ANSI: "TRUE"}, {})


def test_settings_of_another_version_are_left_alone():
    """A name that this Spark lacks is not set; one that the first Spark lacked is free."""
    assert {} == to_apply({"spark.sql.legacy.sizeOfNull": "true"}, {}, {ANSI: "true"})
    assert [] == conflicts({"spark.sql.legacy.sizeOfNull": "true"}, {ANSI: "true"}, {})


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [("UTC", "Etc/UTC", True), ("z", "+00:00", True), ("TRUE", "true", True), ("", None, False)],
)
def test_one_value_has_several_spellings(one, other, same):
    """Spark reads words without their case, and knows UTC under many names."""
    assert same is is_same(one, other)


def test_the_settings_are_those_of_rows():
    """Zone, ANSI, legacy, rebase modes and formats are among them, and no setting of speed."""
    for name in ("timestampType", "legacy.timeParserPolicy", "legacy.ofALaterSpark.enabled"):
        assert changes_rows(f"spark.sql.{name}")
    for name in ("shuffle.partitions", "legacy.hive.thriftServer.x", "parquet.filterPushdown"):
        assert not changes_rows(f"spark.sql.{name}")


def test_a_former_name_is_the_setting_of_today():
    """Spark reads the rebase modes under the names of Spark 3.0, too."""
    former = {"spark.sql.legacy.parquet.int96RebaseModeInRead": "LEGACY", "spark.app.name": "a"}

    assert {"spark.sql.parquet.int96RebaseModeInRead": "LEGACY"} == given_among(former)


def test_the_log_line_names_what_people_ask_for():
    """The time zone is there, and the number of the others."""
    assert f"{ZONE}=UTC and 1 more" == describe({ZONE: UTC, "spark.sql.legacy.x": "false"})
    assert "1 settings" == describe({"spark.sql.legacy.x": "false"})


# --- the documents ------------------------------------------------------------------------------


class LostFence(OpenFence):
    """A lease that another driver has taken over."""

    def check(self) -> None:
        raise LeaseLostError("lost")


def pin(storage, values, *, run_id="r1", lease=None, **more):
    pin_settings(
        storage, read_pins(storage), values, lease or OpenFence(), CLOCK, run_id=run_id, **more
    )


def test_the_first_run_pins_and_a_later_one_adds_names_only(tmp_path):
    """Of a name the first value counts; a Spark that knows more adds a document."""
    storage = open_storage(str(tmp_path))
    assert {} == read_pins(storage).values

    pin(storage, {ZONE: NEW_YORK, "spark.sql.legacy.nullInEmptyListBehavior": None})
    pin(storage, {ZONE: UTC, ANSI: "true"}, run_id="r2")
    pin(storage, {ZONE: UTC, ANSI: "false"}, run_id="r3")

    pins = read_pins(storage)
    assert ["1.json", "2.json"] == sorted(storage.list("settings"))
    assert (NEW_YORK, "true", None) == tuple(
        pins.values[n] for n in (ZONE, ANSI, "spark.sql.legacy.nullInEmptyListBehavior")
    )
    assert ("run 'r1'", "run 'r2'", 2) == (pins.by[ZONE], pins.by[ANSI], pins.number)


def test_a_driver_without_its_lease_pins_nothing(tmp_path):
    """It finds its lease lost before the document is put."""
    storage = open_storage(str(tmp_path))

    with pytest.raises(LeaseLostError):
        pin(storage, {ZONE: UTC}, lease=LostFence())

    assert [] == storage.list("settings")


def test_a_document_that_is_there_is_not_replaced(tmp_path):
    """Of two drivers that pin at once the first one counts."""
    storage = open_storage(str(tmp_path))
    none = read_pins(storage)
    pin(storage, {ZONE: NEW_YORK})

    pin_settings(storage, none, {ZONE: UTC}, OpenFence(), CLOCK, run_id="r2")

    record = PinnedSettingsRecord.read(storage, "settings/1.json")
    assert record is not None
    assert ("r1", {ZONE: NEW_YORK}) == (record.run_id, record.values)


@pytest.mark.parametrize(
    ("caller", "given", "words"),
    [
        (Caller.COMMAND_LINE, {ZONE: UTC}, ("UTC (--conf)", f"--conf {ZONE}={NEW_YORK}")),
        (Caller.OPERATOR, {ZONE: UTC}, ("the operator's conf", f'conf={{"{ZONE}": "{NEW_YORK}"}}')),
        (Caller.COMMAND_LINE, {}, ("the job sets it",)),
    ],
)
def test_a_refusal_names_both_values_the_run_and_the_way_out(caller, given, words):
    """Who has set the value, which run has pinned the other, and what a new directory costs."""
    pins = Pins.of({ZONE: NEW_YORK}, "r1", None)

    with addressing(caller=caller), pytest.raises(ConfigError) as refused:
        pins.check({ZONE: UTC}, given, {})

    for each in (f"{ZONE}=UTC", "run 'r1' began with America/New_York", "reads all input again"):
        assert each in str(refused.value)
    assert all(each in str(refused.value) for each in words)


def test_a_refusal_says_what_came_with_a_savepoint_and_how_many_more_there_are():
    """Three are named; the run is that of the savepoint."""
    values = {f"spark.sql.legacy.s{i}": "a" for i in range(5)}
    pins = Pins.of(values, "r1", "/s/one")

    with pytest.raises(ConfigError, match=r"run 'r1' of the savepoint /s/one .* 2 more settings"):
        pins.check(dict.fromkeys(values, "b"), {}, {})


def test_a_value_that_cannot_be_given_back_has_a_way_out_of_its_own():
    """A setting without a value is left out; the host's language and zone are set elsewhere."""
    for name, value, way in (
        (ZONE, None, "leave the setting out"),
        (LANGUAGE, "en", "-Duser.language=en"),
        ("TZ", NEW_YORK, f"of this host.*set TZ={NEW_YORK}; .* tzdata"),
    ):
        with pytest.raises(ConfigError, match=way):
            Pins.of({name: value}, "r1", None).check({name: "tr"}, {}, {})
