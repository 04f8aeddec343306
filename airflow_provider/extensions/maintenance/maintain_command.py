"""``spark-stream maintain``: compacts a table and expires what no job and no reader needs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.base.clock import parse_duration
from airflow_provider.runtime.cli.command_parser import add_json
from airflow_provider.runtime.cli.output import print_json
from airflow_provider.runtime.errors import EXIT_OK, ConfigError
from airflow_provider.runtime.jobdir.run_spec import parse_pairs

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from airflow_provider.extensions.maintenance.facts import Facts
    from airflow_provider.extensions.maintenance.report import Report

api_version: Final = 1

TARGET: Final = "128MB"
_SIZE: Final = re.compile(r"(?P<number>\d+(\.\d+)?) *(?P<unit>[kmgt]?)(i?b)?", re.IGNORECASE)
_UNITS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_LEAST_BYTES: Final = 1024
_KEEP_S: Final = 7.0 * 24 * 3600


def add_commands(commands: Any, add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add ``maintain``; see :class:`.api.commands.CommandModule`."""
    text = "compact a table, and expire what no job and no reader needs"
    maintain = add(commands, "maintain", _maintain, text)
    text = "a Delta table's folder, or namespace.table of an Iceberg catalog"
    maintain.add_argument("table", metavar="TABLE", help=text)

    def add_repeated(flag: str, metavar: str, text: str) -> None:
        maintain.add_argument(flag, action="append", default=[], metavar=metavar, help=text)

    add_repeated("--job-dir", "JOB_DIR", "a job that writes to the table; may be repeated")
    add_repeated("--reader", "JOB_DIR", "a job that reads the table as a stream; may be repeated")
    text = "a folder with further savepoints of these jobs; may be repeated"
    add_repeated("--savepoints", "FOLDER", text)
    text = (
        "how long files that left the table stay; default: 7 days, or longer if the table says so"
    )
    maintain.add_argument("--keep", metavar="DURATION", help=text)
    text = "allow a shorter --keep: DATA LOSS for readers and writers that began earlier"
    maintain.add_argument("--accept-short-keep", action="store_true", help=text)
    text = "the size of compacted files; default: 128MB"
    maintain.add_argument("--target-size", default=TARGET, metavar="SIZE", help=text)
    text = "what delta-rs needs to reach the table beyond the environment; may be repeated"
    add_repeated("--storage-option", "K=V", text)
    text = "an Iceberg catalog, by its name in pyiceberg's configuration"
    maintain.add_argument("--catalog", metavar="NAME", help=text)
    text = (
        "a property of an Iceberg catalog; may be repeated. Secrets belong into the configuration"
    )
    add_repeated("--catalog-property", "K=V", text)
    maintain.add_argument("--dry-run", action="store_true", help="change nothing, only report")
    add_json(maintain)


def _maintain(arguments: argparse.Namespace) -> int:
    report = _report_of(arguments)
    if arguments.json:
        print_json(report.to_dict())
    else:
        for line in report.lines():
            print(line)
    return EXIT_OK


def _report_of(arguments: argparse.Namespace) -> Report:
    keep = arguments.keep
    keep_s = parse_duration(keep, name="--keep") if keep is not None else None
    is_iceberg = arguments.catalog or arguments.catalog_property or "/" not in arguments.table
    return (_of_iceberg if is_iceberg else _of_delta)(arguments, keep_s)


def _of_delta(arguments: argparse.Namespace, keep_s: float | None) -> Report:
    from airflow_provider.extensions.maintenance.delta_files import DeltaFiles
    from airflow_provider.extensions.maintenance.delta_maintenance import (
        Wishes,
        least_keep_s,
        maintain_delta,
    )

    target = parse_size(arguments.target_size, "--target-size")
    options = parse_pairs(arguments.storage_option, "--storage-option")
    files = DeltaFiles(arguments.table, options)
    keep_s = _kept_s(arguments, keep_s, least_keep_s(files.load()))
    return maintain_delta(files, _facts(arguments), Wishes(keep_s, target, arguments.dry_run))


def _of_iceberg(arguments: argparse.Namespace, keep_s: float | None) -> Report:
    from airflow_provider.extensions.maintenance.iceberg_maintenance import (
        IcebergTable,
        least_keep_s,
        maintain_iceberg,
    )

    named: dict[str, str] = parse_pairs(arguments.catalog_property, "--catalog-property")
    if arguments.catalog is not None:
        named = {"name": arguments.catalog, **named}
    table = IcebergTable(arguments.table, named or "default")
    keep_s = _kept_s(arguments, keep_s, least_keep_s(table.load()))
    return maintain_iceberg(table, _facts(arguments), keep_s, dry_run=arguments.dry_run)


def _facts(arguments: argparse.Namespace) -> Facts:
    from airflow_provider.extensions.maintenance.facts import collect

    return collect(arguments.job_dir, arguments.reader, arguments.savepoints)


def _kept_s(arguments: argparse.Namespace, keep_s: float | None, least_s: float) -> float:
    """Return how long old versions are kept; refuse less than the table says."""
    if keep_s is None:
        return max(least_s, _KEEP_S)
    if keep_s < least_s and not arguments.accept_short_keep:
        raise _too_short(arguments.keep, least_s)
    return keep_s


def _too_short(keep: str, least_s: float) -> ConfigError:
    return ConfigError(
        f"--keep {keep}: the table keeps old versions for {least_s / 86400:g} days; readers "
        "and writers that began earlier would lose theirs. Keep them longer, or add "
        "--accept-short-keep if nothing reads an older version"
    )


def parse_size(text: str, name: str) -> int:
    """Read a number of bytes, such as ``128MB``; units are powers of 1024.

    Raises:
        ConfigError: the text is not a size of at least 1 KB.
    """
    found = _SIZE.fullmatch(text.strip())
    size = int(float(found["number"]) * 1024 ** _UNITS[found["unit"].lower()]) if found else 0
    if size < _LEAST_BYTES:
        raise ConfigError(f"{name}: {text!r} is not a size; write for example 128MB or 1GB")
    return size
