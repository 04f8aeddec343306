"""Write what docs/ has of the code: ``schemas/``, and the table of ``job-directory.md``.

It also writes ``run_arguments.py``. Run it after a document or an option has changed; a test
compares what it would write with what is there.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime as dt
import enum
import importlib
import json
import re
import sys
import types
import typing
from pathlib import Path
from typing import Annotated, Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from airflow_provider.runtime.base.typed_json import Check
from airflow_provider.runtime.jobdir.run_options import RunOptions
from airflow_provider.runtime.storage.documents import Document

_PLAIN: dict[Any, dict[str, Any]] = {
    Any: {},
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    dt.datetime: {"type": "string", "format": "date-time"},
    None: {"type": "null"},
    types.NoneType: {"type": "null"},
}


JOB_DIRECTORY = "docs/internals/job-directory.md"
_MEMBER = re.compile(r"\{(\w+)\}")
_BEGINS, _ENDS = "<!-- the documents -->\n", "<!-- end of the documents -->\n"


_ARGUMENTS = """\
\"\"\"Keyword arguments of a run's options, for type checkers.

``scripts/document_schemas.py`` writes this module from :class:`.RunOptions`.
\"\"\"

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class RunArguments(TypedDict, total=False):
    \"\"\"The options of a run, as a DAG file or a test gives them.\"\"\"

"""

# What a class statement of a document says; other modules need not be imported.
_BASE = "Document)"


def documents() -> list[type[Document]]:
    """Return the classes of all documents, by module and name."""
    found = []
    for path in sorted((ROOT / "airflow_provider").rglob("*.py")):
        text = path.read_text()
        if _BASE not in text:
            continue
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        module = importlib.import_module(name)
        found += [
            value
            for value in vars(module).values()
            if isinstance(value, type) and issubclass(value, Document) and value.__module__ == name
        ]
    return [kind for kind in found if kind is not Document]


def title_of(kind: type[Document]) -> str:
    """Return what tells a document from all others: two modules may have one of the same name."""
    return f"{kind.__module__.rpartition('.')[2]}.{kind.__name__}"


def schema_of_document(kind: type[Document]) -> dict[str, Any]:
    """Return a document's JSON Schema."""
    schema = schema_of(kind)
    oldest = getattr(kind, "OLDEST", 0)
    version = {"type": "integer", "minimum": oldest, "maximum": kind.VERSION}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title_of(kind),
        "description": first_line(kind),
        **schema,
        "properties": {"version": version, **schema["properties"]},
        "required": ["version", *schema["required"]],
    }


def schema_of(kind: Any) -> dict[str, Any]:
    """Return the JSON Schema of a type that :mod:`~.runtime.base.typed_json` reads."""
    if kind in _PLAIN:
        return dict(_PLAIN[kind])
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is not None:
        return _generic(origin, args)
    if issubclass(kind, enum.Enum):
        return {"enum": [member.value for member in kind]}
    hints = typing.get_type_hints(kind, include_extras=True)
    if issubclass(kind, tuple):
        items = [schema_of(hints[name]) for name in kind._fields]
        least = len(items) - len(kind._field_defaults)
        return {"type": "array", "prefixItems": items, "minItems": least, "items": False}
    names, required = _members(kind, hints)
    return {
        "type": "object",
        "properties": {name: schema_of(hints[name]) for name in names},
        "required": [name for name in names if name in required],
    }


def _generic(origin: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    if origin is Annotated:
        return _annotated(args)
    if origin is typing.Literal:
        return {"enum": list(args)}
    if origin in {typing.Union, types.UnionType}:
        return {"anyOf": [schema_of(each) for each in args]}
    if origin is list or (origin is tuple and args[-1] is ...):
        return {"type": "array", "items": schema_of(args[0])}
    if origin is tuple:
        items = [schema_of(each) for each in args]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "items": False}
    if origin in {dict, collections.abc.Mapping}:
        names = {} if args[0] is str else {"propertyNames": schema_of(args[0])}
        return {"type": "object", "additionalProperties": schema_of(args[1]), **names}
    raise TypeError(f"{origin!r} has no schema")


def _annotated(args: tuple[Any, ...]) -> dict[str, Any]:
    schema = schema_of(args[0])
    for check in args[1:]:
        if not isinstance(check, Check):
            continue
        if check.shape is not None:
            schema = schema_of(check.shape)
        schema |= check.schema or ({} if check.shape else {"description": check.expected})
    return schema


def _members(kind: Any, hints: dict[str, Any]) -> tuple[list[str], set[str]]:
    if not dataclasses.is_dataclass(kind):
        return list(hints), set(kind.__required_keys__)
    fields = dataclasses.fields(kind)
    missing = dataclasses.MISSING
    required = {f.name for f in fields if f.default is missing and f.default_factory is missing}
    return [field.name for field in fields], required


def first_line(kind: type) -> str:
    """Return the first paragraph of a class's docstring, on one line."""
    return " ".join((kind.__doc__ or "").strip().partition("\n\n")[0].split())


def pages() -> dict[str, str]:
    """Return what there is to write, by its path from the root."""
    kinds = documents()
    schemas = {
        f"docs/schemas/{title_of(kind)}.json": json.dumps(schema_of_document(kind), indent=1) + "\n"
        for kind in kinds
    }
    return {
        **schemas,
        JOB_DIRECTORY: job_directory_page(kinds),
        "airflow_provider/runtime/jobdir/run_arguments.py": _ARGUMENTS
        + "".join(f"    {each.name}: {each.annotation}\n" for each in RunOptions.parameters()),
    }


def job_directory_page(kinds: list[type[Document]]) -> str:
    """Return the page of the stored format, with the table of all documents in its place."""
    text = (ROOT / JOB_DIRECTORY).read_text()
    before, _, rest = text.partition(_BEGINS)
    table = ["| path | written | by | without it | what it says |", "|---|---|---|---|---|"]
    placed = sorted((kind for kind in kinds if kind.LOCATIONS), key=_order)
    rows = "".join(f"{row}\n" for row in (*table, *map(_row, placed)))
    return before + _BEGINS + rows + _ENDS + rest.partition(_ENDS)[2]


def _order(kind: type[Document]) -> tuple[bool, str]:
    path = _MEMBER.sub(_named, kind.LOCATIONS[0])
    return "/" in path, path


def _row(kind: type[Document]) -> str:
    paths = "<br>".join(f"`{_MEMBER.sub(_named, location)}`" for location in kind.LOCATIONS)
    how, by, without = kind.WRITTEN
    said = re.sub(r"^``[^`]+``[^:.]*[:.] ?", "", first_line(kind)).replace("``", "`")
    link = f"[{title_of(kind)}](../schemas/{title_of(kind)}.json)"
    return f"| {paths} | {how} | {by} | {without} | {said} {link} |"


def _named(member: re.Match[str]) -> str:
    return f"<{member[1].replace('_', ' ')}>"


def main() -> None:
    """Write them, and remove schemas of documents that are no more."""
    wanted = pages()
    for path in (ROOT / "docs" / "schemas").glob("*.json"):
        if str(path.relative_to(ROOT)) not in wanted:
            path.unlink()
    for name, text in wanted.items():
        target = ROOT / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    print(f"{len(wanted) - 2} schemas in docs/schemas, listed in {JOB_DIRECTORY}")


if __name__ == "__main__":
    main()
