"""Options of a run, each declared once.

A field of :class:`RunOptions` is a flag, a keyword argument of the operators, a field of stored
documents, and a row of the docs; ``scripts/document_schemas.py`` writes what is generated.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from collections.abc import Mapping  # noqa: TC003 - documents are read by these annotations
from typing import TYPE_CHECKING, Any, Final, TypeVar

from airflow_provider.runtime.base.clock import parse_duration
from airflow_provider.runtime.base.typed_json import NonNegative, Seconds  # noqa: TC001 - as above
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.errors.fixes import of_caller
from airflow_provider.runtime.failures.classify import FailureOverrides
from airflow_provider.runtime.failures.restart_strategy import (
    FAILOVERS,
    Failover,
    RestartStrategy,
    parse_restart,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


COUNT: Final = "count"
QUARANTINE: Final = "quarantine"
FAIL: Final = "fail"
WAIT: Final = "wait"
LATE: Final = (COUNT, QUARANTINE, FAIL, WAIT)
_SHARE: Final = re.compile(r"(\d+(?:\.\d+)?) ?%")
_WHOLE: Final = 100.0


@dataclasses.dataclass(frozen=True)
class RowLimit:
    """How many rows may come late, or break a rule.

    Attributes:
        rows: a number; None for a share.
        share: per cent of the rows read up to then.
    """

    rows: int | None = 0
    share: float | None = None

    def is_crossed(self, rows: int, read: int | None) -> bool:
        """Whether *rows* are too many; a share of an unknown number allows none."""
        if self.rows is not None:
            return rows > self.rows
        return rows > 0 and (read is None or _WHOLE * rows > (self.share or 0.0) * read)

    def __str__(self) -> str:
        return f"{self.rows:,} rows" if self.rows is not None else f"{self.share:g} %"


def parse_row_limit(text: str, what: str = "late limit") -> RowLimit:
    """Read a limit: a number of rows, or a share such as ``0.1%``."""
    if text.isascii() and text.isdigit():
        return RowLimit(rows=int(text))
    found = _SHARE.fullmatch(text) if text.isascii() else None
    share = float(found[1]) if found else math.nan
    if not 0 <= share <= _WHOLE:
        raise ConfigError(f"{what} {text!r}: a number of rows such as 100, or a share such as 0.1%")
    return RowLimit(rows=None, share=share)


Own = TypeVar("Own", bound="RunOptions")


MODES: Final = ("automatic", "streaming", "batch")
OUTPUTS: Final = ("discard", "keep")
UNTIL: Final = ("end", "available", "stopped")
AT_END: Final = ("drain", "suspend")
RETRY: Final = "retry"
MISSING_INPUT: Final = (RETRY, "fail")
DEFAULT_TARGET_S: Final = 10.0  # of a batch; most of it is not Spark's fixed time, half a second


# --- Declaring an option ------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
    """How users give a field of a request, and what it means.

    Attributes:
        flag: the argument of the command line, such as ``--until``, or a positional's name.
        help: one line, without words of the command line or of Python.
        argument: the keyword argument of operators; None when operators decide it themselves.
        takes: the annotation of the keyword argument, if it differs from the field's.
        parse: the field's value from the given value, and the name it is given under.
        fixed: the part of the value that all attempts of a run share; None if attempts may differ.
        is_once: whether later runs do not inherit it.
        how: further arguments of ``ArgumentParser.add_argument``.
    """

    flag: str
    help: str
    argument: str | None = None
    takes: str | None = None
    parse: Callable[[Any, str], Any] | None = None
    fixed: Callable[[Any], Any] | None = None
    is_once: bool = False
    how: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        return of_caller(self.flag, self.argument or self.flag)

    def read(self, given: Any, name: str) -> Any:
        check_word(name, given, self.how.get("choices", (given,)))
        return self.parse(given, name) if self.parse is not None else given


def option(flag: str, text: str, *, default: Any = dataclasses.MISSING, **more: Any) -> Any:
    """Return a field that people give; see :class:`Option`, and ``add_argument`` for the rest."""
    known = {field.name for field in dataclasses.fields(Option)}
    own = {name: value for name, value in more.items() if name in known}
    how = {name: value for name, value in more.items() if name not in known}
    metadata = {"option": Option(flag=flag, help=text, how=how, **own)}
    if isinstance(default, type):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def options_of(kind: Any) -> dict[str, Option]:
    """Return the options among the fields of a request, by the field's name."""
    fields = dataclasses.fields(kind)
    return {each.name: each.metadata["option"] for each in fields if "option" in each.metadata}


def read_seconds(value: str | float, name: str) -> float:
    """Read a duration such as ``10 minutes``."""
    return parse_duration(value, name=name)


def read_names(values: Any, name: str) -> tuple[str, ...]:
    """Read one name or several, each once, in the order of the alphabet."""
    given = (values,) if isinstance(values, str) else tuple(values)
    if wrong := [each for each in given if not isinstance(each, str) or not each.strip()]:
        raise ConfigError(f"{name}: {wrong[0]!r} is no name")
    return tuple(sorted({each.strip() for each in given}))


SECONDS: Final[dict[str, Any]] = {"parse": read_seconds, "metavar": "DURATION"}
"""How options of a duration are given."""


def parse_target_batch_time(value: str | float, name: str = "target_batch_time") -> float:
    """Read a target time: a duration, or ``off``, which is 0."""
    return 0.0 if value == "off" else parse_duration(value, name=name)


def whole(value: Any) -> Any:
    """Return *value*: all of it is fixed."""
    return value


def _same_watermark(late: str) -> str:
    # What becomes of late rows may change at any time, the watermark may not.
    return late if late == WAIT else f"{COUNT}, {QUARANTINE} or {FAIL}"


# --- The options --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a run is driven; None where the job, or the operator, decides."""

    mode: str = option(
        "--mode",
        "automatic: batch if the job is bounded and both give the same result, else streaming",
        default="automatic",
        argument="mode",
        choices=MODES,
        fixed=whole,
    )
    until: str | None = option(
        "--until",
        "when the run ends: at the end of its sources, at what is available now, or when it is "
        "stopped; default: end if all sources are bounded, else stopped",
        default=None,
        argument="until",
        choices=UNTIL,
        fixed=whole,
    )
    at_end: str | None = option(
        "--at-end",
        "flush all state (drain), or keep it for the next run (suspend); default: drain with until "
        "end, else suspend",
        default=None,
        argument="at_end",
        choices=AT_END,
        fixed=whole,
    )
    trigger_s: Seconds | None = option(
        "--trigger",
        "time between batches, with until stopped",
        default=None,
        argument="trigger",
        takes="str | float | None",
        **SECONDS,
    )
    target_batch_s: Seconds | None = option(
        "--target-batch-time",
        "fit the size of batches to this time; default: 10 seconds with until stopped, where the "
        "job limits batches",
        default=None,
        argument="target_batch_time",
        takes="str | float | None",
        parse=parse_target_batch_time,
        metavar="DURATION|off",
    )
    allow_non_restored_state: bool = option(
        "--allow-non-restored-state",
        "queries that do not fit the savepoint or the job directory are reset; what they have "
        "written stays",
        default=False,
        argument="allow_non_restored_state",
        action="store_true",
        is_once=True,
    )
    allow_mixed_results: bool = option(
        "--allow-mixed-results",
        "continue with state of other windows, keys, filters or functions; results are mixed",
        default=False,
        argument="allow_mixed_results",
        action="store_true",
        is_once=True,
    )
    allow_known_bugs: tuple[str, ...] = option(
        "--allow-known-bug",
        "run a query although this Spark gives wrong rows for its plan by the bug of that name",
        default=(),
        argument="allow_known_bugs",
        takes="Sequence[str] | None",
        parse=read_names,
        action="append",
        metavar="BUG",
    )
    replayable_runs: NonNegative = option(
        "--replayable-runs",
        "begin with a savepoint, so that the run can be replayed; keep those of the N newest runs, "
        "and with 0 all",
        default=0,
        argument="replayable_runs",
        takes="int | None",
        type=int,
        metavar="N",
    )
    restart: str | None = option(
        "--restart",
        "how a failed query is restarted, such as 'fixed-delay(attempts=3, delay=10 s)', or none; "
        "default: exponential-delay with until stopped, else none",
        default=None,
        argument="restart",
        takes="str | Mapping[str, Any] | None",
        parse=lambda value, name: parse_restart(value).to_text(),
        metavar="STRATEGY",
    )
    failover: Failover = option(
        "--failover",
        "which queries restart with a failed one: its region, or full for all that have not ended",
        default=Failover.REGION,
        argument="failover",
        takes="str",
        parse=lambda value, name: Failover(value),
        choices=FAILOVERS,
    )
    fails_as: Mapping[str, str] = option(
        "--fails-as",
        "the class of failures of an exception type, such as jobs.BadRow=NON_RECOVERABLE",
        default=dict,
        argument="fails_as",
        takes="Mapping[str, str] | None",
        parse=lambda values, name: FailureOverrides.parse(values).to_dict(),
        action="append",
        metavar="TYPE=CLASS",
    )
    late: str = option(
        "--late",
        "late rows: count them; quarantine them in each query's sink for that; fail above a limit; "
        "or wait: the watermark waits for the end of the data, so no row is late",
        default=COUNT,
        argument="late",
        choices=LATE,
        fixed=_same_watermark,
    )
    late_limit: str | None = option(
        "--late-limit",
        "with late fail or quarantine: the most late rows of each query, a number or a share such "
        "as 0.1%; default: 0 with fail, any number with quarantine",
        default=None,
        argument="late_limit",
        takes="str | int | None",
        parse=lambda value, name: str(value),
        metavar="ROWS|SHARE",
    )
    missing_input: str = option(
        "--missing-input",
        "absent input: retry, so that another attempt looks again, or fail permanently",
        default=RETRY,
        argument="missing_input",
        choices=MISSING_INPUT,
    )

    @classmethod
    def arguments(cls) -> dict[str, str]:
        """Return the field of each keyword argument, without options that a subclass decides."""
        own = {field.name for field in dataclasses.fields(RunOptions)}
        found = options_of(cls).items()
        return {str(each.argument): name for name, each in found if each.argument and name in own}

    @classmethod
    def parameters(cls) -> list[inspect.Parameter]:
        fields = {field.name: field for field in dataclasses.fields(cls)}
        return [
            inspect.Parameter(
                argument,
                inspect.Parameter.KEYWORD_ONLY,
                default=_default_argument(fields[name]),
                annotation=fields[name].metadata["option"].takes or fields[name].type,
            )
            for argument, name in cls.arguments().items()
        ]

    @classmethod
    def read_arguments(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that keyword arguments give; None stands for an option's default."""
        arguments, options = cls.arguments(), options_of(cls)
        if unknown := sorted(set(given) - set(arguments)):
            raise TypeError(
                f"there is no option {unknown[0]!r} here; there are {', '.join(arguments)}"
            )
        values = {
            arguments[name]: options[arguments[name]].read(value, name)
            for name, value in given.items()
            if value is not None
        }
        RunOptions(**values).check()
        return values

    @classmethod
    def of(cls: type[Own], owner: object) -> Own:
        return cls(**{each.name: getattr(owner, each.name) for each in dataclasses.fields(cls)})

    def settled(self, *, mode: str, until: str, at_end: str) -> RunOptions:
        """Return the options with what they leave to the job, as the job has decided it."""
        trigger_s = self.trigger_s if until == "stopped" else None
        return dataclasses.replace(
            self, mode=mode.lower(), until=until, at_end=at_end, trigger_s=trigger_s
        )

    def inherited(self) -> dict[str, Any]:
        """Return the fields that another run like this one has as well."""
        found = options_of(RunOptions).items()
        return {name: getattr(self, name) for name, each in found if not each.is_once}

    @property
    def restart_strategy(self) -> RestartStrategy | None:
        return parse_restart(self.restart) if self.restart else None

    @property
    def failure_overrides(self) -> FailureOverrides:
        return FailureOverrides.parse(self.fails_as)

    @property
    def accepted_late_rows(self) -> RowLimit | None:
        """How many late rows each query may drop; None for any number."""
        if self.late == COUNT or (self.late == QUARANTINE and self.late_limit is None):
            return None
        return RowLimit() if self.late == WAIT else parse_row_limit(self.late_limit or "0")

    def batch_sizing_s(self, until: str) -> float:
        """Return how long the batches of a run should take, 0 for no target."""
        if self.target_batch_s is None:
            return DEFAULT_TARGET_S if until == "stopped" else 0.0
        return self.target_batch_s

    def check(self) -> None:
        for name, each in options_of(RunOptions).items():
            if "choices" in each.how and getattr(self, name) is not None:
                check_word(str(each.argument), getattr(self, name), each.how["choices"])
        if self.mode == "batch" and not self._may_reach_the_end:
            raise ConfigError(
                f"mode 'batch' reads everything and ends, so until={self.until!r}, "
                f"at_end={self.at_end!r} cannot be used; leave them out, or use mode 'streaming'"
            )
        if self.trigger_s is not None and self.until in {"end", "available"}:
            raise ConfigError(
                f"trigger is the time between batches of a run with until='stopped'; with "
                f"until={self.until!r} batches follow each other at once, so leave it out"
            )
        if self.replayable_runs < 0:
            raise ConfigError(
                f"replayable_runs {self.replayable_runs}: a number of runs, 0 for none"
            )
        self._check_late()
        _ = self.restart_strategy, self.failure_overrides  # refuse what cannot be read

    def _check_late(self) -> None:
        if self.late_limit is not None:
            parse_row_limit(self.late_limit)
            if self.late not in {FAIL, QUARANTINE}:
                raise ConfigError(
                    f"late limit {self.late_limit!r} is of late={FAIL!r} or {QUARANTINE!r}, and "
                    f"late is {self.late!r}; change one"
                )
        if self.late == WAIT and not self._may_reach_the_end:
            raise ConfigError(
                f"late={WAIT!r} lets the watermark wait for the end of the data, which a run with "
                f"until={self.until!r}, at_end={self.at_end!r} does not reach; leave them out, or "
                f"use late={COUNT!r}"
            )

    @property
    def _may_reach_the_end(self) -> bool:
        return self.until in {"end", None} and self.at_end in {"drain", None}


def _default_argument(field: dataclasses.Field[Any]) -> Any:
    if field.default is dataclasses.MISSING or field.metadata["option"].takes == "int | None":
        return None
    return getattr(field.default, "value", field.default)


# --- Refusing values ----------------------------------------------------------------------------


def check_word(name: str, value: Any, allowed: Sequence[Any]) -> None:
    """Refuse a word that is not one of those allowed."""
    if value not in allowed:
        raise ConfigError(f"{name} {value!r}: use one of {', '.join(map(repr, allowed))}")
