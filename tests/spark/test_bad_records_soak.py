"""A night of bad records: of a million rows, or as many as ``ROW_SOAK_ROWS`` says, none is lost."""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter

import duckdb
import pytest
from row_checks import asked, record_of
from streams import START

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(3600)]

ROWS = int(os.environ.get("ROW_SOAK_ROWS", "1000000"))
FILES, FILES_A_BATCH, BAD_SHARE = 20, 4, 0.05
SCHEMA = (
    "id long, time timestamp, k string, amount double, ok boolean, tags array<string>, "
    "at struct<x: int, y: string>"
)


def record(n, **other):
    row = {
        "id": n,
        "time": f"2026-01-01 {n // 3600 % 24:02d}:{n // 60 % 60:02d}:{n % 60:02d}",
        "k": "abc"[n % 3],
        "amount": n / 4,
        "ok": n % 2 == 0,
        "tags": ["x", "y"],
        "at": {"x": n % 100, "y": "z"},
    }
    return {**row, **other}


def text(n, **other):
    return json.dumps(record(n, **other))


VALUES = [
    {"id": "n"},
    {"id": 1.5},
    {"id": 2**70},
    {"id": True},
    {"id": [1]},
    {"id": {"v": 1}},
    {"time": "soon"},
    {"time": "2026-13-45 00:00:00"},
    {"time": True},
    {"time": [1]},
    {"time": {}},
    {"amount": "12.5"},
    {"amount": "1,5"},
    {"amount": True},
    {"amount": {}},
    {"amount": [1.5]},
    {"ok": "true"},
    {"ok": 1},
    {"ok": "yes"},
    {"tags": "x"},
    {"tags": 5},
    {"tags": {"a": 1}},
    {"at": "x"},
    {"at": 5},
    {"at": {"x": "one"}},
    {"at": {"x": 1.5}},
]
TEXTS = [
    lambda n: text(n)[:-1],
    lambda n: text(n)[: 40 + n % 20],
    lambda n: text(n)[1:],
    lambda n: text(n).replace('"id"', 'id"', 1),
    lambda n: text(n).replace(":", "=", 1),
    lambda n: text(n).replace(",", ";", 1),
    lambda n: text(n).replace(",", ",,", 1),
    lambda n: text(n).replace("[", "[[", 1),
    lambda n: text(n).replace('"k": "', '"k": "\t'),
    lambda n: text(n).replace('"k": "', '"k": "\\q'),
    lambda n: text(n).replace('"id": ', '"id": 0x'),
    lambda n: f"id={n}",
    lambda n: f"{n},2026-01-01 00:00:00,a,1.5,true",
    lambda n: f"<row id='{n}'/>",
]
KINDS = len(VALUES) + len(TEXTS)


def bad(n, kind):
    return text(n, **VALUES[kind]) if kind < len(VALUES) else TEXTS[kind - len(VALUES)](n)


def write_night(folder):
    """Write the files; return how many records are good, the sum of their ids, and the bad ones."""
    dice = random.Random(2026)
    folder.mkdir(parents=True)
    good, total = 0, 0
    wrong: Counter[str] = Counter()
    each = ROWS // FILES
    for number in range(FILES):
        lines = []
        for n in range(number * each, (number + 1) * each):
            if dice.random() < BAD_SHARE:
                line = bad(n, dice.randrange(KINDS))
            elif number == FILES // 2:  # a field has another type for a while
                line = text(n, amount=f"{n / 4} EUR")
            else:
                line = text(n, channel="web") if number > FILES // 3 else text(n)  # a new column
                good, total = good + 1, total + n
                lines.append(line)
                continue
            wrong[line] += 1
            lines.append(line)
        file = folder / f"{number:03d}.json"
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        os.utime(file, (START + number, START + number))
    return good, total, wrong


def select(what, folder):
    found = duckdb.sql(f"select {what} from '{folder}/*.parquet'")
    assert found is not None
    return found.fetchall()


def test_a_stream_goes_on_through_a_night_of_bad_records(spark, location):
    """
    Forty kinds of malformation, a field whose type changes and a column that is new, over several
    batches: what was read is in the output or kept, each once, and as it was read.
    """
    assert 40 == KINDS
    good, total, wrong = write_night(location.input)
    read = {"format": "json", "schema": SCHEMA, "rejected": "quarantine", "rejected_limit": "20%"}
    began = time.monotonic()
    final = location.run(
        spark,
        **asked(
            location,
            read=read,
            files_per_batch=str(FILES_A_BATCH),
            conf={"spark.sql.ansi.enabled": "true"},
        ),
    )
    took_s = time.monotonic() - began

    (found,) = select("count(*), count(distinct id), sum(id)", location.output)
    kept = select("row, reason", location.root / "kept")
    print(
        f"{ROWS:,} rows in {FILES // FILES_A_BATCH} batches, {len(kept):,} kept, {took_s:.0f} s, "
        f"{ROWS / took_s:,.0f} rows/s"
    )
    assert ("FINISHED", ROWS) == (final.outcome, final.rows_read)
    assert (good, good, total) == found
    assert wrong == Counter(row for row, _ in kept)
    assert all(reason for _, reason in kept)
    assert good + len(kept) == ROWS
    assert len(kept) == record_of(location).quarantined_rows
    assert FILES // FILES_A_BATCH <= record_of(location).epoch + 1
