"""Reference of the site, of the code: a job's functions, commands, documents, errors, metrics.

The pages exist in the site only (``docs_site`` lays them out): what is not written by hand
cannot differ from the code. Modules that import Airflow or PySpark are read, not imported.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib
import inspect
import json
import re
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from airflow_provider.runtime import _HOMES, errors
from airflow_provider.runtime.cli.main import _parser
from airflow_provider.runtime.failures.rules import describe_rules
from airflow_provider.runtime.observe.samples import METRICS
from tests.spark.mistakes import table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Function = ast.FunctionDef | ast.AsyncFunctionDef

PACKAGE: Final = ROOT / "airflow_provider"
SECTION: Final = re.compile(r"^(Args|Attributes|Returns|Yields|Raises):$", re.MULTILINE)
ROLE: Final = re.compile(r":(?:class|func|mod|meth|data|attr|exc):`~?\.?([^`]+)`")
CODE: Final = re.compile(r"\n\n::\n\n((?:    .*\n?|\n)+)")
JOB_ABOUT: Final = """\
# A job's functions

A job is a function that gets a `JobContext`. [Write a job](../write-a-job.md) is the guide. Without
*required* or a default, an argument is None. A *duration* is a string such as `10 minutes`, or a
number of seconds. A wrong argument raises `ConfigError`.
"""
JOB_NAMES: Final = {
    "JobContext": "runtime.queries.context",
    "files": "runtime.sinks.files",
    "delta": "extensions.delta.tables_out",
    "iceberg": "extensions.iceberg.tables_out",
    "postgres": "extensions.postgres.sink",
    "kafka": "extensions.kafka.sink",
    "spark_sink": "runtime.sinks.spark_sink",
    "for_each_batch": "runtime.sinks.spark_sink",
    "delta_table": "extensions.delta.table_source",
    "iceberg_table": "extensions.iceberg.source",
    "run_in_memory": "runtime.samples.in_memory",
    "preview": "runtime.samples.in_memory",
    "fails_as": "runtime.failures.classify",
    "FailureClass": "runtime.errors.explanation",
}
"""What a job's file imports, in the order of the page, and where it is defined."""
_CONTEXT: Final = ("JobContext", JOB_NAMES["JobContext"])
_CALLBACKS: Final = ("Callbacks", "runtime.queries.callbacks")
JOB_METHODS: Final = {
    **dict.fromkeys(("read", "write", "expect", "initial_state"), _CONTEXT),
    **dict.fromkeys(("on_finish", "on_close"), _CALLBACKS),
}
"""The methods that a job calls; others are the driver's and the extensions'."""
INTERNAL: Final = {"holding"}
"""Attributes of public classes that are no part of the interface."""
SHARED: Final = {
    "iceberg": ("delta", "options keys sequence_by delete_when replace schema_changes"),
    "postgres": ("delta", "keys sequence_by delete_when replace schema_changes"),
    "preview": ("run_in_memory", "job inputs params interval conf spark folder"),
    "initial_state": ("JobContext.read", "name format path schema options"),
}
"""Arguments that mean the same for another function, by function."""
HEAD: Final = "| argument | type, default | meaning |\n|---|---|---|"
PLAIN: Final = {
    "callback": "a function without arguments.",
    "failure_class": "the class.",
    "rows": "how many rows to take of each source.",
}
"""Meanings of arguments that only the text of their functions explains."""
TYPES: Final = {"Mapping": "dict", "Sequence": "list", "Callable": "callable"}
MEANING_OF_EXIT: Final = {
    errors.EXIT_OK: "the final checkpoint of the run has committed",
    errors.EXIT_USAGE: "wrong usage or configuration; nothing was written",
    errors.EXIT_RETRY: "failed or cancelled; the same command resumes",
    errors.EXIT_FATAL: "failed permanently; a retry cannot help",
    errors.EXIT_LEASE: "another driver holds the lease",
}


def pages() -> dict[str, str]:
    """Return the pages, by their path in the site."""
    return {
        "reference/job.md": job_page(),
        "reference/commands.md": commands_page(),
        "reference/documents.md": documents_page(),
        "reference/errors.md": errors_page(),
        "reference/metrics.md": metrics_page(),
    }


# --- Docstrings -------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Docstring:
    """A docstring of Google's form, as Markdown.

    Attributes:
        text: all before the first section.
        sections: each further one, by its title, as pairs of a name and its meaning.
    """

    text: str
    sections: dict[str, list[tuple[str, str]]]

    @classmethod
    def of(cls, node: ast.ClassDef | Function) -> Docstring:
        """Return the docstring of a class or a function; an empty one if it has none."""
        text, *parts = SECTION.split(ast.get_docstring(node) or "")
        pairs = zip(parts[::2], parts[1::2], strict=True)
        return cls(markdown(text), {title: list(_entries(body)) for title, body in pairs})

    @property
    def meanings(self) -> dict[str, str]:
        """What each argument means."""
        return dict(self.sections.get("Args", []))


def markdown(text: str) -> str:
    """Return reStructuredText of a docstring as Markdown."""
    text = ROLE.sub(lambda role: f"`{role[1].rpartition('.')[2]}`", text)
    text = text.replace("``", "`").strip()
    return CODE.sub(lambda code: f"\n\n```text\n{_code_of(code)}\n```\n", text + "\n").strip()


def _code_of(block: re.Match[str]) -> str:
    return textwrap.dedent(block[1]).strip("\n")


def _entries(body: str) -> Iterator[tuple[str, str]]:
    lines = inspect.cleandoc(body).splitlines()
    for block in re.split(r"\n(?=\S)", "\n".join(lines)):
        name, colon, meaning = block.partition(": ")
        one_line = " ".join(markdown(meaning if colon else block).split())
        if one_line:
            yield (name.strip("`*") if colon else "", one_line)


def cell(text: str) -> str:
    """Return a text for a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


# --- Python -----------------------------------------------------------------------------------


def found_in(path: Path) -> Iterator[ast.ClassDef | Function]:
    """Yield the public classes and functions of a module."""
    for node in ast.parse(path.read_text()).body:
        match node:
            case ast.ClassDef(name) | ast.FunctionDef(name) | ast.AsyncFunctionDef(name):
                if not name.startswith("_"):
                    yield node
            case _:
                pass


def path_of(module: str) -> Path:
    """Return the file of a module of the package, by its dotted name."""
    return ROOT / (module.replace(".", "/") + ".py")


def described(node: ast.ClassDef | Function, home: str) -> Iterator[str]:
    """Yield the text of a class or a function, and its arguments or attributes.

    Args:
        node: as it is parsed.
        home: its module in the package, which resolves the defaults.
    """
    docstring = Docstring.of(node)
    yield docstring.text + "\n"
    if isinstance(node, ast.ClassDef):
        yield from _attributes(node, docstring)
        return
    rows = list(_arguments(node, home))
    if rows:
        yield "\n".join([HEAD, *rows]) + "\n"
    if node.name in SHARED:
        other, names = SHARED[node.name]
        anchor = other.lower().replace(".", "")
        yield f"From [`{other}`](#{anchor}): {listed(names.split())}.\n"


def _attributes(node: ast.ClassDef, docstring: Docstring) -> Iterator[str]:
    attributes = docstring.sections.get("Attributes", [])
    rows = [f"| `{name}` | {cell(text)} |" for name, text in attributes if name not in INTERNAL]
    if rows:
        yield "\n".join(["| attribute | meaning |\n|---|---|", *rows]) + "\n"
    values = [ast.unparse(each.targets[0]) for each in node.body if isinstance(each, ast.Assign)]
    if values:
        yield f"Its values are {listed(values)}.\n"


def listed(names: Iterable[str]) -> str:
    """Return names of code as a list in a sentence."""
    return ", ".join(f"`{name}`" for name in names)


def maker_of(node: ast.ClassDef) -> Function | None:
    """Return the method that takes a class's arguments; None if it has none of its own."""
    makers = (each for each in node.body if isinstance(each, ast.FunctionDef))
    return next((each for each in makers if each.name == "__init__"), None)


def parameters_of(function: Function) -> Iterator[tuple[ast.arg, ast.expr | None]]:
    """Yield what a function takes by name, each with its default."""
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    filled = [None] * (len(positional) - len(given.defaults))
    defaults = [*filled, *given.defaults, *given.kw_defaults]
    for argument, default in zip([*positional, *given.kwonlyargs], defaults, strict=True):
        if argument.arg not in {"self", "cls"}:
            yield argument, default


def kind_of(annotation: str) -> str:
    """Return a type in the words of a user's file; a string or a number is a duration."""
    given = annotation
    while (shorter := re.sub(r"\[[^\[\]]*\]", "", given)) != given:
        given = shorter
    given = given.removesuffix(" | None")
    if given == "str | float":
        return "duration"
    names = dict.fromkeys(each.rpartition(".")[2] for each in given.split(" | "))
    return " or ".join(f"`{TYPES.get(name, name)}`" for name in names)


def argument_row(name: str, annotation: str, default: str, meaning: str) -> str:
    """Return the row of an argument; without a *default*, as Python writes it, it is required."""
    text, value = cell(meaning), default.strip("'")
    if value and text.startswith(f"{value}:"):
        text = f"`{value}`{text.removeprefix(value)}"
    shown = {"": ", required", "None": ""}.get(default, f", `{cell(default)}`")
    return f"| `{name}` | {kind_of(annotation)}{shown} | {text[:1].upper()}{text[1:]} |"


def _arguments(function: Function, home: str) -> Iterator[str]:
    """Yield the rows of a function's arguments without those in ``SHARED``."""
    meanings = Docstring.of(function).meanings
    _, shared = SHARED.get(function.name, ("", ""))
    for argument, default in parameters_of(function):
        if argument.arg in shared.split():
            continue
        kind = ast.unparse(argument.annotation) if argument.annotation else ""
        shown = _default_of(default, home) if default else ""
        yield argument_row(
            argument.arg, kind, shown, meanings.get(argument.arg, PLAIN.get(argument.arg, ""))
        )


def _default_of(node: ast.expr, home: str) -> str:
    if isinstance(node, ast.Name):  # a constant, such as FAIL
        return repr(getattr(importlib.import_module(f"{PACKAGE.name}.{home}"), node.id))
    return ast.unparse(node)


def job_page() -> str:
    """Return the page of what a job's file uses: of a job's context the members that it calls."""
    if missing := {*_HOMES} - {*JOB_NAMES}:
        raise LookupError(f"{', '.join(missing)}: public, and not in JOB_NAMES")
    lines = [JOB_ABOUT]
    for name, home in JOB_NAMES.items():
        room = "runtime" if name in _HOMES else home.rpartition(".")[0]
        lines += [f"## {name}\n", f"`from {PACKAGE.name}.{room} import {name}`\n"]
        lines += described(_found(name, home), home)
        for method, owner in JOB_METHODS.items() if name == "JobContext" else ():
            node = next(
                each
                for each in _found(*owner).body
                if isinstance(each, ast.FunctionDef) and each.name == method
            )
            lines += [f"### JobContext.{method}\n", *described(node, owner[1])]
    return "\n".join(lines) + "\n"


def _found(name: str, home: str) -> Any:
    path = path_of(f"{PACKAGE.name}.{home}")
    return next(node for node in found_in(path) if node.name == name)


# --- The command line -------------------------------------------------------------------------


def commands_page() -> str:
    """Return the page of all commands, of their parsers."""
    lines = [
        "# Commands\n",
        "`spark-stream COMMAND --help` shows these texts. `airflow spark-stream` has the commands, "
        "too, and [`check-connection`](../airflow.md). [Exit codes](errors.md).\n",
    ]
    for parser in leaves_of(_parser("spark-stream", "", ())):
        lines += [f"## {parser.prog.removeprefix('spark-stream ')}\n"]
        if parser.description:
            lines += [_sentence(parser.description) + "\n"]
        lines += [f"```text\n{_usage_of(parser)}\n```\n"]
        rows = [_row_of(action) for action in parser._actions if _is_shown(action)]
        if rows:
            lines += ["| argument | meaning |\n|---|---|", *rows, ""]
    return "\n".join(lines) + "\n"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def leaves_of(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield the parsers of commands without commands of their own."""
    below = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not below:
        yield parser
    for action in below:
        for each in action.choices.values():
            yield from leaves_of(each)


def _is_shown(action: argparse.Action) -> bool:
    return argparse.SUPPRESS not in (action.help, action.dest)


def _usage_of(parser: argparse.ArgumentParser) -> str:
    formatter = argparse.HelpFormatter(parser.prog, width=84)
    formatter.add_usage(parser.usage, parser._actions, parser._mutually_exclusive_groups, "")
    return formatter.format_help().strip()


def _row_of(action: argparse.Action) -> str:
    value = action.metavar or (action.dest.upper() if action.option_strings else action.dest)
    value = " ".join(value) if isinstance(value, tuple) else value
    if action.choices:
        value = "{" + ",".join(map(str, action.choices)) + "}"
    takes = "" if action.nargs == 0 else f" {value}"
    names = [f"`{name}{takes}`" for name in action.option_strings] or [f"`{value}`"]
    values = {**vars(action), "prog": "spark-stream"}
    meaning = _sentence((action.help or "") % values) if action.help else ""
    return f"| {cell(', '.join(names))} | {cell(meaning)} |"


# --- Documents, errors, metrics ---------------------------------------------------------------


def documents_page() -> str:
    """Return the page of all fields of all documents, of their schemas."""
    lines = [
        "# Fields of documents\n",
        "Each document of a job directory and of a savepoint, with all its fields, from the "
        "schemas of [the job directory](../internals/job-directory.md). `[]` is an element of a "
        "list, `{}` a field of any name.\n",
    ]
    for path in sorted((ROOT / "docs" / "schemas").glob("*.json")):
        schema = json.loads(path.read_text())
        lines += [f"## {path.stem}\n", markdown(schema["description"]) + "\n"]
        lines += ["| field | type | required | meaning |\n|---|---|---|---|"]
        lines += [*_members(schema, ""), ""]
    return "\n".join(lines) + "\n"


def _members(schema: dict[str, Any], prefix: str) -> Iterator[str]:
    required = schema.get("required", ())
    for name, kind in schema.get("properties", {}).items():
        path = f"{prefix}{name}"
        is_required = "yes" if name in required else ""
        about = cell(markdown(_notes(kind)))
        yield f"| `{path}` | {cell(_type(kind))} | {is_required} | {about} |"
        yield from _below(kind, path)


def _below(kind: dict[str, Any], path: str) -> Iterator[str]:
    for each in kind.get("anyOf", [kind]):
        if "properties" in each:
            yield from _members(each, f"{path}.")
        if isinstance(each.get("items"), dict):
            yield from _below(each["items"], f"{path}[]")
        if isinstance(each.get("additionalProperties"), dict):
            yield from _below(each["additionalProperties"], f"{path}.{{}}")


def _type(kind: dict[str, Any]) -> str:
    if "anyOf" in kind:
        return " or ".join(dict.fromkeys(_type(each) for each in kind["anyOf"]))
    if "enum" in kind:
        return ", ".join(f"`{value}`" for value in kind["enum"])
    if kind.get("type") == "array":
        items = kind.get("items")
        return f"list of {_type(items)}" if isinstance(items, dict) and items else "list"
    return str(kind.get("type", "any value"))


def _notes(kind: dict[str, Any]) -> str:
    notes = [kind["description"]] if "description" in kind else []
    notes += [f"at least {kind['minimum']}"] if "minimum" in kind else []
    notes += [f"at most {kind['maximum']}"] if "maximum" in kind else []
    notes += [f"matches `{kind['pattern']}`"] if "pattern" in kind else []
    if not notes and "anyOf" in kind:
        return "; ".join(filter(None, map(_notes, kind["anyOf"])))
    return ", ".join(notes)


def errors_page() -> str:
    """Return the page of exit codes, errors and the rules that class a failure."""
    codes = [f"| {code} | {meaning} |" for code, meaning in MEANING_OF_EXIT.items()]
    rows = []
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.SparkStreamError):
            parents = ", ".join(base.__name__ for base in kind.__bases__)
            first = markdown((kind.__doc__ or "").partition("\n\n")[0])
            rows.append(f"| `{kind.__name__}` | {parents} | {kind.exit_code} | {cell(first)} |")
    lines = [
        "# Errors, exit codes and failure rules\n",
        "Every error is one line that names the thing and the fix. "
        "[Troubleshooting](../troubleshooting.md) explains what follows from a failure's class.\n",
        "## Exit codes\n",
        "| exit code | meaning |\n|---|---|",
        *codes,
        "\n## Errors\n",
        "An error with the exit code 2 is raised before anything is written.\n",
        "| error | is a | exit code | meaning |\n|---|---|---|---|",
        *rows,
        "\n## Mistakes that Spark finds\n",
        "Each has been made in a test, and shows this.\n",
        *table(),
        "\n## Failure rules\n",
        "The first rule that fits decides the class of a failure.\n",
        describe_rules(),
    ]
    return "\n".join(lines) + "\n"


def metrics_page() -> str:
    """Return the page of all metrics."""
    rows = [
        f"| `{each.name}` | {'query' if each.is_of_query else 'job'} | {each.unit} | "
        f"{cell(each.meaning)}. |"
        for each in METRICS
    ]
    lines = [
        "# Metrics\n",
        "Each is a gauge, named `spark_stream.<name>`; [Monitor](../monitor.md) explains where "
        "they go and under which names.\n",
        "| name | one for each | unit | meaning |\n|---|---|---|---|",
        *rows,
    ]
    return "\n".join(lines) + "\n"
