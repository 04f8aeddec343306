"""Write ``docs/operators.md``: every argument of what a DAG file uses, from the code.

Run it after an argument or its docstring has changed; the documentation is not built while the page
differs. Modules that import Airflow are read, not imported; a test compares the page with the
classes themselves.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import re
import sys
from typing import TYPE_CHECKING, Any, Final, cast

from docs_reference import (
    ROOT,
    Docstring,
    Function,
    cell,
    found_in,
    maker_of,
    markdown,
    parameters_of,
    path_of,
)
from document_schemas import meaning_of

from airflow_provider import get_provider_info
from airflow_provider.runtime.jobdir.run_options import RunOptions, options_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PAGE: Final = ROOT / "docs" / "operators.md"
POLICIES: Final = "airflow_provider.operators.retry_policy"
# What every task that submits a driver takes has a section of its own.
SUBMISSION: Final = ("SubmittingOperator", "airflow_provider.operators.submitting")
SUBMIT_OPTIONS: Final = ("SubmitOptions", "airflow_provider.hooks.submit_options")
IN_ASSETS: Final = "airflow_provider.triggers.stream_events"
PAGES: Final = re.compile(r"docs/([a-z-]+)\.md")  # as docstrings name them
PUBLIC: Final = re.compile(r"Spark\w+(Operator|Sensor|Trigger)")
ARGUMENTS: Final = ROOT / "airflow_provider" / "operators" / "arguments.py"
DRIVER: Final = ("DriverOperator", "airflow_provider.operators.base")
ARGUMENTS_ABOUT: Final = '''\
"""Keyword arguments of operators that own a driver, for type checkers.

``scripts/docs_operators.py`` writes this module from the signatures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from airflow_provider.runtime.jobdir.run_arguments import RunArguments

if TYPE_CHECKING:
    from collections.abc import Mapping


class TaskArguments(TypedDict, total=False):
    """Arguments of Airflow's ``BaseOperator``; ``params`` is an argument of our own."""
'''
DRIVER_ABOUT: Final = '''

class DriverArguments(RunArguments, TaskArguments, total=False):
    """Arguments of an operator that owns a driver, with those of Airflow and of a run."""
'''
DECORATED: Final = "SparkStreamingOperator"
ABOUT: Final = """\
# Arguments of operators, sensors and triggers

Five arguments of `SparkStreamingOperator` are enough to begin with; all others have defaults:

| argument | value |
|---|---|
| `task_id` | Airflow's name of the task |
| `job` | the job's function, such as `/opt/jobs/flights.py:daily_delays` |
| `job_dir` | the job's directory, on a disk or in a bucket that Airflow and Spark share |
| `params` | the job's parameters, such as `{"input": "/data/flights"}` |
| `retries` | how often a failed try is resumed |

[Run jobs from Airflow](airflow.md) explains how they work together, [options](options.md) names
the option of the command line for each argument of a run. To begin a live job with its history,
`live_with_history` makes [two tasks](backfills.md#a-live-job-that-begins-with-history).

An argument with *yes* under *template* is a field with templates. Besides Airflow's own names, such
as `{{ ds }}`, templates of the operators know
[`{{ slice }}`](backfills.md#which-slice-a-run-is-for). Each operator and the sensor also take the
arguments of Airflow's `BaseOperator`, such as `retries`. A wrong argument is a `ConfigError` when
the DAG is parsed.
"""
MADE_BY: Final = """
`scripts/docs_operators.py` writes this page from the docstrings."""
IN_ALL_EVENTS: Final = ("job_dir", "poll_interval", "burst", "storage_conn_id")
"""Arguments that every trigger of events takes; they have one table."""


@dataclasses.dataclass(frozen=True)
class Source:
    """A class of the package as it is parsed, and the module that it is in."""

    node: ast.ClassDef
    module: str

    @functools.cached_property
    def docstring(self) -> Docstring:
        """Its docstring."""
        return Docstring.of(self.node)

    def lineage(self) -> Iterator[Source]:
        """Yield the class and those of this package that it is derived from."""
        yield self
        for base in self.node.bases:
            found = _defined(base.id, self.module) if isinstance(base, ast.Name) else None
            if found is not None and isinstance(found[0], ast.ClassDef):
                yield from Source(found[0], found[1]).lineage()

    def value(self, attribute: str) -> Any:
        """Return the value of an attribute of the class; None if no class of its lineage has it."""
        for each in self.lineage():
            for node in each.node.body:
                if (found := _assigned(node, attribute)) is not None:
                    return _value(found, each.module)
        return None


@dataclasses.dataclass(frozen=True)
class Argument:
    """An argument of a class.

    Attributes:
        name: of the argument.
        annotation: its type, as the code has it.
        default: its default as Python writes it; empty for an argument that must be given.
    """

    name: str
    annotation: str
    default: str

    def row(self, meaning: str, *, is_template: bool | None) -> str:
        """Return its row in a table; None for a table that has no templates."""
        default = f"`{cell(self.default)}`" if self.default else "required"
        template = "" if is_template is None else " yes |" if is_template else " |"
        kind = f"`{cell(self.annotation)}`"
        return f"| `{self.name}` | {kind} | {default} |{template} {cell(meaning)} |"


# --- Reading the code ---------------------------------------------------------------------------


@functools.cache
def _body(module: str) -> Sequence[ast.stmt]:
    return ast.parse(path_of(module).read_text()).body


def _assigned(node: ast.stmt, name: str) -> ast.expr | None:
    match node:
        case ast.AnnAssign(target=ast.Name(id=found), value=value) if found == name:
            return value
        case ast.Assign(targets=[ast.Name(id=found)], value=value) if found == name:
            return value
        case _:
            return None


def _defined(name: str, module: str) -> tuple[ast.AST, str] | None:
    """Return the class or the value that a module has under a name, and its home."""
    for node in _body(module):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node, module
        if (value := _assigned(node, name)) is not None:
            return value, module
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("airflow_provider"):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _defined(alias.name, str(node.module))
    return None


def _class(name: str, module: str) -> Source:
    found = _defined(name, module)
    if found is None or not isinstance(found[0], ast.ClassDef):
        raise LookupError(f"{module} has no class {name}")
    return Source(found[0], found[1])


def _value(node: ast.AST, module: str) -> Any:
    """Return the value of an expression of literals and of names that stand for them."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Tuple(elts=parts):
            return tuple(each for part in parts for each in _parts(part, module))
        case ast.Name(id=name) if (found := _defined(name, module)) is not None:
            return _value(*found)
        case ast.Attribute(value=ast.Name(id=name), attr=attribute):
            return _class(name, module).value(attribute)
        case ast.Attribute(value=member, attr="value"):  # of an enumeration
            return _value(member, module)
        case _:
            raise LookupError(f"{module}: {ast.unparse(node)} is no literal")


def _parts(node: ast.expr, module: str) -> Sequence[Any]:
    if isinstance(node, ast.Starred):
        return cast("Sequence[Any]", _value(node.value, module))
    return [_value(node, module)]


def _arguments(source: Source) -> Iterator[Argument]:
    """Yield the arguments of a class, its own before those of the classes below it."""
    seen = {"self"}
    for each in source.lineage():
        maker = maker_of(each.node)
        if maker is None:
            continue
        for argument in (*_written(maker, each.module), *_declared(each)):
            if argument.name not in seen:
                seen.add(argument.name)
                yield argument
        if maker.args.kwarg is None:
            return


def _written(maker: Function, module: str) -> Iterator[Argument]:
    """Yield the arguments that a signature lists."""
    for argument, default in parameters_of(maker):
        shown = repr(_value(default, module)) if default else ""
        kind = ast.unparse(argument.annotation) if argument.annotation else ""
        yield Argument(argument.arg, kind, shown)


def _declared(source: Source) -> Iterator[Argument]:
    """Yield the arguments that are declared as options."""
    for kind in _taken(source):
        for each in kind.parameters():
            yield Argument(each.name, str(each.annotation), repr(each.default))


def _taken(source: Source) -> Iterator[Any]:
    """Yield the class of options that an ``__init__`` takes by ``@taking``."""
    maker = maker_of(source.node)
    for node in maker.decorator_list if maker is not None else ():
        match node:
            case ast.Call(func=ast.Name(id="taking"), args=[ast.Name(id=name)]):
                found = _class(name, source.module)
                yield getattr(importlib.import_module(found.module), name)
            case _:
                pass


def _templates(source: Source) -> set[str] | None:
    """Return the arguments that are fields with templates; None for a class without such fields.

    An argument may be stored as a field of another name, as ``params`` is as ``job_params``.
    """
    fields = source.value("template_fields")
    if fields is None:
        return None
    found = set(fields)
    maker = maker_of(source.node)
    for node in ast.walk(maker) if maker is not None else ():
        match node:
            case ast.Assign(targets=[ast.Attribute(attr=field)], value=value) if field in fields:
                found |= {each.id for each in ast.walk(value) if isinstance(each, ast.Name)}
            case _:
                pass
    return found


def _meanings(sources: Sequence[Source]) -> dict[str, str]:
    found: dict[str, str] = {}
    for source in sources:
        sections = source.docstring.sections
        for names, meaning in [*sections.get("Args", []), *sections.get("Attributes", [])]:
            for name in names.split(", "):
                found.setdefault(name, meaning)
        for kind in _taken(source):
            if issubclass(kind, RunOptions):
                for argument, field in kind.arguments().items():
                    found.setdefault(argument, f"{meaning_of(options_of(kind)[field])}.")
    return found


# --- The page -----------------------------------------------------------------------------------


def _table(source: Source, *, shared: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield the table of a class without shared arguments that its docstring does not name."""
    own = _meanings([source])
    names = (each.name for each in _arguments(source))
    yield from _rows(source, [name for name in names if name not in shared or name in own])


def _rows(source: Source, names: Sequence[str]) -> Iterator[str]:
    """Yield the table of some arguments of a class."""
    meanings = _meanings([*source.lineage(), _class(*SUBMIT_OPTIONS)])
    templates = _templates(source)
    rows = [
        each.row(
            meanings.get(each.name, ""),
            is_template=None if templates is None else each.name in templates,
        )
        for each in _arguments(source)
        if each.name in names
    ]
    if rows:
        yield f"| argument | type | default |{'' if templates is None else ' template |'} meaning |"
        yield f"|---|---|---|{'' if templates is None else '---|'}---|"
        yield "\n".join(rows) + "\n"


def _section(source: Source) -> Iterator[str]:
    name = source.node.name
    yield f"## {name}\n"
    yield f"`from {source.module} import {name}`\n"
    yield source.docstring.text + "\n"
    shared = frozenset[str]()
    if any(each.node.name == SUBMISSION[0] for each in source.lineage()):
        shared = frozenset(each.name for each in _arguments(_class(*SUBMISSION)))
    if source.module == IN_ASSETS:
        own = [each.name for each in _arguments(source) if each.name not in IN_ALL_EVENTS]
        yield from _rows(source, own)
        yield "It also takes the [arguments of events](#arguments-of-events).\n"
        return
    yield from _table(source, shared=shared)
    if shared:
        yield "It also takes the [arguments of a submission](#arguments-of-a-submission).\n"


def _decorator(path: str) -> Iterator[str]:
    module, _, name = path.rpartition(".")
    functions = (node for node in found_in(path_of(module)) if not isinstance(node, ast.ClassDef))
    function = next(node for node in functions if node.name == name)
    docstring = Docstring.of(function)
    meanings = dict(docstring.sections["Args"])
    about = ast.get_docstring(ast.parse(path_of(module).read_text())) or ""
    explained = markdown(about.partition("\n\n")[2])
    yield f"## @task.{module.rpartition('.')[2]}\n"
    yield "`from airflow.sdk import task`\n"
    yield f"{docstring.text} {explained}\n"
    yield "| argument | type | default | meaning |\n|---|---|---|---|"
    for argument, default in parameters_of(function):
        kind = ast.unparse(argument.annotation) if argument.annotation else ""
        shown = repr(_value(default, module)) if default else ""
        yield Argument(argument.arg, kind, shown).row(meanings[argument.arg], is_template=None)
    yield f"\nIt also takes the arguments of [`{DECORATED}`](#{DECORATED.lower()}).\n"


def _public(modules: Sequence[str]) -> Iterator[Source]:
    """Yield what a DAG file, or Airflow's database, names of some modules."""
    for module in modules:
        for node in found_in(path_of(module)):
            if isinstance(node, ast.ClassDef) and PUBLIC.fullmatch(node.name):
                yield Source(node, module)


def page() -> str:
    """Return the page."""
    info = get_provider_info()

    def modules(group: str) -> list[str]:
        return [name for each in info[group] for name in each["python-modules"]]

    in_tasks = [name for name in modules("triggers") if name != IN_ASSETS]
    submission = _class(*SUBMISSION)
    lines = [ABOUT]
    for source in sorted(_public(modules("operators")), key=lambda s: s.node.name != DECORATED):
        lines += _section(source)
    lines += ["## Arguments of a submission\n", submission.docstring.text + "\n"]
    lines += _table(submission)
    for each in info["task-decorators"]:
        lines += _decorator(each["class-name"])
    for source in [
        *_public(modules("sensors")),
        _class("FailureRetryPolicy", POLICIES),
        *_public([IN_ASSETS]),
    ]:
        lines += _section(source)
    lines += ["## Arguments of events\n", "Each trigger of events takes them.\n"]
    lines += _rows(next(_public([IN_ASSETS])), IN_ALL_EVENTS)
    lines += [
        "## Triggers that tasks defer to\n",
        "The operators and the sensor make these themselves; a DAG names none of them.\n",
    ]
    for source in _public(in_tasks):
        lines += [f"#{line}" if line.startswith("## ") else line for line in _section(source)]
    lines.append(MADE_BY)
    return PAGES.sub(r"[\1](\1.md)", "\n".join(lines).rstrip()) + "\n"


def arguments_module() -> str:
    """Return the module that tells type checkers the keywords of operators that own a driver."""
    from airflow.sdk import BaseOperator

    base = [
        each.name
        for each in inspect.signature(BaseOperator.__init__).parameters.values()
        if each.name not in {"self", "params", "kwargs"}
    ]
    ours = [each for each in _arguments(_class(*DRIVER)) if each.default]
    lines = [ARGUMENTS_ABOUT, *(f"    {name}: Any" for name in base)]
    lines += [DRIVER_ABOUT, *(f"    {each.name}: {each.annotation}" for each in ours)]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the page and the module."""
    PAGE.write_text(page())
    ARGUMENTS.write_text(arguments_module())
    print(f"{PAGE.relative_to(ROOT)}, {ARGUMENTS.relative_to(ROOT)}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
