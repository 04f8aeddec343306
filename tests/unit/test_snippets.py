"""Code in the pages: everything that needs neither Spark nor Airflow to be tried."""

from __future__ import annotations

import argparse
import ast
import collections
import configparser
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from airflow_provider.runtime.cli.command_parser import split_arguments
from airflow_provider.runtime.cli.main import _parser
from tests.snippets import (
    LANGUAGES,
    NO_RUN,
    PAGES,
    ROOT,
    Block,
    Command,
    blocks,
    commands_in,
    commands_in_prose,
    python_of,
)

yaml = pytest.importorskip("yaml")

PARSER = _parser("spark-stream", "", ())
OF_AIRFLOW = "check-connection"  # only `airflow spark-stream` has it
COMMANDS = next(
    action.choices for action in PARSER._actions if isinstance(action, argparse._SubParsersAction)
)


def of(language: str) -> list[Any]:
    """Return the blocks of a language as parameters that are named by their locations."""
    return [pytest.param(each, id=each.location) for each in blocks() if each.language == language]


def test_each_block_says_its_language_and_why_it_is_not_run() -> None:
    """A block has one of a few languages; only Python is not run, and then for a reason."""
    assert [] == [each.location for each in blocks() if each.language not in LANGUAGES]
    marked = [each for each in blocks() if each.mark.startswith(NO_RUN)]
    assert [] == [each.location for each in marked if not each.why_not_run]
    assert {"python"} >= {each.language for each in marked}


@pytest.mark.parametrize("block", of("python"))
def test_python_is_compiled(block: Block) -> None:
    """Python is Python, also where nobody can run it."""
    compile(block.text, block.location, "exec")


@pytest.mark.parametrize(
    "block", [pytest.param(each, id=each.location) for each in python_of("python")]
)
def test_python_that_needs_nothing_is_executed(block: Block, tmp_path: Path) -> None:
    """A piece that needs neither Spark nor Airflow imports what it uses, and runs."""
    file = tmp_path / "snippet.py"
    file.write_text(block.text)
    spec = importlib.util.spec_from_file_location("snippet", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["snippet"] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules["snippet"]


@pytest.mark.parametrize("block", of("json"))
def test_json_is_json_and_a_document_fits_its_schema(block: Block) -> None:
    """What is shown of a document is as its schema says; "…" stands for a part of a text."""
    value = json.loads(block.text.replace("…", "x"))
    if block.mark and not block.title:
        schema = json.loads((ROOT / "docs" / "schemas" / f"{block.mark}.json").read_text())
        jsonschema.validate(value, schema)


@pytest.mark.parametrize("block", [*of("yaml"), *of("ini")])
def test_a_configuration_is_one(block: Block) -> None:
    """YAML and INI are read by their own readers."""
    if block.language == "yaml":
        assert yaml.safe_load(block.text)
    else:
        parser = configparser.ConfigParser(strict=False, interpolation=None)
        parser.read_string(block.text)
        assert parser.sections()


WITH_COMMANDS = [each for each in blocks() if list(commands_in(each.text))]


@pytest.mark.parametrize("block", [pytest.param(each, id=each.location) for each in WITH_COMMANDS])
def test_a_command_is_understood(block: Block) -> None:
    """Our own parser takes each command of a block, with all its options."""
    for command in commands_in(block.text):
        if command.is_whole and command.words[0] != OF_AIRFLOW:
            PARSER.parse_args(split_arguments(command.words)[0])
        else:
            check_known(command, block.location)


@pytest.mark.parametrize(
    "page", [pytest.param(each, id=str(each.relative_to(ROOT))) for each in PAGES]
)
def test_prose_names_no_unknown_command_or_option(page: Path) -> None:
    """
    What a sentence quotes of a command exists: the command, its own commands, and its options.
    """
    if page.name == "CHANGELOG.md":
        return  # says what was
    for command in commands_in_prose(page):
        check_known(command, page.name)


def check_known(command: Command, location: str) -> None:
    """Look at the command and the options that somebody names, for there may be more."""
    name, *others = command.words
    if name == OF_AIRFLOW:
        return
    assert name in COMMANDS, f"{location} names spark-stream {name}"
    known = options_of(COMMANDS[name])
    options = [word.partition("=")[0] for word in others if word.startswith("--")]
    assert [] == [each for each in options if each not in known], f"{location}: {command.words}"


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    """Return the options of a command and of the commands below it."""
    found = set()
    for action in parser._actions:
        found |= set(action.option_strings)
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                found |= options_of(below)
    return found


def test_what_is_done_with_the_blocks_is_counted(record_property: Any) -> None:
    """
    Every block of Python has somebody who runs it, or a reason; at most a quarter have a reason.
    """
    python = [each for each in blocks() if each.language == "python"]
    runners = collections.Counter(each.runner for each in python)
    languages = collections.Counter(each.language for each in blocks())
    commands = sum(len(list(commands_in(each.text))) for each in blocks())
    for name, count in {**runners, **languages, "commands": commands}.items():
        record_property(name, count)
    print(
        f"executed: {len(python) - runners['nobody']} of {len(python)} blocks of Python {dict(runners)}; "
        f"parsed: {commands} commands; blocks: {dict(languages)}"
    )

    assert runners["nobody"] <= len(python) // 4
    assert all(ast.parse(each.text).body for each in python)
