"""The names that users depend on: ``interface.json`` of each release, and how the code gives it.

``docs/stability.md`` promises it. ``python -m tests.kept.interface VERSION`` writes the file of a
version until it is released. A test compares: a name that is missing in the code breaks somebody's
DAG, script, dashboard or extension.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import airflow_provider
from airflow_provider import get_provider_info, runtime
from airflow_provider.runtime import errors
from airflow_provider.runtime.cli.main import _parser
from airflow_provider.runtime.jobdir.revised_runs import RevisedRun
from airflow_provider.runtime.observe import events
from airflow_provider.runtime.observe.completeness import Completeness
from airflow_provider.runtime.observe.corrections import (
    Correction,
    CorrectionPosition,
    SeenCorrections,
)
from airflow_provider.runtime.observe.revised_periods import RevisedPeriod
from airflow_provider.runtime.observe.samples import METRICS
from tests.kept import FOLDER

ROOT = FOLDER.parents[1]
API = Path(runtime.__file__).parent / "api"
HOUR_MS = 3_600_000
METHODS = ("expect", "initial_state", "on_close", "on_finish", "read", "write")
"""Of a job's context, those that the documentation shows; the others are the driver's."""
ATTRIBUTES = {"interval", "mode", "params", "run_id", "spark"}
Names = dict[str, Any]


def current() -> Names:
    """Return the interface of this checkout, in plain JSON."""
    return {
        "arguments": arguments(),
        "commands": commands(),
        "configuration": sorted(get_provider_info()["config"]["spark_stream"]["options"]),
        "events": {name: sorted(payload) for name, payload in payloads().items()},
        "exit_codes": exit_codes(),
        "job": job(),
        "metrics": {metric.name: metric.unit for metric in METRICS},
        "runtime.api": published(),
    }


def arguments() -> Names:
    """Return the arguments of what a DAG file names, each with its default as Python writes it.

    They are read from the code, without Airflow. A required argument has an empty default.
    """
    scripts = str(ROOT / "scripts")
    sys.path.insert(0, scripts)
    try:
        reader = importlib.import_module("docs_operators")
    finally:
        sys.path.remove(scripts)
    info = get_provider_info()
    modules = [
        name
        for group in ("operators", "sensors")
        for each in info[group]
        for name in each["python-modules"]
    ]
    sources = [
        *reader._public([*modules, reader.IN_ASSETS]),
        reader.source_of("FailureRetryPolicy", reader.POLICIES),
    ]
    found = {
        source.node.name: {each.name: each.default for each in reader.arguments_of(source)}
        for source in sources
    }
    for each in info["task-decorators"]:
        module, _, name = each["class-name"].rpartition(".")
        (function,) = (
            node for node in reader.found_in(reader.path_of(module)) if node.name == name
        )
        found[f"@task.{each['name']}"] = {
            argument.arg: ast.unparse(default) if default is not None else ""
            for argument, default in reader.parameters_of(function)
        }
    return found


def job() -> Names:
    """Return the names for a job's author, with the parameters of functions and of a context's."""
    named = {name: getattr(runtime, name) for name in runtime.__all__}
    functions = {name: each for name, each in named.items() if not inspect.isclass(each)}
    methods = {f"JobContext.{name}": getattr(runtime.JobContext, name) for name in METHODS}
    return {
        **{
            name: sorted({*inspect.signature(each).parameters} - {"self"})
            for name, each in {**functions, **methods}.items()
        },
        "FailureClass": sorted(each.name for each in runtime.FailureClass),
        "JobContext": sorted({*inspect.signature(runtime.JobContext).parameters} & ATTRIBUTES),
    }


def commands() -> Names:
    """Return the options and arguments of each command of ``spark-stream``."""
    return dict(_commands(_parser("spark-stream", "", ()), ""))


def _commands(parser: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, list[str]]]:
    names: set[str] = set()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command, below in action.choices.items():
                yield from _commands(below, f"{name} {command}".strip())
        else:
            names |= {*action.option_strings} or {action.dest}
    yield name or "spark-stream", sorted(names - {"-h", "--help"})


def exit_codes() -> dict[str, int]:
    """Return each exit code, and that of each published error."""
    codes = {name: code for name, code in vars(errors).items() if name.startswith("EXIT_")}
    published_errors = importlib.import_module("airflow_provider.runtime.api.errors")
    for name in published_errors.__all__:
        each = getattr(published_errors, name)
        if inspect.isclass(each) and hasattr(each, "exit_code"):
            codes[name] = each.exit_code
    return codes


def published() -> Names:
    """Return the public names of each module that extensions may import."""
    return {
        ".".join(path.relative_to(API).with_suffix("").parts): sorted(_public_names(path))
        for path in sorted(API.rglob("*.py"))
    }


def _public_names(path: Path) -> Iterator[str]:
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        match node:
            case ast.ClassDef(name) | ast.FunctionDef(name) | ast.AsyncFunctionDef(name):
                names.add(name)
            case ast.Assign(targets=[ast.Name("__all__")], value=value):
                names |= {*ast.literal_eval(value)}
            case ast.Assign(targets=[ast.Name(name)]) | ast.AnnAssign(target=ast.Name(name)):
                names.add(name)
            case _:
                pass
    return (name for name in names if not name.startswith("_"))


def payloads() -> dict[str, Mapping[str, Any]]:
    """Return a payload of each event, made by the code that makes them, of facts that are made up."""
    correction = Correction("1", 1, "rewind", [RevisedRun("r", None, {})])
    complete = Completeness({"q": HOUR_MS}, "r")
    periods = events.CompletePeriods(every_ms=HOUR_MS)
    state = {"boundary_ms": 0, "ended_by": None}
    period, end = (step.payload for step in periods.steps(state, events.SeenPeriods(complete)))
    revised = RevisedPeriod(HOUR_MS, [correction], SimpleNamespace())  # type: ignore[arg-type]
    position = CorrectionPosition("")
    corrections = SeenCorrections([correction], position)
    (corrected,) = events.Corrections().steps(position.to_dict(), corrections)
    return {
        "complete": period,
        "end": end,
        "revised period": periods._revised(state, revised, complete).payload,
        "revised": corrected.payload,
        "savepoint": _savepoint(),
        "final": _of_run(events.FinalCheckpoints(), final=lambda: _FINAL, rewound=lambda: None),
        "failure": _of_run(events.Failures(), attempt_count=lambda: 1, attempts=lambda: [_ATTEMPT]),
    }


_FINAL = SimpleNamespace(
    outcome="FINISHED", attempts=1, rows_read=1, late_rows=0, savepoint=None, queries={}
)
_ATTEMPT = SimpleNamespace(
    attempt=1,
    outcome="FAILED",
    failure={"failure_class": "NON_RECOVERABLE", "reason": "made up"},
)


def _savepoint() -> Mapping[str, Any]:
    record = SimpleNamespace(origin="user", taken="2026-01-01T00:00:00Z", queries={})
    savepoint: Any = SimpleNamespace(folder="s", url="/job/savepoints/s", record=record)
    seen = events.SeenSavepoints([savepoint], frozenset({"s"}))
    (step,) = events.NewSavepoints().steps({"known": []}, seen)
    return step.payload


def _of_run(source: Any, **run: Any) -> Mapping[str, Any]:
    ((_, payload),) = source._items(SimpleNamespace(**run), 0)
    return {"run_id": "r", **payload}


def kept() -> dict[str, Names]:
    """Return the interfaces of all versions, by version."""
    paths = sorted(FOLDER.glob("*/interface.json"))
    return {path.parent.name: json.loads(path.read_text()) for path in paths}


def missing(before: Any, now: Any, at: str = "") -> Iterator[str]:
    """Yield what was there before and is not there now, or is another value."""
    if isinstance(before, dict):
        for key, value in before.items():
            if not isinstance(now, dict) or key not in now:
                yield f"{at}{key}"
            else:
                yield from missing(value, now[key], f"{at}{key}: ")
    elif isinstance(before, list):
        yield from (f"{at}{each}" for each in before if each not in now)
    elif before != now:
        yield f"{at}{before}"


def main() -> None:
    """Write the interface of a version."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("version", help="the release, for example 0.1.0")
    path = FOLDER / parser.parse_args().version / "interface.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(current(), indent=1, sort_keys=True) + "\n")
    print(f"{path.relative_to(ROOT)}: the interface of {airflow_provider.__version__}")


if __name__ == "__main__":
    main()
