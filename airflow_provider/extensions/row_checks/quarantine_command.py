"""``spark-stream quarantine``: shows a run's quarantined rows, and writes them for correction."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.extensions.row_checks.quarantine_files import (
    QuarantineOfQuery,
    describe_totals,
    grouped,
    quarantine_of_run,
)
from airflow_provider.runtime.base.typed_json import encode
from airflow_provider.runtime.cli.command_parser import add_job_dir, add_json
from airflow_provider.runtime.cli.output import print_json
from airflow_provider.runtime.errors import EXIT_OK, ConfigError
from airflow_provider.runtime.jobdir.layout import known_job
from airflow_provider.runtime.jobdir.row_counts import RecordLines
from airflow_provider.runtime.jobdir.runs import newest_run
from airflow_provider.runtime.storage.open import open_storage

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator

    from airflow_provider.extensions.row_checks.quarantine_files import Row
    from airflow_provider.runtime.jobdir.run_records import RunRecord

KINDS: Final = ("rejected", "rule", "late")
_ROWS: Final = 3
_PLAIN: Final = RecordLines("UTF-8", "\n", None)
_LONGEST: Final = 200  # characters of a row on a terminal

api_version: Final = 1


def add_commands(commands: Any, add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command; see :class:`.api.commands.CommandModule`."""
    text = "show the rows that a run has quarantined: rejected records, broken rules and late rows"
    command = add(commands, "quarantine", _quarantine, text)
    add_job_dir(command, only_reads=True)
    command.add_argument("--run", metavar="ID", help="default: the newest run")
    command.add_argument("--kind", choices=KINDS, help="only rows of this kind")
    text = "rows that are shown of each kind and location; default: %(default)s"
    command.add_argument("--rows", metavar="N", type=int, default=_ROWS, help=text)
    text = "write the records, or the rows as JSON, as lines into files of this folder"
    command.add_argument("--write", metavar="FOLDER", help=text)
    add_json(command)


def _quarantine(arguments: argparse.Namespace) -> int:
    directory = known_job(arguments.job_dir)
    record = directory.run(arguments.run).record() if arguments.run else newest_run(directory)
    if record is None:
        named = "no run" if arguments.run is None else f"no run {arguments.run!r}"
        raise ConfigError(
            f"{directory.url}: there is {named}; spark-stream status --all lists them"
        )
    quarantined = quarantine_of_run(directory, record)
    documents = [_document(each, arguments) for each in quarantined]
    written = list(_write(quarantined, record, arguments)) if arguments.write is not None else []
    if arguments.json:
        found = {"run_id": record.run_id, "queries": documents, "written": written}
        print_json({"version": 1, "job_dir": directory.url, **found})
        return EXIT_OK
    print(f"run {record.run_id}: {describe_totals(quarantined)}")
    for document in documents:
        for line in _lines(document):
            print(f"  {line}")
    for path in written:
        print(f"written: {path}")
    return EXIT_OK


def _document(quarantined: QuarantineOfQuery, arguments: argparse.Namespace) -> dict[str, Any]:
    found = grouped(_chosen(quarantined, arguments), arguments.rows)
    return {
        "query": quarantined.query,
        "sink": quarantined.sink,
        "row_counts": encode(quarantined.row_counts),
        "quarantined": [
            {"kind": kind, "location": location, "rows": rows, "samples": samples}
            for (kind, location), (rows, samples) in found.items()
        ],
        "is_read": quarantined.files is not None,
    }


def _chosen(quarantined: QuarantineOfQuery, arguments: argparse.Namespace) -> Iterator[Row]:
    return (row for row in quarantined.rows() if arguments.kind in {None, row["kind"]})


def _lines(document: dict[str, Any]) -> Iterator[str]:
    row_counts, sink = document["row_counts"], document["sink"]
    where = f"quarantined in {sink}" if sink else "it quarantines no rows"
    yield f"query {document['query']}: {where}"
    for source, each in row_counts["rejected"].items():
        yield f"  source {source}: {each['broken']:,} of {each['rows']:,} records ({each['on']})"
    for rule, each in row_counts["rules"].items():
        yield f"  rule {rule}: {each['broken']:,} of {each['rows']:,} rows ({each['on']})"
    for group in document["quarantined"]:
        yield f"  {group['rows']:,} {group['kind']} in {group['location']}"
        for row in group["samples"]:
            why = ", ".join(each for each in (row["origin"], row["reason"]) if each)
            yield f"    {why}{': ' if why else ''}{str(row['row'])[:_LONGEST]}"
    if sink and not document["is_read"]:
        yield "  its rows are not in files: read them in that sink"


def _write(
    quarantined: list[QuarantineOfQuery], record: RunRecord, arguments: argparse.Namespace
) -> Iterator[str]:
    """Write a file for each query, kind and location, which is not there before.

    Crash safety: a crash leaves some of the files, each whole.
    """
    folder = open_storage(arguments.write)
    for each in quarantined:
        locations: dict[tuple[str, str], list[str]] = {}
        for row in _chosen(each, arguments):
            locations.setdefault((row["kind"], row["location"]), []).append(str(row["row"] or ""))
        known = each.row_counts.lines
        for (kind, location), texts in locations.items():
            path = f"{kind}/{_plain(location)}/{each.query}-{_plain(record.run_id)}.txt"
            lines = known.get(location, _PLAIN) if kind == KINDS[0] else _PLAIN
            if not folder.put_if_absent(path, file_of(texts, lines)):
                raise ConfigError(f"{folder.url}/{path} is there already; give another folder")
            yield f"{folder.url}/{path}"


def file_of(texts: Iterable[str], lines: RecordLines) -> bytes:
    """Return a file of records as their source reads it."""
    head = [] if lines.header is None else [lines.header]
    whole = "".join(f"{each}{lines.line_sep}" for each in (*head, *texts))
    try:
        return whole.encode(lines.encoding, errors="replace")
    except LookupError as error:
        raise ConfigError(
            f"encoding {lines.encoding!r} is Java's alone: read the records from their sink"
        ) from error


def _plain(text: Any) -> str:
    return re.sub(r"[^\w.+=-]+", "-", str(text)).strip("-.") or "-"
