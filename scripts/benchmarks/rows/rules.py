"""Twenty rules on one table, as SQL and as the two libraries have them, and the table itself."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA: Final = (
    "id long, at timestamp, name string, email string, country string, status string, note string, "
    "amount double, price double, qty int, score int"
)
COUNTRIES: Final = ("DE", "FR", "IT", "ES", "SE", "PL", "NL")
STATES: Final = ("new", "paid", "sent", "done")
EMAIL: Final = "^[a-z0-9]+@[a-z]+[.][a-z]+$"
BEGIN, END = "2026-01-01 00:00:00", "2026-01-31 00:00:00"
MOST: Final = 1000.0  # amounts are evenly between 0 and it
BOUNDS: Final = {"0 %": -1, "0.1 %": 1, "5 %": 50}
"""The least amount that so large a share of the rows is below."""


class Rule(NamedTuple):
    """A rule; *kind* and *given* are for the libraries, each of which has a check of this kind."""

    name: str
    sql: str
    kind: str
    column: str
    given: tuple[Any, ...] = ()


def _least(column: str, least: Any) -> Rule:
    return Rule(f"{column} from {least}", f"{column} >= {least}", "min", column, (least,))


def _most(column: str, most: Any) -> Rule:
    return Rule(f"{column} to {most}", f"{column} <= {most}", "max", column, (most,))


def _between(column: str, least: Any, most: Any) -> Rule:
    sql = f"{column} BETWEEN {least} AND {most}"
    return Rule(f"{column} between {least} and {most}", sql, "between", column, (least, most))


def _text(column: str, least: int, most: int) -> Rule:
    sql = f"length({column}) BETWEEN {least} AND {most}"
    return Rule(f"length of {column}: {least} to {most}", sql, "length", column, (least, most))


def _one_of(column: str, values: tuple[str, ...]) -> Rule:
    listed = "; ".join(values)
    quoted = ", ".join(f"'{value}'" for value in values)
    return Rule(f"{column} of {listed}", f"{column} IN ({quoted})", "in", column, values)


def _matches(column: str, pattern: str) -> Rule:
    return Rule(f"{column} is valid", f"{column} RLIKE '{pattern}'", "regex", column, (pattern,))


def _given(column: str) -> Rule:
    return Rule(f"{column} is given", f"{column} IS NOT NULL", "null", column)


RULES: Final = (
    _least("amount", 10),
    _given("name"),
    _given("email"),
    _given("country"),
    _most("amount", 990),
    _between("amount", 5, 995),
    _least("qty", 1),
    _most("qty", 98),
    _between("qty", 0, 97),
    _between("score", 0, 99),
    _least("score", 1),
    _matches("email", EMAIL),
    _matches("country", "^[A-Z][A-Z]$"),
    _one_of("country", COUNTRIES),
    _one_of("status", STATES),
    _text("note", 3, 20),
    _text("status", 3, 4),
    Rule(
        "time of the month",
        f"at BETWEEN timestamp'{BEGIN}' AND timestamp'{END}'",
        "time",
        "at",
        (BEGIN, END),
    ),
    Rule("price below amount", "price <= amount", "less", "price", ("amount",)),
    _least("price", 0.5),
)


def dqx_checks() -> list[Any]:
    """Return the rules as checks of ``databricks-labs-dqx``."""
    import datetime as dt

    from databricks.labs.dqx import check_funcs as has
    from databricks.labs.dqx.rule import DQRowRule

    def check(rule: Rule) -> tuple[Any, dict[str, Any]]:
        one, *more = rule.given or (None,)
        made: dict[str, tuple[Any, dict[str, Any]]] = {
            "null": (has.is_not_null, {}),
            "min": (has.is_not_less_than, {"limit": one}),
            "max": (has.is_not_greater_than, {"limit": one}),
            "between": (has.is_in_range, {"min_limit": one, "max_limit": more[0] if more else one}),
            "regex": (has.regex_match, {"regex": one}),
            "in": (has.is_in_list, {"allowed": [f"'{each}'" for each in rule.given]}),
        }
        if rule.kind == "time":
            begin, end = (dt.datetime.fromisoformat(each) for each in rule.given)
            return has.is_in_range, {"min_limit": begin, "max_limit": end}
        return made[rule.kind]

    def made(rule: Rule) -> Any:
        name = {"name": rule.name, "criticality": "error"}
        if rule.kind in {"length", "less"}:
            sql = {"expression": rule.sql}
            return DQRowRule(**name, check_func=has.sql_expression, check_func_kwargs=sql)
        function, given = check(rule)
        return DQRowRule(**name, check_func=function, column=rule.column, check_func_kwargs=given)

    return [made(rule) for rule in RULES]


def sparkdq_checks() -> Any:
    """Return the rules as a set of checks of ``sparkdq``."""
    from sparkdq import checks as has
    from sparkdq.management import CheckSet

    both = (True, True)
    found = CheckSet()
    for number, rule in enumerate(RULES):
        one, *more = rule.given or (None,)
        two = more[0] if more else None
        known = {"check_id": f"rule-{number}"}
        columns = {**known, "columns": [rule.column]}
        column = {**known, "column": rule.column}
        made: dict[str, tuple[str, dict[str, Any]]] = {
            "null": ("NullCheckConfig", columns),
            "min": ("NumericMinCheckConfig", {**columns, "min_value": one, "inclusive": True}),
            "max": ("NumericMaxCheckConfig", {**columns, "max_value": one, "inclusive": True}),
            "between": (
                "NumericBetweenCheckConfig",
                {**columns, "min_value": one, "max_value": two, "inclusive": both},
            ),
            "regex": ("RegexMatchCheckConfig", {**column, "pattern": one}),
            "in": (
                "IsContainedInCheckConfig",
                {**known, "allowed_values": {rule.column: [*rule.given]}},
            ),
            "length": (
                "StringLengthBetweenCheckConfig",
                {**column, "min_length": one, "max_length": two, "inclusive": both},
            ),
            "time": (
                "TimestampBetweenCheckConfig",
                {**columns, "min_value": one, "max_value": two, "inclusive": both},
            ),
            "less": ("ColumnLessThanCheckConfig", {**column, "limit": one, "inclusive": True}),
        }
        name, given = made[rule.kind]
        config = getattr(has, name)
        fields = config.model_fields
        aliased = {fields[key].alias or key: value for key, value in given.items()}
        found.add_check(config(**aliased))
    return found


# --- the table ------------------------------------------------------------------------------------

FILES: Final = 4


def make_orders(folder: Path, rows: int, file_format: str, *, bad: bool = False) -> Path:
    """Write the table once, as ``csv`` or ``parquet``; *bad*: 5 % of the lines have no number."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    location = folder / f"{'bad-' if bad else ''}{file_format}-{rows}"
    if location.exists():
        return location
    unfinished = location.with_name(f".{location.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    for number in range(FILES):
        columns = _columns(np.random.default_rng(number), rows // FILES, number)
        if bad:
            wrong = np.random.default_rng(100 + number).random(rows // FILES) < 0.05  # noqa: PLR2004
            columns["qty"] = np.where(wrong, "many", columns["qty"].astype(str))
        table = pa.table(columns)
        file = str(unfinished / f"{number}.{file_format}")
        if file_format == "csv":
            options = pyarrow.csv.WriteOptions(include_header=False, quoting_style="none")
            pyarrow.csv.write_csv(table, file, options)
        else:
            pyarrow.parquet.write_table(table, file)
    unfinished.rename(location)
    return location


def _columns(random: Any, rows: int, number: int) -> dict[str, Any]:
    import numpy as np
    import pyarrow as pa

    ids = np.arange(rows) + number * rows
    seconds = random.integers(0, 31 * 86_400, rows)
    names = [
        f"n{each % 977}" if is_given else None
        for each, is_given in zip(ids, random.random(rows) >= 0.01, strict=True)  # noqa: PLR2004
    ]
    host = np.where(random.random(rows) < 0.02, "@", "@shop.")  # noqa: PLR2004
    mails = np.char.add(np.char.add("u", ids.astype(str)), np.char.add(host, "org"))
    return {
        "id": ids,
        "at": pa.array(
            np.datetime64(BEGIN, "us") + (seconds * 1_000_000).astype("timedelta64[us]"),
            pa.timestamp("us"),
        ),
        "name": pa.array(names, pa.string()),
        "email": mails,
        "country": random.choice([*COUNTRIES, "xx"], rows, p=[0.14] * 7 + [0.02]),
        "status": random.choice([*STATES, "lost!"], rows, p=[0.245] * 4 + [0.02]),
        "note": np.char.multiply("ab", random.integers(1, 12, rows)),
        "amount": np.round(random.random(rows) * MOST, 2),
        "price": np.round(random.random(rows) * 4, 2),
        "qty": random.integers(0, 100, rows).astype("int32"),
        "score": random.integers(0, 101, rows).astype("int32"),
    }
