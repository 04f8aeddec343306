"""The example jobs, tested as a user tests a job: this is the code of docs/test-a-job.md."""

import pytest
from pyspark.sql import Row

from airflow_provider.runtime import run_in_memory

JOB = "dags/jobs/daily_delays.py:daily_delays"
PARAMS = {"input": "not read", "output": "not written"}
UTC = {"spark.sql.session.timeZone": "UTC"}


def flight(hour, origin, delay=None):
    return {"time_hour": hour, "origin": origin, "dep_delay": delay}


FLIGHTS = [
    flight("2013-01-01 05:00", "JFK", 2),
    flight("2013-01-01 06:00", "JFK", 4),
    flight("2013-01-01 07:00", "LGA"),  # it never departed
    flight("2013-01-02 08:00", "JFK", 1),
]


@pytest.mark.parametrize("mode", ["streaming", "batch"])
def test_flights_are_counted_per_day_and_airport(mode):
    """
    Both modes give the same days; the last one, too, which no later flight has closed.
    """
    result = run_in_memory(JOB, {"flights": FLIGHTS}, params=PARAMS, mode=mode, conf=UTC)

    days = [tuple(str(value) for value in row) for row in result.outputs["daily"].collect()]
    assert sorted(days) == [
        ("2013-01-01", "JFK", "2", "2", "3.0"),
        ("2013-01-01", "LGA", "1", "0", "None"),
        ("2013-01-02", "JFK", "1", "1", "1.0"),
    ]


def test_a_flight_that_comes_too_late_is_not_counted():
    """
    The second batch moves the watermark over the first day, to which the last one has a flight.
    """
    batches = [
        [flight("2013-01-01 05:00", "JFK", 2)],
        [flight("2013-01-02 05:00", "JFK", 4)],
        [flight("2013-01-02 06:00", "JFK", 6)],
        [flight("2013-01-01 06:00", "JFK", 900)],
    ]

    result = run_in_memory(JOB, {"flights": batches}, params=PARAMS, conf=UTC)

    days = result.outputs["daily"].select("flights", "mean_delay").orderBy("day").collect()
    assert days == [Row(flights=1, mean_delay=2.0), Row(flights=2, mean_delay=5.0)]
    assert result.late_rows == 1
    assert result.watermarks["daily"] == "2013-01-02T04:00:00.000Z"


# Behind what the page shows: here the session is that of the other tests.
pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]
