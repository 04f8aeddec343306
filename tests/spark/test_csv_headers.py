"""CSV files whose headers have other columns than the schema, or another order."""

from __future__ import annotations

import pytest
from row_checks import check, write_lines
from streams import START

from airflow_provider.runtime.errors import RunFailedError
from airflow_provider.runtime.errors.explanation import FailureClass

pytestmark = pytest.mark.spark

TIME = "2026-01-01 00:00:00"
RIGHT = ["TIME,k,v", f"{TIME},a,1"]
QUOTED = ['"time","k","v"', f"{TIME},a,1"]
SWAPPED = ["time,v,k", f"{TIME},2,b"]
LACKING = ["time,k", f"{TIME},b"]


def read(rejected=None, **options):
    how = {"options": {"header": "true", **options}}
    return how if rejected is None else {**how, "rejected": rejected}


def test_a_header_in_another_order_ends_the_run(spark, location):
    """The error names the file and its columns; with enforceSchema=true its values have locations."""
    write_lines(location.input, QUOTED, SWAPPED)

    with pytest.raises(RunFailedError) as error:
        check(spark, location, read=read("quarantine"))
    found = error.value.failure

    assert FailureClass.NON_RECOVERABLE is found.failure_class
    said = "001.txt names the columns 'time, v, k', and the schema 'time, k, v'"
    assert f"the header of {location.input}/{said}" in found.reason
    assert not list(location.output.glob("part-*"))


@pytest.mark.long
@pytest.mark.parametrize("rejected", [None, "quarantine", "count"])
@pytest.mark.parametrize("mode", ["streaming", "batch"])
def test_headers_are_checked_in_each_mode(spark, location, mode, rejected):
    """Also where a query uses one column, and in the folder of corrected records."""
    write_lines(location.input, RIGHT, QUOTED)
    kept = str(location.root / "kept") if rejected == "quarantine" else None
    how = {"mode": mode, "kept": kept}

    good = check(spark, location, read=read(rejected), **how)
    assert [(START, "a", 1)] * 2 == good.rows

    for lines, said in ((SWAPPED, "'time, v, k'"), (LACKING, "has 2 columns")):
        other = type(location)(location.root / lines[0].replace(",", "-"))
        write_lines(other.input, RIGHT, lines)
        with pytest.raises(RunFailedError, match=said):
            check(spark, other, read=read(rejected), **how)
        by_location = type(location)(location.root / f"{other.root.name}-by-place")
        found = check(
            spark,
            by_location,
            input=str(other.input),
            read=read(rejected, enforceSchema="true"),
            **how,
        )
        assert (START, "a", 1) in found.rows

    also = type(location)(location.root / "also")
    write_lines(also.input, RIGHT)
    write_lines(also.root / "corrected", SWAPPED)
    both = {**read(rejected), "also": str(also.root / "corrected")}
    with pytest.raises(RunFailedError, match="'time, v, k'"):
        check(spark, also, read=both, **how)

    one = type(location)(location.root / "one")
    write_lines(one.input, RIGHT, SWAPPED)
    with pytest.raises(RunFailedError, match="columns"):
        check(spark, one, read=read(rejected), above="only_k", **how)
