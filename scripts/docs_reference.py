"""Reference of the site, of the code: a job's functions, commands, documents, errors, metrics.

The pages exist in the site only (``docs_site`` lays them out): what is not written by hand
cannot differ from the code. Modules that import Airflow or PySpark are read, not imported.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
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

if TYPE_CHECKING:
    from collections.abc import Iterator

Function = ast.FunctionDef | ast.AsyncFunctionDef

PACKAGE: Final = ROOT / "airflow_provider"
SECTION: Final = re.compile(r"^(Args|Attributes|Returns|Yields|Raises):$", re.MULTILINE)
ROLE: Final = re.compile(r":(?:class|func|mod|meth|data|attr|exc):`~?\.?([^`]+)`")
CODE: Final = re.compile(r"\n\n::\n\n((?:    .*\n?|\n)+)")
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


def described(node: ast.ClassDef | Function, *, deep: bool = False) -> Iterator[str]:
    """Yield the section of a class or a function: its text, its arguments, what it raises.

    Args:
        node: as it is parsed.
        deep: whether the public methods of a class follow.
    """
    docstring = Docstring.of(node)
    yield f"## {node.name}\n"
    yield from _described(node, docstring)
    if deep and isinstance(node, ast.ClassDef):
        for each in node.body:
            if isinstance(each, ast.FunctionDef) and not each.name.startswith("_"):
                yield f"### {node.name}.{each.name}\n"
                yield from _described(each, Docstring.of(each))


def _described(node: ast.ClassDef | Function, docstring: Docstring) -> Iterator[str]:
    yield docstring.text + "\n"
    maker = maker_of(node) if isinstance(node, ast.ClassDef) else node
    is_made_by_us = "Attributes" in docstring.sections
    rows = [] if is_made_by_us or not maker else list(_arguments(maker, docstring.meanings))
    if rows:
        yield "| argument | type | default | meaning |\n|---|---|---|---|"
        yield "\n".join(rows) + "\n"
    attributes = docstring.sections.get("Attributes")
    if attributes:
        yield "| attribute | meaning |\n|---|---|"
        yield "\n".join(f"| `{name}` | {cell(text)} |" for name, text in attributes) + "\n"
    for title in ("Returns", "Raises"):
        for name, text in docstring.sections.get(title, []):
            yield f"{title}: {f'`{name}`: ' if name else ''}{text}\n"


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


def _arguments(function: Function, meanings: dict[str, str]) -> Iterator[str]:
    for argument, default in parameters_of(function):
        kind = f"`{cell(ast.unparse(argument.annotation))}`" if argument.annotation else ""
        shown = f"`{cell(ast.unparse(default))}`" if default else ""
        yield f"| `{argument.arg}` | {kind} | {shown} | {cell(meanings.get(argument.arg, ''))} |"


def job_page() -> str:
    """Return the page of all that a job uses."""
    lines = [
        "# A job's functions\n",
        "A job is a function that gets a `JobContext`. What this page has is imported from "
        "`airflow_provider.runtime`.\n",
    ]
    for name, home in sorted(_HOMES.items(), key=lambda pair: (pair[0] != "JobContext", pair[0])):
        path = path_of(f"airflow_provider.runtime.{home}")
        for node in found_in(path):
            if node.name == name:
                lines += described(node, deep=name == "JobContext")
    return "\n".join(lines) + "\n"


# --- The command line -------------------------------------------------------------------------


def commands_page() -> str:
    """Return the page of all commands, of their parsers."""
    lines = [
        "# Commands\n",
        "`spark-stream COMMAND --help` shows the same. `airflow spark-stream` has these commands "
        "too, and [check-connection](../airflow.md#check-a-connection). [Exit codes](errors.md).\n",
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
        "schemas of [the job directory](../job-directory.md). `[]` is an element of a list, `{}` a "
        "field of any name.\n",
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
        "Every error is one line that names the thing and the fix. [Failures](../failures.md) "
        "says what follows from a failure's class.\n",
        "## Exit codes\n",
        "| exit code | meaning |\n|---|---|",
        *codes,
        "\n## Errors\n",
        "An error with the exit code 2 is raised before anything is written.\n",
        "| error | is a | exit code | meaning |\n|---|---|---|---|",
        *rows,
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
        "Each is a gauge, named `spark_stream.<name>`; [Send metrics](../metrics.md) says where "
        "they go and under which names.\n",
        "| name | one for each | unit | meaning |\n|---|---|---|---|",
        *rows,
    ]
    return "\n".join(lines) + "\n"
