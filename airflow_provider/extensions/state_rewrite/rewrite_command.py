"""``spark-stream state rewrite``: a new savepoint from an existing one, with changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.cli.command_parser import SAVEPOINT, add_conf, add_json
from airflow_provider.runtime.cli.output import print_json
from airflow_provider.runtime.errors import EXIT_OK
from airflow_provider.runtime.jobdir.run_spec import parse_pairs

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from airflow_provider.extensions.state_rewrite.rewrite import Rewritten


def add_actions(actions: Any, add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the action to those of ``spark-stream state``."""
    text = "write a changed copy of a savepoint"
    rewrite = add(actions, "rewrite", _rewrite, text)
    rewrite.add_argument("url", **SAVEPOINT)
    text = "the new savepoint's own folder"
    rewrite.add_argument("--to", required=True, metavar="URL", help=text)
    text = "the query of the operators and sources"
    rewrite.add_argument("--query", metavar="NAME", help=text)
    text = (
        "the operator whose keys are deleted, by name, number or kind; default: all that have the "
        "columns"
    )
    rewrite.add_argument("--operator", metavar="O", help=text)
    text = "a predicate over the columns of the key, or a file that lists keys (csv, json, parquet)"
    rewrite.add_argument("--delete-keys", metavar="SQL|FILE", help=text)

    def add_repeated(flag: str, metavar: str, text: str) -> None:
        rewrite.add_argument(flag, action="append", default=[], metavar=metavar, help=text)

    text = "remove the state of an operator that the job no longer has, and renumber the later ones"
    add_repeated("--drop-operator", "O", text)
    text = "the operator gets the state that it has in another savepoint"
    add_repeated("--replace-operator", "O=SAVEPOINT", text)
    add_repeated("--rename-query", "OLD=NEW", "the query gets a new name")
    add_repeated("--reset-source", "NAME", "the source begins from its beginning")
    add_repeated("--set-offset", "NAME=JSON", "the source continues at this offset")
    text = "repartition the state to N partitions; default: unchanged"
    rewrite.add_argument("--state-partitions", type=int, metavar="N", help=text)
    rewrite.add_argument("--dry-run", action="store_true", help="only print the plan")
    add_conf(rewrite)
    add_json(rewrite)


def _rewrite(arguments: argparse.Namespace) -> int:
    from airflow_provider.extensions.state_rewrite.rewrite import rewrite_savepoint
    from airflow_provider.extensions.state_rewrite.rewrite_plan import Changes

    changes = Changes(
        query=arguments.query,
        operator=arguments.operator,
        delete_keys=arguments.delete_keys,
        drop=tuple(arguments.drop_operator),
        rename=parse_pairs(arguments.rename_query, "--rename-query"),
        reset=tuple(arguments.reset_source),
        offsets=parse_pairs(arguments.set_offset, "--set-offset"),
        partitions=arguments.state_partitions,
        replace=parse_pairs(arguments.replace_operator, "--replace-operator"),
    )
    conf = parse_pairs(arguments.conf, "--conf")
    rewritten = rewrite_savepoint(
        arguments.url, arguments.to, changes, dry_run=arguments.dry_run, conf=conf
    )
    if arguments.json:
        print_json(rewritten.to_dict())
    else:
        _print(rewritten)
    return EXIT_OK


def _print(rewritten: Rewritten) -> None:
    for query in rewritten.plan.queries:
        print(f"query {query.source}:")
        for step in query.steps():
            print(f"  {step}")
        for each in rewritten.deleted.get(query.name, ()):
            where = f"operator {each.operator} (keys of {', '.join(each.columns)})"
            if each.fits:
                print(f"  {where}: {each.keys:,} keys, {each.rows:,} rows deleted")
            else:
                print(f"  {where}: does not have these columns; all of it stays")
        if not any(query.steps()):
            print("  as it is")
    made = rewritten.savepoint
    print(f"{made.url}: made" if made is not None else "nothing was made (--dry-run)")
