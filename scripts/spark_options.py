"""Compare Spark's own lists of options with the table of decisions; write docs/spark-options.md.

The lists are in Spark's jars: names of options are texts in the classes that read them, so no JVM
is started. ``airflow_provider/runtime/spark/options.txt`` has a decision for each name, and the
versions of Spark that have it. With folders of Sparks, or of jars such as the connector's for
Kafka, the script takes their names and versions into the table: a new one is ``undecided``, and a
test fails until a person decides. Without an argument it writes the page only.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from airflow_provider.runtime.spark.options import TABLE as TABLE_NAME
from airflow_provider.runtime.spark.options import Decision, Row, Rule, Section, parse_table
from scripts.spark_settings import installed_sparks, names_in_jar
from scripts.versions import VERSIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

TABLE: Final = ROOT / "airflow_provider" / "runtime" / "spark" / TABLE_NAME
PAGE: Final = ROOT / "docs" / "spark-options.md"
MINORS: Final = tuple(version.rpartition(".")[0] for version in VERSIONS)

# The classes that have options of a source, and the section for names that are in none yet.
CLASSES: Final[Mapping[str, str]] = {
    "FileStreamOptions": "files",
    "FileSourceOptions$": "files",
    "FileIndexOptions$": "files",
    "DataSourceOptions$": "records",
    "CSVOptions$": "csv",
    "CSVOptions": "csv",
    "JSONOptions$": "json",
    "JSONOptions": "json",
    "XmlOptions$": "xml",
    "XmlOptions": "xml",
    "TextOptions$": "text",
    "ParquetOptions$": "parquet",
    "OrcOptions$": "orc",
    "AvroOptions$": "avro",
    "KafkaSourceProvider$": "kafka",
    "RateStreamProvider$": "rate",
    "RatePerMicroBatchProvider$": "rate-micro-batch",
    "TextSocketSourceProvider": "socket",
}
# Their interface, and the options of the reader of checkpoints.
OTHER_CLASSES: Final = frozenset({"DataSourceOptions", "StateSourceOptions$"})
# Sources and sinks that Spark registers by name, by their classes.
SOURCES: Final = frozenset(
    {
        *("CSVDataSourceV2", "JsonDataSourceV2", "XmlFileFormat", "TextDataSourceV2"),
        *("ParquetDataSourceV2", "OrcDataSourceV2", "OrcFileFormat", "BinaryFileFormat"),
        *("AvroFileFormat", "AvroDataSourceV2", "KafkaSourceProvider"),
        *("RateStreamProvider", "RatePerMicroBatchProvider", "TextSocketSourceProvider"),
        *("ConsoleSinkProvider", "NoopDataSource", "JdbcRelationProvider"),
        *("StateDataSource", "StateMetadataSource", "LibSVMFileFormat", "ImageFileFormat"),
        *("HiveFileFormat",),
    }
)
# Texts in these classes that look like names of options and are none: values, columns, formats.
NOT_OPTIONS: Final = frozenset(
    {
        *("true", "false", "csv", "item", "timezone", "socket", "timestamp", "value", "topic"),
        *("none", "uncompressed", "snappy", "gzip", "lzo", "brotli", "lz4", "lz4raw", "zstd"),
        *("zlib", "latest", "earliest", "source", "executor", "rate"),
        *("key.deserializer", "value.deserializer", "key.serializer", "value.serializer"),
        *("kafka.key.serializer", "kafka.value.serializer", "enable.auto.commit"),
        *("auto.offset.reset", "max.poll.records", "receive.buffer.bytes", "group.id"),
    }
)
RECORDS: Final = ("csv", "json", "xml")
"""Formats whose classes have had the options of the section ``records`` in earlier versions."""
_OPTION: Final = re.compile(r"[a-z][A-Za-z0-9]*(\.[A-Za-z0-9]+)*")
_JARS: Final = re.compile(
    r"spark-(catalyst|core|sql|sql-api|avro|sql-kafka-0-10|hive|mllib)_[\d.]+-(?P<minor>\d+\.\d+)\..*"
)
_REGISTER: Final = "META-INF/services/org.apache.spark.sql.sources.DataSourceRegister"
_INTERFACE: Final = b"org/apache/spark/sql/catalyst/DataSourceOptions"

_UTF8, _STRING, _CLASS = 1, 8, 7
# Bytes that follow the tag of each other constant of a class file.
_SIZES: Final = {
    **dict.fromkeys((3, 4, 9, 10, 11, 12, 17, 18), 4),
    **dict.fromkeys((5, 6), 8),
    **dict.fromkeys((_CLASS, _STRING, 16, 19, 20), 2),
    15: 3,
}
_LONGS: Final = frozenset({5, 6})  # which take two entries


class Lists(NamedTuple):
    """The names that one Spark has.

    Attributes:
        minor: its version, such as ``4.3``.
        options: by section; of a section without a class there, nothing.
        settings: of Spark's SQL.
        unknown: classes of options, and sources, that this script does not know.
    """

    minor: str
    options: Mapping[str, frozenset[str]]
    settings: frozenset[str]
    unknown: tuple[str, ...]


# --- reading jars -------------------------------------------------------------------------------


def lists_of(home: Path) -> Lists:
    """Return the lists of a Spark, or of a folder of jars."""
    options: dict[str, set[str]] = {}
    settings: set[str] = set()
    unknown: list[str] = []
    minor = ""
    for jar in sorted((home / "jars" if (home / "jars").is_dir() else home).glob("spark-*.jar")):
        if (found := _JARS.fullmatch(jar.name)) is None:
            continue
        minor = found["minor"]
        settings.update(names_in_jar(jar))
        with zipfile.ZipFile(jar) as archive:
            unknown += _unknown_sources(archive)
            for member in archive.namelist():
                name = member.rpartition("/")[2].removesuffix(".class")
                if name in CLASSES and member.endswith(".class"):
                    texts = _texts_in(archive.read(member))
                    options.setdefault(CLASSES[name], set()).update(_options_among(texts))
                elif name.endswith(("Options", "Options$")) and name not in OTHER_CLASSES:
                    unknown += [name] if _INTERFACE in archive.read(member) else []
    frozen = {section: frozenset(names) for section, names in options.items()}
    return Lists(minor, frozen, frozenset(settings), tuple(unknown))


def _unknown_sources(archive: zipfile.ZipFile) -> list[str]:
    if _REGISTER not in archive.namelist():
        return []
    lines = archive.read(_REGISTER).decode().splitlines()
    names = (line.strip().rpartition(".")[2] for line in lines if not line.startswith("#"))
    return sorted(name for name in names if name and name not in SOURCES)


def _options_among(texts: Iterable[str]) -> set[str]:
    return {text for text in texts if _OPTION.fullmatch(text)} - NOT_OPTIONS


def _texts_in(data: bytes) -> Iterator[str]:
    """Yield the texts of a class file: what its code has in quotes, and not names of methods."""
    count, location, number = int.from_bytes(data[8:10], "big"), 10, 1
    names: dict[int, str] = {}
    texts: list[int] = []
    while number < count:
        tag = data[location]
        first = int.from_bytes(data[location + 1 : location + 3], "big")
        if tag == _UTF8:
            names[number] = data[location + 3 : location + 3 + first].decode("utf-8", "replace")
            location += 3 + first
        else:
            location += 1 + _SIZES[tag]
        if tag == _STRING:
            texts.append(first)
        number += 2 if tag in _LONGS else 1
    return (names[index] for index in texts)


# --- the table ----------------------------------------------------------------------------------


def read_table() -> dict[str, Section]:
    """Return the table in this checkout."""
    return parse_table(TABLE.read_text(encoding="utf-8"))


def missing(lists: Lists, table: Mapping[str, Section]) -> list[str]:
    """Return the options and settings of a Spark that have no decision, each with its section."""
    return [f"{section}: {name}" for section, name in _new(lists, table)] + [
        f"{name}: an unknown class of options, or an unknown source" for name in lists.unknown
    ]


def undecided(table: Mapping[str, Section]) -> list[str]:
    """Return the names that the script has taken into the table and that nobody has decided."""
    return [
        f"{section.name}: {row.name}"
        for section in table.values()
        for row in section.rows.values()
        if row.rules[0].decision is Decision.UNDECIDED
    ]


def _new(lists: Lists, table: Mapping[str, Section]) -> Iterator[tuple[str, str]]:
    for section, names in sorted(lists.options.items()):
        yield from (
            (section, name) for name in sorted(names) if _home(table, section, name) is None
        )
    for name in sorted(lists.settings):
        home = _section_of_setting(table, name)
        if home is not None and name.lower() not in table[home].rows:
            yield home, name


def _home(table: Mapping[str, Section], section: str, name: str) -> str | None:
    """Return the section that has an option: its own one, or that of several formats."""
    homes = (each for each in (section, "records", "files") if each in table)
    return next((each for each in homes if name.lower() in table[each].rows), None)


def _section_of_setting(table: Mapping[str, Section], name: str) -> str | None:
    return next((each for each in table if each != "spark." and name.startswith(f"{each}.")), None)


def updated(text: str, lists: Lists) -> str:
    """Return a table with the names and the version of a Spark."""
    table = parse_table(text)
    new: dict[str, list[str]] = {}
    for section, name in _new(lists, table):
        new.setdefault(section, []).append(f"{name} | {lists.minor}- | undecided")
    lines: list[str] = []
    section = ""
    for line in text.splitlines():
        if line.startswith("["):
            lines += _ended(new.pop(section, []), lines)
            section = line.strip("[]")
        elif line and line[0] not in "#>":
            line = _with_version(line, _has(lists, section, line), lists.minor)  # noqa: PLW2901
        lines.append(line)
    return "\n".join([*lines, *new.pop(section, [])]) + "\n"


def _ended(new: list[str], lines: list[str]) -> list[str]:
    """Return the new rows of a section, and the empty line that was in front of the next one."""
    if not new:
        return []
    while lines and not lines[-1]:
        lines.pop()
    return [*new, ""]


def _has(lists: Lists, section: str, line: str) -> bool | None:
    """Whether a Spark has the option or setting of a row; None if its jars do not tell."""
    name = line.partition(" | ")[0].strip()
    if name.startswith("spark."):
        return name in lists.settings if "files" in lists.options else None
    sections = (section, *(RECORDS if section == "records" else ()))
    told = [lists.options[each] for each in sections if each in lists.options]
    return any(name.lower() in map(str.lower, names) for names in told) if told else None


def _with_version(line: str, has: bool | None, minor: str) -> str:  # noqa: FBT001
    name, versions, *rest = line.split(" | ")
    first, _, last = versions.strip().partition("-")
    span = MINORS[MINORS.index(first) : MINORS.index(last or MINORS[-1]) + 1]
    if has is None or has is (minor in span) or span == (minor,):
        return line
    changed = sorted({*span, minor} if has else {*span} - {minor}, key=MINORS.index)
    end = "" if changed[-1] == MINORS[-1] else changed[-1]
    return " | ".join([name, f"{changed[0]}-{end}", *rest])


# --- the page -----------------------------------------------------------------------------------

ABOUT: Final = """\
# Options of Spark

Spark's own options and settings can leave input out, read it twice or change it. This page has a
decision for each option of Spark's sources and for each setting of its files and streams, in all
[supported versions](versions.md). Names below a table are passed to Spark, and change no input.

| decision | meaning |
|---|---|
| passed | Spark gets the value. |
| pinned | The first run of a job directory decides the value for all later runs. |
| lifted | This package sets another default; your own value wins. |
| counted | Rows that are left out are counted. |
| warned | The driver's log warns about rows that are left out and not counted. |
| refused | The run ends before anything is written. |
"""
OPTIONS: Final = """\
## Options

You set them as `options` of `ctx.read`, with `option` in a script, or in a clause `OPTIONS` in SQL.
Case does not count. A mistyped name is refused, too. Values are also refused for tables that a
query reads in another way, such as `spark.read`.
"""
SETTINGS: Final = """\
## Settings

You set them with `--conf` or the operator's `conf`, in a connection, in `spark-defaults.conf`, or
in the job itself. [Settings of Spark](spark-settings.md) explains which one wins. A value is
refused wherever it comes from.
"""
MADE_BY: Final = """\
`scripts/spark_options.py` writes this page from `airflow_provider/runtime/spark/options.txt`.
"""
_WHOLE: Final[dict[str, Any]] = {"break_long_words": False, "break_on_hyphens": False}
TITLES: Final[Mapping[str, str]] = {
    "files": "All sources of files",
    "records": "CSV, JSON and XML",
    "csv": "CSV",
    "json": "JSON",
    "xml": "XML",
    "text": "Text",
    "parquet": "Parquet",
    "orc": "ORC",
    "avro": "Avro",
    "binaryFile": "Binary files",
    "kafka": "Kafka (`kafka`)",
    "spark-stream-kafka": "Kafka (`spark-stream-kafka`)",
    "rate": "Rows by time (`rate`)",
    "rate-micro-batch": "Rows by batch (`rate-micro-batch`)",
    "socket": "Sockets",
    "table": "Tables",
    "spark.": "Other settings",
}


def page(table: Mapping[str, Section]) -> str:
    """Return the page."""
    options = [each for each in table.values() if not each.name.startswith("spark.")]
    settings = [each for each in table.values() if each.name.startswith("spark.")]
    parts = [
        *(ABOUT, OPTIONS),
        *map(_of_section, options),
        SETTINGS,
        *map(_of_section, settings),
    ]
    return "\n".join([*parts, MADE_BY])


def _of_section(section: Section) -> str:
    title = TITLES.get(section.name, f"`{section.name}.*`")
    lines = [f"### {title}", "", *section.notes, *([""] if section.notes else [])]
    plain = [row for row in section.rows.values() if _is_plain(row)]
    if rows := [_table_row(row) for row in section.rows.values() if row not in plain]:
        lines += ["| name | Spark | decision | reason |", "|---|---|---|---|", *rows, ""]
    if plain:
        names = textwrap.wrap(", ".join(map(_named, plain)), 100, **_WHOLE)
        lines += ["Passed to Spark:" if rows else "All are passed to Spark:", ""]
        lines += ["```text", *names, "```", ""]
    return "\n".join(lines)


def _is_plain(row: Row) -> bool:
    """Whether there is nothing to tell about an option but its name."""
    return not row.reason and not row.fix and _decisions(row) == Decision.PASSED.value


def _named(row: Row) -> str:
    span = _span(row)
    return f"{row.name} ({span})" if span else row.name


def _table_row(row: Row) -> str:
    sentences = [f"{_capital(each)}." for each in (row.reason, row.fix) if each]
    reason = " ".join(sentences).replace("|", "\\|")
    return f"| `{row.name}` | {_span(row)} | {_decisions(row)} | {reason} |"


def _decisions(row: Row) -> str:
    return "; ".join(map(_decision, row.rules))


def _decision(rule: Rule) -> str:
    if rule.decision is Decision.ONLY:
        return f"refused, except {_values(rule.values)}"
    values = "" if rule.values in {(), ("*",)} else f" {_values(rule.values)}"
    unless = f" without {_values(rule.unless, ' or ')}" if rule.unless else ""
    return f"{rule.decision.value}{values}{unless}"


def _values(values: Iterable[str], between: str = ", ") -> str:
    return between.join(f"`{value}`" for value in values)


def _span(row: Row) -> str:
    first, _, last = row.versions.partition("-")
    if first == MINORS[0] and not last:
        return ""
    return f"from {first}" if not last else first if first == last else f"{first} to {last}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def main(argv: Sequence[str] | None = None) -> int:
    """Take the lists of the given Sparks into the table, and write the page."""
    parser = argparse.ArgumentParser(description="Compare Spark's options with the decisions.")
    parser.add_argument("homes", nargs="*", type=Path, metavar="FOLDER")
    homes = parser.parse_args(argv).homes
    for home in homes:
        lists = lists_of(home)
        if lists.minor not in MINORS:
            print(f"{home}: no jars of a supported Spark there", file=sys.stderr)
            return 1
        TABLE.write_text(updated(TABLE.read_text(encoding="utf-8"), lists), encoding="utf-8")
    table = read_table()
    PAGE.write_text(page(table), encoding="utf-8")
    names = {*undecided(table)}
    for home in homes or installed_sparks()[:1]:
        names |= {*missing(lists_of(home), table)}
    print(*sorted(names), sep="\n", end="\n" if names else "")
    rows = sum(len(section.rows) for section in table.values())
    print(f"{TABLE.relative_to(ROOT)}: {rows} names, {len(names)} without a decision")
    return 1 if names else 0


if __name__ == "__main__":
    sys.exit(main())
