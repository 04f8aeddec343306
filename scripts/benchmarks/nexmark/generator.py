"""Events of an online auction, as Nexmark generates them: people, auctions and bids, as CSV.

Proportions, ids, hot keys, prices and sizes are those of nexmark/nexmark's ``GeneratorConfig``. It
differs in this, so that every query has one answer and every engine can read the events:

- The random numbers are NumPy's, from a seed: the same seed gives the same bytes.
- There is at most one event each millisecond (Nexmark has ten), so no two events have the same
  time, and the last bid and the highest bid are one row.
- People, auctions and bids are tables of their own, not one table with a type and three records.
- Texts have no comma, quote or outer blank, so that no CSV reader has to guess.
- A bidder's id is that of a person. Nexmark adds the first id twice.
"""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from pyarrow import csv

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

START_MS: Final = 1_767_225_600_000  # 2026-01-01T00:00:00Z
SEED: Final = 2013
EPOCH: Final = 50  # one person, three auctions, 46 bids
AUCTIONS: Final = 3
FIRST_ID: Final = 1_000
FIRST_CATEGORY: Final = 10
CATEGORIES: Final = 5
ACTIVE_PEOPLE: Final = 1_000
IN_FLIGHT: Final = 100  # auctions, on average
LEAD: Final = 10  # ids that do not exist yet, as if events had been swapped
BATCH_OF_HOT: Final = 100  # of so many ids the first is hot, for bidders the second
HOT_AUCTION, HOT_SELLER, HOT_BIDDER = 2, 4, 4  # of so many choices all but one are hot
CHANNELS: Final = 10_000
HOT_CHANNELS: Final = ("Google", "Facebook", "Baidu", "Apple")
SIDE_ROWS: Final = 10_000
STATES: Final = ("AZ", "CA", "ID", "OR", "WA", "WY")
CITIES: Final = (
    *("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland"),
    *("Bend", "Redmond", "Seattle", "Kent", "Cheyenne"),
)
FIRST_NAMES: Final = (
    *("Peter", "Paul", "Luke", "John", "Saul", "Vicky"),
    *("Kate", "Julie", "Sarah", "Deiter", "Walter"),
)
LAST_NAMES: Final = (
    *("Shultz", "Abrams", "Spencer", "White", "Bartels"),
    *("Walton", "Smith", "Jones", "Noris"),
)
LETTERS: Final = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", dtype="S1")
PIECE: Final = 500_000  # events that are made at a time


def write_events(
    folder: Path,
    events: int,
    *,
    files: int,
    in_turns: bool = True,
    interval_ms: int = 1,
    seed: int = SEED,
) -> None:
    """Write the folders ``person``, ``auction``, ``bid`` and ``side_input``.

    Args:
        folder: made; what it has is replaced.
        events: their number, of all three kinds together.
        files: of each table, each in the order of event time.
        in_turns: whether each file spans the whole time, with every so-manyth row; else each
            begins where the one before it ends.
        interval_ms: time from one event to the next.
        seed: of the random numbers.
    """
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.ExitStack() as stack:
        tables = {
            name: _Table(folder / name, files, None if in_turns else rows, stack)
            for name, rows in _rows_of(events).items()
        }
        for piece in _made(events, interval_ms, seed):
            for name, rows in piece.items():
                tables[name].write(rows)
        keys = np.arange(SIDE_ROWS)
        side = pa.table({"key": keys, "value": keys.astype(str)})
        _Table(folder / "side_input", 1, None, stack).write(side)


class _Table:
    """The files of a table, to which its rows are added piece by piece.

    Args:
        folder: is made.
        files: the number of files.
        rows: all rows, of which each file has a part; None for files that take turns.
        stack: closes the files.
    """

    def __init__(
        self, folder: Path, files: int, rows: int | None, stack: contextlib.ExitStack
    ) -> None:
        folder.mkdir(parents=True)
        self._paths = [folder / f"{number:03d}.csv" for number in range(files)]
        self._ends = None if rows is None else [rows * (n + 1) // files for n in range(files)]
        self._writers: dict[Path, csv.CSVWriter] = {}
        self._stack = stack
        self._written = 0

    def write(self, piece: pa.Table) -> None:
        numbers = self._written + np.arange(piece.num_rows)
        self._written += piece.num_rows
        if self._ends is None:
            file_of = numbers % len(self._paths)
        else:
            file_of = np.searchsorted(self._ends, numbers, side="right")
        for number, path in enumerate(self._paths):
            self._writer(path, piece.schema).write_table(
                piece.take(np.flatnonzero(file_of == number))
            )

    def _writer(self, path: Path, schema: pa.Schema) -> csv.CSVWriter:
        if path not in self._writers:
            options = csv.WriteOptions(include_header=False, quoting_style="none")
            writer = csv.CSVWriter(path, schema, write_options=options)
            self._writers[path] = self._stack.enter_context(writer)
        return self._writers[path]


def _rows_of(events: int) -> dict[str, int]:
    whole, left = divmod(events, EPOCH)
    people, auctions = whole + min(left, 1), whole * AUCTIONS + min(max(left - 1, 0), AUCTIONS)
    return {"person": people, "auction": auctions, "bid": events - people - auctions}


def _made(events: int, interval_ms: int, seed: int) -> Iterator[dict[str, pa.Table]]:
    random = np.random.default_rng(seed)
    texts = _Texts(random)
    for ids in _pieces(events):
        offset = ids % EPOCH
        is_auction = (offset > 0) & (offset <= AUCTIONS)
        yield {
            "person": _people(ids[offset == 0], interval_ms, random, texts),
            "auction": _auctions(ids[is_auction], interval_ms, random, texts),
            "bid": _bids(ids[offset > AUCTIONS], interval_ms, random, texts),
        }


def _pieces(events: int) -> Iterator[np.ndarray]:
    for begin in range(0, events, PIECE):
        yield np.arange(begin, min(begin + PIECE, events))


class _Texts:
    """Random texts: parts of one long one, as Nexmark takes them."""

    def __init__(self, random: np.random.Generator) -> None:
        self._random = random
        self._pool = b"".join(random.choice(LETTERS, 1 << 20)).decode()
        self.channels = np.array([f"channel-{number}" for number in range(CHANNELS)])
        ends = random.permutation(CHANNELS)
        has_channel = random.integers(0, 10, CHANNELS) > 0
        self.urls = np.array(
            [
                url + (f"&channel_id={end}" if has else "")
                for url, end, has in zip(self._urls(CHANNELS), ends, has_channel, strict=True)
            ]
        )
        self.hot_urls = np.array(self._urls(len(HOT_CHANNELS)))

    def of_length(self, shortest: int, longest: int, count: int) -> list[str]:
        """Return so many texts, each as long as chance will have it; *longest* is excluded."""
        lengths = self._random.integers(shortest, longest, count)
        begins = self._random.integers(0, len(self._pool) - longest, count)
        pool = self._pool
        return [pool[at : at + n] for at, n in zip(begins.tolist(), lengths.tolist(), strict=True)]

    def around(self, average: int, count: int) -> list[str]:
        """Return texts of which none is a fifth longer or shorter than the average."""
        fifth = max(round(average * 0.2), 1)
        return self.of_length(max(average - fifth, 1), average + fifth, count)

    def _urls(self, count: int) -> list[str]:
        parts = [self.of_length(3, 5, count) for _ in range(3)]
        return [
            f"https://www.nexmark.com/{a}/{b}/{c}/item.htm?query=1"
            for a, b, c in zip(*parts, strict=True)
        ]


def _people(
    ids: np.ndarray, interval_ms: int, random: np.random.Generator, texts: _Texts
) -> pa.Table:
    count = len(ids)
    first, last = random.choice(FIRST_NAMES, count), random.choice(LAST_NAMES, count)
    cards = random.integers(0, 10_000, (count, 4)).tolist()
    mails = zip(texts.of_length(3, 7, count), texts.of_length(3, 5, count), strict=True)
    return pa.table(
        {
            "id": ids // EPOCH + FIRST_ID,
            "name": [f"{a} {b}" for a, b in zip(first, last, strict=True)],
            "emailAddress": [f"{a}@{b}.com" for a, b in mails],
            "creditCard": [" ".join(f"{part:04d}" for part in card) for card in cards],
            "city": random.choice(CITIES, count),
            "state": random.choice(STATES, count),
            "dateTime": _times(ids * interval_ms),
            "extra": texts.around(130, count),
        }
    )


def _auctions(
    ids: np.ndarray, interval_ms: int, random: np.random.Generator, texts: _Texts
) -> pa.Table:
    count = len(ids)
    last_person = ids // EPOCH
    hot = last_person // BATCH_OF_HOT * BATCH_OF_HOT
    is_hot = random.integers(0, HOT_SELLER, count) > 0
    initial = _prices(random, count)
    horizon_ms = IN_FLIGHT * EPOCH // AUCTIONS * interval_ms  # until so many more have begun
    lengths_ms = 1 + random.integers(0, 2 * horizon_ms, count)
    return pa.table(
        {
            "id": ids // EPOCH * AUCTIONS + ids % EPOCH - 1 + FIRST_ID,
            "itemName": texts.of_length(3, 20, count),
            "description": texts.of_length(3, 100, count),
            "initialBid": initial,
            "reserve": initial + _prices(random, count),
            "dateTime": _times(ids * interval_ms),
            "expires": _times(ids * interval_ms + lengths_ms),
            "seller": np.where(is_hot, hot, _some_person(last_person, random)) + FIRST_ID,
            "category": FIRST_CATEGORY + random.integers(0, CATEGORIES, count),
            "extra": texts.around(390, count),
        }
    )


def _bids(
    ids: np.ndarray, interval_ms: int, random: np.random.Generator, texts: _Texts
) -> pa.Table:
    count = len(ids)
    last_person, last_auction = ids // EPOCH, ids // EPOCH * AUCTIONS + AUCTIONS - 1
    hot_auction = last_auction // BATCH_OF_HOT * BATCH_OF_HOT
    oldest = np.maximum(last_auction - IN_FLIGHT, 0)
    some_auction = oldest + random.integers(0, last_auction - oldest + 1 + LEAD)
    auction = np.where(random.integers(0, HOT_AUCTION, count) > 0, hot_auction, some_auction)
    hot_bidder = last_person // BATCH_OF_HOT * BATCH_OF_HOT + 1
    some_bidder = _some_person(last_person, random)
    bidder = np.where(random.integers(0, HOT_BIDDER, count) > 0, hot_bidder, some_bidder)
    is_hot = random.integers(0, 2, count) > 0
    hot, other = random.integers(0, len(HOT_CHANNELS), count), random.integers(0, CHANNELS, count)
    return pa.table(
        {
            "auction": auction + FIRST_ID,
            "bidder": bidder + FIRST_ID,
            "price": _prices(random, count),
            "channel": np.where(is_hot, np.array(HOT_CHANNELS)[hot], texts.channels[other]),
            "url": np.where(is_hot, texts.hot_urls[hot], texts.urls[other]),
            "dateTime": _times(ids * interval_ms),
            "extra": texts.around(68, count),
        }
    )


def _some_person(last: np.ndarray, random: np.random.Generator) -> np.ndarray:
    people = last + 1
    active = np.minimum(people, ACTIVE_PEOPLE)
    return people - active + random.integers(0, active + LEAD)


def _prices(random: np.random.Generator, count: int) -> np.ndarray:
    return np.round(10 ** (random.random(count) * 6) * 100).astype(np.int64)


def _times(after_start_ms: np.ndarray) -> pa.Array:
    return pa.array(START_MS + after_start_ms, pa.timestamp("ms"))
