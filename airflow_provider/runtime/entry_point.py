"""Entry points: ``FILE.py:FUNC`` or ``pkg.mod:FUNC``, resolved to the job's function.

A program, ``FILE.py`` or ``FILE.sql``, is a job as a whole and has no function
(:mod:`~.extensions.scripts`).
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.errors.explanation import definition_of, line_of
from airflow_provider.runtime.errors.fixes import Form
from airflow_provider.runtime.spark.versions import explain_missing

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


_LAZY: Final = {
    "is an async function": inspect.iscoroutinefunction,
    "is an async generator": inspect.isasyncgenfunction,
    "has a yield": inspect.isgeneratorfunction,
}
_SHOWN: Final = 10  # functions of a job's file
_MISSING: Final = "correct the name, or install the package for the Python that runs this"


def split_entry(entry: str) -> tuple[str, str]:
    """Return the module or file and the function's name; raise ConfigError for another text."""
    location, separator, function = entry.rpartition(":")
    if not separator or not location or not function.isidentifier():
        raise ConfigError(f"entry {entry!r}: write FILE.py:FUNCTION or package.module:FUNCTION")
    return location, function


PROGRAMS: Final = (".py", ".sql")


def is_program(entry: str) -> bool:
    """Whether an entry is a script or a file of SQL, and not a function."""
    return entry.endswith(PROGRAMS)


def form_of(entry: str) -> Form:
    """Return the form of a job."""
    forms = {".py": Form.SCRIPT, ".sql": Form.SQL}
    return forms[PurePosixPath(entry).suffix] if is_program(entry) else Form.FUNCTION


def check_entry(entry: str) -> None:
    """Raise ConfigError for a text that is neither a function's entry point nor a program."""
    if not is_program(entry):
        split_entry(entry)


def file_of(entry: str) -> str | None:
    """Return the file of a job, a path or an address; None for one in a module."""
    location = entry if is_program(entry) else split_entry(entry)[0]
    return location if location.endswith(PROGRAMS) else None


def shipped_entry(entry: str) -> str:
    """Return the entry point of a job whose file travels with the driver, for that driver."""
    location = file_of(entry)
    if location is None:
        return entry
    name = PurePosixPath(location)
    return name.name if is_program(entry) else f"{name.stem}:{split_entry(entry)[1]}"


def program_file(entry: str) -> Path:
    """Return the file of a program, also beside Python's modules; raise ConfigError if missing."""
    path = Path(entry)
    beside = [Path(location or ".") / entry for location in sys.path] if path.name == entry else []
    for location in (path, *beside):
        if location.is_file():
            return location.resolve()
    raise _no_file(entry, entry)


def check_entry_file(entry: str) -> None:
    """Refuse an entry whose file is missing; a module is looked for only where it will run.

    Raises:
        ConfigError: the text is not an entry point, or names a file that does not exist.
    """
    if is_program(entry):
        program_file(entry)
        return
    location, _ = split_entry(entry)
    if location.endswith(".py") and not Path(location).is_file():
        raise _no_file(entry, location)


def _no_file(entry: str, location: str) -> ConfigError:
    folder, name = Path(location).parent, Path(location).name
    names = [path.name for path in folder.glob(f"*{Path(location).suffix}")]
    meant = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {folder / meant[0]}?" if meant else "correct the path"
    return ConfigError(f"entry {entry!r}: there is no file {location}; {hint}")


def load_entry(entry: str) -> Callable[[Any], None]:
    """Import the job's function.

    Raises:
        ConfigError: no such file, module or function, or importing it failed.
    """
    check_entry_file(entry)
    location, name = split_entry(entry)
    try:
        module = (
            _load_file(location) if location.endswith(".py") else importlib.import_module(location)
        )
    except (Exception, SystemExit) as error:
        why = f"{type(error).__name__}: {error}{explain_missing(error)}"
        msg = f"entry {entry!r}: importing {location} failed: {why}"
        refused = ConfigError(msg)
        refused.at(line_of(error))
        if isinstance(error, ModuleNotFoundError):
            refused.explanation = dataclasses.replace(refused.parts, remedy=_MISSING)
        raise refused from error
    function = getattr(module, name, None)
    if not callable(function):
        found = _functions_of(module)
        names = f"it has {', '.join(found[:_SHOWN]) or 'none'}"
        meant = difflib.get_close_matches(name, found, n=1)
        hint = f"did you mean {meant[0]!r}?" if meant else names
        raise ConfigError(f"entry {entry!r}: {location} has no function {name!r}; {hint}")
    _check_signature(entry, function)
    return function  # type: ignore[no-any-return]  # a function of the user's, typed by them


def _functions_of(module: ModuleType) -> list[str]:
    """Return the names of the functions that a module itself defines."""
    own = (n for n, v in vars(module).items() if callable(v) and not n.startswith("_"))
    return sorted(n for n in own if getattr(vars(module)[n], "__module__", "") == module.__name__)


def _check_signature(entry: str, function: Callable[..., Any]) -> None:
    """Refuse a function that cannot be called with the job's context alone.

    Also an asynchronous function or a generator, whose call alone does nothing.
    """
    name = getattr(function, "__name__", "job")
    lazy = next((what for what, is_one in _LAZY.items() if is_one(function)), None)
    if lazy is not None:
        msg = f"entry {entry!r}: {name} {lazy}, so that a call does nothing; write def {name}(ctx):"
        refused = ConfigError(msg)
        refused.at(definition_of(function))
        raise refused
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        msg = (
            f"entry {entry!r}: the job's function is called with one argument, ctx ({error}); "
            f"write def {name}(ctx): and read the rest from ctx.params"
        )
        refused = ConfigError(msg)
        refused.at(definition_of(function))
        raise refused from None
    except ValueError:  # made of C, which tells no signature
        return


def load_before_spark(entry: str) -> None:
    """Import the job's function before Spark is started, so that a mistake costs no JVM.

    A file may need Spark when it is imported, as ``F.col`` and ``F.udf("long")`` do outside of a
    function; then it is only imported when Spark is there.

    Raises:
        ConfigError: see :func:`load_entry`; or importing it starts Spark, without the settings of
            the run.
    """
    before = _spark_context()
    try:
        load_entry(entry)
    except ConfigError as error:
        if before is not None or not _is_raised_by_pyspark(error.__cause__):
            raise
    started = _spark_context()
    if started is not None and before is None:
        started.stop()
        location, _ = split_entry(entry)
        raise ConfigError(
            f"entry {entry!r}: importing {location} starts Spark, which would not get the run's "
            "settings; take ctx.spark in the function, and make no session outside of it"
        )


def _is_raised_by_pyspark(error: BaseException | None) -> bool:
    frames = [*traceback.walk_tb(error.__traceback__ if error is not None else None)]
    module = str(frames[-1][0].f_globals.get("__name__")) if frames else ""
    return module.partition(".")[0] == "pyspark"


def _spark_context() -> Any | None:
    """Return the SparkContext of this process; None without PySpark."""
    pyspark = sys.modules.get("pyspark")
    context = getattr(pyspark, "SparkContext", None)
    return getattr(context, "_active_spark_context", None)


def is_entry_file(module: ModuleType) -> bool:
    """Whether the module is a job's file, which only this process has imported."""
    return module.__name__ == _name_of(Path(module.__file__ or ""))


def _load_file(location: str) -> ModuleType:
    path = Path(location).resolve()
    # The folder goes on the path as it does for ``python FILE``: jobs import their neighbours.
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    name = _name_of(path)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _name_of(path: Path) -> str:
    """Return a module name of the file's own: two jobs in a process may both be ``job.py``."""
    return f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
