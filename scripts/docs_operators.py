"""Write ``docs/operators.md``: every argument of what a DAG file uses, from the code.

The main operator is first, with its arguments in groups; the others refer to its arguments. Run it
after an argument or its docstring has changed; the documentation is not built while the page
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
import textwrap
from typing import TYPE_CHECKING, Any, Final, cast

from docs_reference import (
    HEAD,
    ROOT,
    Docstring,
    Function,
    argument_row,
    cell,
    found_in,
    listed,
    maker_of,
    markdown,
    parameters_of,
    path_of,
)

from airflow_provider import get_provider_info
from airflow_provider.hooks.submit_options import NOT_TAKEN
from airflow_provider.runtime.jobdir.run_options import RunOptions, options_of
from airflow_provider.runtime.jobdir.run_spec import RunSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PAGE: Final = ROOT / "docs" / "operators.md"
POLICIES: Final = "airflow_provider.operators.retry_policy"
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
MAIN: Final = "SparkStreamingOperator"
# By importance; an operator that is not here comes after them.
ORDER: Final = (
    MAIN,
    "SparkStopOperator",
    "SparkSavepointOperator",
    "SparkUpgradeOperator",
    "SparkBootstrapOperator",
    "SparkMaintainOperator",
    "SparkCompareOperator",
)
ABOUT: Final = """\
# Operators

[`SparkStreamingOperator`](#sparkstreamingoperator) runs a job, and the other operators act on a job
directory. A sensor and triggers wait for the job's output.

A *duration* is a string such as `10 minutes`, or a number of seconds. Without *required* or a
default, an argument is None. Fields with templates know Airflow's names, such as `{{ ds }}`, and
[`{{ slice }}`](slices.md). Operators and the sensor also take the arguments of Airflow's
`BaseOperator`. A wrong argument raises `ConfigError` when the DAG is parsed.
"""
PASSED: Final = "Options of spark-submit"
GROUPS: Final = {
    "Start with these": (
        "All other arguments have defaults.",
        "task_id job job_dir params retries",
    ),
    "Job and data": (
        "See [Write a job](write-a-job.md), [Batch or stream](batch-or-stream.md), "
        "[Slices](slices.md) and [Bad and late rows](bad-and-late-rows.md).",
        "script sql secret_params interval from_savepoint mode until at_end late late_limit "
        "missing_input",
    ),
    "Retries and clears": (
        "[Run a job](airflow.md) explains retries, clears and kills, and "
        "[Troubleshooting](troubleshooting.md) the classes of failures.",
        "on_clear replayable_runs on_kill on_existing restart failover fails_as",
    ),
    "Long-running streams": (
        "See [Long-running streams](long-running-streams.md).",
        "max_runtime progress_timeout max_lag max_lag_time trigger target_batch_time "
        "follow_upgrades",
    ),
    "Resources": (
        "See [Clusters](clusters.md), [Settings of Spark](spark-settings.md) and "
        "[Warm drivers](warm-drivers.md).",
        "conn_id storage_conn_id launcher launcher_options warm deploy_mode conf env_vars "
        "driver_memory executor_memory executor_cores num_executors total_executor_cores",
    ),
    PASSED: (
        "These are passed on, and mean the same as for `SparkSubmitOperator`:",
        "py_files files archives jars packages exclude_packages repositories driver_class_path "
        "properties_file principal keytab use_krb5ccache proxy_user yarn_queue spark_binary "
        "verbose openlineage_inject_parent_job_info openlineage_inject_transport_info",
    ),
    "Waiting": (
        "[Deploy on your Airflow](deploy-on-your-airflow.md) explains where tasks can defer.",
        "deferrable driver_outlives_task poll_interval",
    ),
    "Advanced": (
        "See [Change a job](change-a-job.md), [Savepoints](savepoints.md) and "
        "[Known bugs of Spark](known-spark-bugs.md).",
        "run_id defer_after end_from_trigger state_partitions replaces_job "
        "allow_non_restored_state allow_mixed_results allow_known_bugs",
    ),
}
"""The groups of the main operator's arguments; each is in one of them."""
OF_AIRFLOW: Final = {
    "task_id": "| `task_id` | `str`, required | Airflow's name of the task. |",
    "retries": "| `retries` | `int`, `0` | How often a failed try is resumed. |",
}
EVENTS_ABOUT: Final = """\
## Triggers of events

`from airflow_provider.triggers.stream_events import SparkCompleteTrigger`, and likewise the others.
Each is the trigger of an `AssetWatcher`, and reports events of one job. See [Events](events.md).
"""
MADE_BY: Final = """
`scripts/docs_operators.py` writes this page from the docstrings."""
IN_ALL_EVENTS: Final = ("job_dir", "poll_interval", "burst", "storage_conn_id")
"""Arguments that every trigger of events takes."""


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

    def row(self, meaning: str) -> str:
        """Return its row in a table."""
        return argument_row(self.name, self.annotation, self.default, meaning)


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
                    found.setdefault(argument, f"{options_of(kind)[field].help}.")
    return found


# --- The page -----------------------------------------------------------------------------------


def _rows(source: Source) -> dict[str, str]:
    """Return the row of each argument of a class."""
    meanings = _meanings([*source.lineage(), _class(*SUBMIT_OPTIONS)])
    return {each.name: each.row(meanings.get(each.name, "")) for each in _arguments(source)}


def _head(source: Source) -> Iterator[str]:
    name = source.node.name
    yield f"## {name}\n"
    yield f"`from {source.module} import {name}`\n"
    yield source.docstring.text + "\n"


def _main(source: Source) -> Iterator[str]:
    """Yield the section of the main operator, with its arguments in groups."""
    rows = {**_rows(source), **OF_AIRFLOW}
    yield from _head(source)
    for title, (about, _) in GROUPS.items():
        found = [rows.pop(name) for name in _names(title)]
        yield f"### {title}\n"
        if title == PASSED:
            yield _paragraph(f"{about} {listed(_names(title))}.")
            yield _paragraph(f"These are rejected, with the reason: {listed(sorted(NOT_TAKEN))}.")
        else:
            yield "\n".join([f"{_paragraph(about)}\n{HEAD}", *found]) + "\n"
    if rows:
        raise LookupError(f"{', '.join(rows)}: in no group of scripts/docs_operators.py")
    yield "### Templates, attempts, command line\n"
    yield from _with_templates(source)
    yield from _in_other_places()


def _with_templates(source: Source, left_out: Sequence[str] = ()) -> Iterator[str]:
    """Yield the fields with templates, without those of whole groups that a class shares."""
    found = (_templates(source) or set()) - {*left_out}
    if found:
        names = [each.name for each in _arguments(source) if each.name in found]
        more = ", and those of these groups" if left_out else ""
        yield _paragraph(f"Fields with templates: {listed(names)}{more}.")


def _in_other_places() -> Iterator[str]:
    """Yield where an argument of a run must stay the same, and its name on the command line."""
    fixed, differ = [], []
    for each in options_of(RunSpec).values():
        if each.argument is not None:
            fixed += [each.argument] if each.fixed is not None else []
            usual = each.argument.replace("_", "-")
            is_usual = each.flag.removeprefix("--") in {usual, each.argument}
            differ += [] if is_usual else [f"`{each.argument}` is `{each.flag}`"]
    yield _paragraph(
        f"All attempts of a run share {listed(fixed)}. A retry with another value is "
        "rejected; but secrets may get new values, and `late` any other than `wait`."
    )
    yield _paragraph(
        "On the command line, `late_limit` is `--late-limit`, and so on; but "
        f"{', '.join(differ)}. [Commands](reference/commands.md) has all options."
    )


def _paragraph(text: str) -> str:
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False) + "\n"


def _names(title: str) -> list[str]:
    return GROUPS[title][1].split()


def _section(source: Source, main: Source) -> Iterator[str]:
    """Yield the section of a class, which refers to equal arguments of the main operator."""
    of_main, rows = _rows(main), _rows(source)
    shared = [name for name, row in rows.items() if of_main.get(name) == row]
    yield from _head(source)
    yield "\n".join([HEAD, *(row for name, row in rows.items() if name not in shared)]) + "\n"
    if shared:
        yield _paragraph(f"From [`{MAIN}`](#{MAIN.lower()}): {', '.join(_grouped(shared))}.")
    whole = [title for title in GROUPS if {*_names(title)} <= {*shared}]
    yield from _with_templates(source, [name for title in whole for name in _names(title)])


def _grouped(names: Sequence[str]) -> Iterator[str]:
    """Yield links to the groups of which a class takes all arguments, and the other names."""
    left = list(names)
    links = []
    for title in GROUPS:
        if {*_names(title)} <= {*left}:
            left = [name for name in left if name not in _names(title)]
            links.append(f"[{title}](#{title.lower().replace(' ', '-')})")
    yield from links
    yield from (f"`{name}`" for name in left)


def _events() -> Iterator[str]:
    """Yield the section of the triggers of events, and one table of their arguments."""
    sources = list(_public([IN_ASSETS]))
    yield EVENTS_ABOUT
    yield "| trigger | one event for | its own arguments |\n|---|---|---|"
    for source in sources:
        names = [each.name for each in _arguments(source) if each.name not in IN_ALL_EVENTS]
        about, _, _ = source.docstring.text.partition("\n\n")
        yield f"| `{source.node.name}` | {cell(about)} | {listed(names)} |"
    for source in sources:
        _, _, more = source.docstring.text.partition("\n\n")
        if more:
            yield f"\n`{source.node.name}`: {more}"
    rows: dict[str, str] = {}
    for source in sources:
        rows = {**_rows(source), **rows}
    yield "\n" + "\n".join([HEAD, *rows.values()]) + "\n"


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
    yield HEAD
    for argument, default in parameters_of(function):
        kind = ast.unparse(argument.annotation) if argument.annotation else ""
        shown = repr(_value(default, module)) if default else ""
        yield Argument(argument.arg, kind, shown).row(meanings[argument.arg])
    yield f"\nIt also takes the arguments of [`{MAIN}`](#{MAIN.lower()}).\n"


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

    main, *others = sorted(_public(modules("operators")), key=_place)
    lines = [ABOUT, *_main(main)]
    for each in info["task-decorators"]:
        lines += _decorator(each["class-name"])
    for source in [*others, *_public(modules("sensors")), _class("FailureRetryPolicy", POLICIES)]:
        lines += _section(source, main)
    lines += [*_events(), MADE_BY]
    return PAGES.sub(_link, "\n".join(lines).rstrip()) + "\n"


def _place(source: Source) -> tuple[int, str]:
    name = source.node.name
    return (ORDER.index(name) if name in ORDER else len(ORDER), name)


def _link(page: re.Match[str]) -> str:
    return f"[{page[1].replace('-', ' ')}]({page[1]}.md)"


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
