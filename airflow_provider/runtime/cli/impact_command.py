"""``spark-stream impact``: what a rewind of a run would do, before it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.base.clock import millis_to_iso, parse_duration, utc_text
from airflow_provider.runtime.cli.command_parser import JOB_DIR, add_json
from airflow_provider.runtime.cli.output import print_json
from airflow_provider.runtime.errors import EXIT_OK, ConfigError
from airflow_provider.runtime.jobdir.layout import known_job
from airflow_provider.runtime.savepoints.impact import impact_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from airflow_provider.runtime.jobdir.event_times import EventTimes
    from airflow_provider.runtime.savepoints.impact import Impact, RunImpact

_EVERY: Final = "1 hour"
_MOST: Final = 10_000  # ends of periods in an answer; a range says the same


def add_commands(commands: Any, add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command; see :class:`~.api.commands.CommandModule`."""
    text = "show what a rewind or replay of a run would remove; changes nothing"
    impact = add(commands, "impact", _impact, text)
    impact.add_argument("job_dir", **JOB_DIR)  # itself, as for a rewind
    impact.add_argument("run_id", metavar="RUN_ID", help="the run that would be undone")
    text = "the length of the periods of event time that are counted (default: %(default)s)"
    impact.add_argument("--every", metavar="DURATION", default=_EVERY, help=text)
    add_json(impact)


def _impact(arguments: argparse.Namespace) -> int:
    every_ms = round(parse_duration(arguments.every, name="--every") * 1000)
    if every_ms <= 0:
        raise ConfigError(f"--every {arguments.every!r}: give a time, such as '1 hour'")
    directory = known_job(arguments.job_dir)
    found = impact_of(directory, arguments.run_id)
    if arguments.json:
        print_json(_as_json(directory.url, found, every_ms))
        return EXIT_OK
    for line in _lines(found, every_ms):
        print(f"{directory.url}: {line}")
    return EXIT_OK


def _as_json(url: str, impact: Impact, every_ms: int) -> dict[str, Any]:
    return {
        "version": 1,
        "job_dir": url,
        "run_id": impact.run_id,
        "refused": impact.refusal,
        "goes_back_to": impact.goes_back_to,
        "later_runs": impact.later,
        "epochs": sum(run.epochs for run in impact.runs),
        "rows": sum(run.rows for run in impact.runs),
        "sinks": sorted({sink for run in impact.runs for sink in run.sinks}),
        "event_times": _range(impact.event_times),
        "periods": [
            {"start": millis_to_iso(end - every_ms), "boundary": millis_to_iso(end)}
            for end in _ends(impact, every_ms)[:_MOST]
        ],
        "runs": [_run_as_json(run) for run in impact.runs],
        "savepoints": [{**vars(each), "read_by": [*each.read_by]} for each in impact.savepoints],
    }


def _run_as_json(run: RunImpact) -> dict[str, Any]:
    interval = run.interval
    return {
        "run_id": run.run_id,
        "interval": {"start": interval[0], "end": interval[1]} if interval else None,
        "epochs": run.epochs,
        "rows": run.rows,
        "folded_epochs": run.folded,
        "sinks": [*run.sinks],
        "event_times": _range(run.event_times),
    }


def _range(times: EventTimes | None) -> dict[str, str] | None:
    if times is None:
        return None
    return {"least": millis_to_iso(times.least_ms), "greatest": millis_to_iso(times.greatest_ms)}


def _ends(impact: Impact, every_ms: int) -> list[int]:
    """Return the ends of the periods in which the runs have rows, each once."""
    ends: set[int] = set()
    for run in impact.runs:
        if run.event_times is not None:
            first, last = (each // every_ms * every_ms + every_ms for each in run.event_times)
            ends.update(range(first, min(last, first + _MOST * every_ms) + 1, every_ms))
    return sorted(ends)


def _lines(impact: Impact, every_ms: int) -> list[str]:
    lines = [_line_of(run) for run in impact.runs]
    ends = _ends(impact, every_ms)
    if ends:
        since, until = (
            utc_text(millis_to_iso(ends[0] - every_ms)),
            utc_text(millis_to_iso(ends[-1])),
        )
        lines.append(f"periods of event time: {len(ends):,}, from {since} to {until}")
    elif any(run.rows for run in impact.runs):
        lines.append("periods of event time: not known")
    for each in impact.savepoints:
        pinned = f", pinned by {', '.join(each.read_by)}" if each.read_by else ""
        lines.append(f"savepoint {each.name}: no longer fits the output{pinned}")
    if impact.refusal is not None:
        lines.append(f"a rewind is refused: {impact.refusal}")
    else:
        lines.append(f"the job goes back to {impact.goes_back_to or 'its beginning'}")
    return lines


def _line_of(run: RunImpact) -> str:
    where = f" in {', '.join(run.sinks)}" if run.sinks else ""
    folded = f", {run.folded:,} of them folded" if run.folded else ""
    return f"run {run.run_id}: {run.epochs:,} epoch(s){folded}, {run.rows:,} row(s){where}"
