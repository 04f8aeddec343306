"""Read ranges of two sources, compared: the same folder or topic in history and the live job."""

from __future__ import annotations

import pytest

from airflow_provider.runtime.sources.locations import ReadLocation
from airflow_provider.runtime.sources.shorthand import source_of_format


def read(file_format="csv", path="/data/a", name="events", **options):
    return ReadLocation.of(name, source_of_format(file_format, path, None, options))


def kafka(file_format="kafka", **options):
    topic = {"subscribe": "t", "kafka.bootstrap.servers": "h:1"}
    return read(file_format, None, **{**topic, **options})


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        (read(), read(), True),
        (read(), read(path="file:///data/a/"), True),
        (read(), read("json"), True),  # the same files, whatever they are taken for
        (read(), read(path="/data"), True),
        (read(), read(path="/data/a/year=2026"), True),
        (read(), read(path="/data/ab"), False),
        (read(), read(maxFilesPerTrigger="1"), True),
        (read(pathGlobFilter="2025*"), read(pathGlobFilter="2026*"), False),
        (read(), kafka(), False),
        (kafka(), kafka(startingTimestamp="7", maxOffsetsPerTrigger="9"), True),
        (kafka(), kafka(subscribe="u"), False),
        (kafka(), kafka("spark-stream-kafka"), True),  # two ways to the same topic
        (read("rate", None), read("rate", None), True),
    ],
)
def test_locations_that_share_rows(one, other, overlap):
    """Where reading begins and how fast it goes is not what is read."""
    assert overlap == one.overlaps(other) == other.overlaps(one)
    assert one == ReadLocation.from_dict(one.to_dict())


def test_a_location_tells_no_secret():
    """It is put down in savepoints, so options are compared by a digest."""
    told = kafka(**{"kafka.sasl.jaas.config": "password=hunter2"}).to_dict()

    assert "hunter2" not in str(told)
    assert told != kafka().to_dict()
