"""Write ``docs/operators.md``: every argument of what a DAG file uses, from the code.

The main operator is first, with its arguments in groups; the others refer to its arguments. Run it
after an argument or its docstring has changed; the documentation is not built while the page
differs. Modules that import Airflow are read, not imported; a test compares the page with the
classes themselves.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from typing import TYPE_CHECKING, Final

from docs_reference import (
    HEAD,
    ROOT,
    Docstring,
    cell,
    found_in,
    listed,
    markdown,
    parameters_of,
    path_of,
)
from operator_signatures import (
    Argument,
    Source,
    arguments_of,
    rows_of,
    source_of,
    templates_of,
    value_of,
)

from airflow_provider import get_provider_info
from airflow_provider.hooks.submit_options import NOT_TAKEN
from airflow_provider.runtime.jobdir.run_options import options_of
from airflow_provider.runtime.jobdir.run_spec import RunSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PAGE: Final = ROOT / "docs" / "operators.md"
POLICIES: Final = "airflow_provider.operators.retry_policy"
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


def _head(source: Source) -> Iterator[str]:
    name = source.node.name
    yield f"## {name}\n"
    yield f"`from {source.module} import {name}`\n"
    yield source.docstring.text + "\n"


def _main(source: Source) -> Iterator[str]:
    """Yield the section of the main operator, with its arguments in groups."""
    rows = {**rows_of(source), **OF_AIRFLOW}
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
    found = (templates_of(source) or set()) - {*left_out}
    if found:
        names = [each.name for each in arguments_of(source) if each.name in found]
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
    of_main, rows = rows_of(main), rows_of(source)
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
        names = [each.name for each in arguments_of(source) if each.name not in IN_ALL_EVENTS]
        about, _, _ = source.docstring.text.partition("\n\n")
        yield f"| `{source.node.name}` | {cell(about)} | {listed(names)} |"
    for source in sources:
        _, _, more = source.docstring.text.partition("\n\n")
        if more:
            yield f"\n`{source.node.name}`: {more}"
    rows: dict[str, str] = {}
    for source in sources:
        rows = {**rows_of(source), **rows}
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
        shown = repr(value_of(default, module)) if default else ""
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
    policy = source_of("FailureRetryPolicy", POLICIES)
    for source in [*others, *_public(modules("sensors")), policy]:
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
    ours = [each for each in arguments_of(source_of(*DRIVER)) if each.default]
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
