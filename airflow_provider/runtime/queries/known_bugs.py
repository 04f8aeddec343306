"""Bugs of Spark that give a streaming query wrong rows without an error: a table of them; pure.

Each entry has a test in ``tests/spark/test_known_bugs.py``, which shows the wrong rows on the
versions that the entry names, and the right ones on the others.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.errors.fixes import of_caller, set_option
from airflow_provider.runtime.queries import bug_shapes as shapes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from airflow_provider.runtime.queries.plan_steps import Shape

Version = tuple[int, ...]
_NUMBERS: Final = re.compile(r"\d+(?:\.\d+)*")


class Range(NamedTuple):
    """The versions of Spark from *since* on, below *fixed*; None for a bug that is not fixed."""

    since: Version
    fixed: Version | None = None


class KnownBug(NamedTuple):
    """A bug of Spark.

    Attributes:
        name: its ticket, or a name of this package's where Spark has no ticket.
        shape: the plans that it concerns, in words.
        finds: whether a query has such a plan.
        goes_wrong: one clause.
        fix: what users can change in their query.
    """

    name: str
    versions: tuple[Range, ...]
    shape: str
    finds: Callable[[Shape], bool]
    goes_wrong: str
    fix: str

    def concerns(self, version: str) -> bool:
        """Whether a version of Spark has the bug."""
        found = _NUMBERS.match(version)
        numbers = tuple(map(int, found[0].split("."))) if found else ()
        return any(
            each.since <= numbers and (each.fixed is None or numbers < each.fixed)
            for each in self.versions
        )

    def as_row(self) -> str:
        """Return the entry as a row of the documentation's table."""
        versions = " and ".join(map(_in_words, self.versions))
        return f"| {self.name} | {versions} | {self.shape} | {self.goes_wrong} | {self.fix} |"


def _in_words(versions: Range) -> str:
    since, fixed = (".".join(map(str, each)) for each in (versions.since, versions.fixed or ()))
    return f"{since} to before {fixed}" if fixed else f"{since} and later"


_ALL: Final = (Range((3, 5)),)

KNOWN_BUGS: Final = (
    KnownBug(
        "SPARK-23702",
        _ALL,
        "watermark on the result of a join, an aggregation or a deduplication of streams",
        shapes.marks_results,
        "the input's watermark waits for that of the result, so rows are lost or never written",
        "set watermarks on sources alone; window_time(window) is the event time of windows",
    ),
    KnownBug(
        "SPARK-56280",
        (Range((3, 5), (4, 2)),),
        "`dropDuplicates` with a key of floating-point numbers, also nested ones",
        shapes.deduplicates_floats,
        "0.0 and -0.0, or two NaN, are not taken for duplicates",
        "deduplicate by a text of the key, such as CAST(key + 0.0 AS STRING)",
    ),
    KnownBug(
        "SPARK-58904",
        _ALL,
        "join of streams on equal event times, of which only one has a watermark",
        shapes.evicts_by_one_watermark,
        "rows of the side without a watermark find no match once that of the other side has passed",
        "give both sides a watermark",
    ),
    KnownBug(
        "SPARK-58904",
        _ALL,
        "join of streams that bounds a time of a side which has its watermark on another column",
        shapes.evicts_by_another_column,
        "rows leave the state by the wrong column, and find no match",
        "set the watermark on the column that ON bounds",
    ),
    KnownBug(
        "SPARK-59290",
        _ALL,
        "`exceptAll` of a stream and a table",
        shapes.excepts_all,
        "each batch leaves the rows of the table out once more",
        "join the table with how='left_anti', which leaves all copies of its rows out",
    ),
    KnownBug(
        "CAST-BOUND",
        _ALL,
        "join of streams that bounds event times cast to whole seconds",
        shapes.bounds_by_cast,
        "rows leave the state up to a second too early, and find no match",
        "compare the times themselves, with intervals",
    ),
    KnownBug(
        "HELD-ROWS",
        _ALL,
        "aggregation by windows of an event time behind a join that does not bound it",
        shapes.aggregates_held_rows,
        "rows that the join has held long are dropped as late",
        "bound the event times of both sides in ON",
    ),
    KnownBug(
        "HELD-ROWS",
        _ALL,
        "deduplication of rows with an event time behind a join that does not bound it",
        shapes.deduplicates_held_rows,
        "rows that the join has held long are dropped as late",
        "bound the event times of both sides in ON",
    ),
    KnownBug(
        "HELD-ROWS",
        _ALL,
        "join of three streams, of which the first join does not bound the event time",
        shapes.joins_held_rows,
        "rows that the first join has held long are dropped as late",
        "bound the event times of both sides in ON",
    ),
    KnownBug(
        "SUBTOTALS-OVER-WINDOWS",
        _ALL,
        "`rollup`, `cube` and `GROUPING SETS` over windows in append mode",
        shapes.subtotals_over_windows,
        "subtotals over all windows are never written",
        "leave those subtotals out, or compute them from the output",
    ),
)
"""By ticket; those that Spark has no ticket for have a name of this package's."""


def bugs_of(shape: Shape, version: str) -> tuple[KnownBug, ...]:
    """Return the bugs that give a query wrong rows on a version of Spark."""
    return tuple(bug for bug in KNOWN_BUGS if bug.concerns(version) and bug.finds(shape))


def check_bug_names(allowed: Collection[str]) -> None:
    """Refuse an allowed bug that is not known."""
    known = [bug.name for bug in KNOWN_BUGS]
    unknown = [each for each in allowed if each not in known]
    if unknown:
        option = of_caller("--allow-known-bug", "allow_known_bugs")
        raise ConfigError(
            f"{option} {unknown[0]}: no such bug of Spark is known here; use one of "
            f"{', '.join(known)}, or leave it out"
        )


def check_allowed(
    found: Mapping[str, Sequence[KnownBug]], allowed: Collection[str], version: str
) -> None:
    """Refuse queries with known bugs that are not allowed, all of them at once."""
    refused = {
        query: [bug for bug in bugs if bug.name not in allowed] for query, bugs in found.items()
    }
    said = [
        f"query {query!r}: Spark {version} gives it wrong rows ({bug.name}): {bug.goes_wrong}; "
        f"{bug.fix}"
        for query, bugs in refused.items()
        for bug in bugs
    ]
    if said:
        raise ConfigError(f"{'; '.join(said)}; or {_ways_around(refused)}")


def _ways_around(refused: Mapping[str, Sequence[KnownBug]]) -> str:
    names = dict.fromkeys(bug.name for bugs in refused.values() for bug in bugs)
    options = of_caller(
        " ".join(f"--allow-known-bug {name}" for name in names),
        f"allow_known_bugs={[*names]} of the operator",
    )
    return (
        f"run it as a batch job, which has no such bug ({set_option('mode', 'batch')}), or accept "
        f"the wrong rows ({options})"
    )


def describe(bugs: Sequence[KnownBug]) -> Iterator[str]:
    """Return what the account of a query's rows says of the bugs that it runs with."""
    for bug in bugs:
        yield f"{bug.name}, a bug of Spark that was allowed: {bug.goes_wrong}"
