"""Questions of a shell: where a statement ends, what completes a word, where questions are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider.extensions.state_tools.repl_input import Questions, completions, history_file


@pytest.mark.parametrize(
    ("lines", "asked"),
    [
        (["SELECT 1;"], ["SELECT 1"]),
        (["SELECT 1 ; "], ["SELECT 1"]),
        (["SELECT 1", ""], ["SELECT 1"]),
        (["SELECT", "  1", ";"], ["SELECT\n  1"]),
        (["SELECT ';' AS a;", "SELECT 2;"], ["SELECT ';' AS a", "SELECT 2"]),
        ([".tables", "  .schema a  "], [".tables", ".schema a"]),
        (["SELECT 1", ".5;"], ["SELECT 1\n.5"]),
        (["", "  ", ";", ";;"], [";"]),
    ],
)
def test_a_statement_ends_with_a_semicolon_or_an_empty_line(lines: list[str], asked: list[str]):
    """
    A command is a line of its own, unless a statement has begun.
    """
    questions = Questions()

    assert asked == [found for line in lines if (found := questions.take(line)) is not None]
    assert not questions.is_open


def test_a_statement_that_the_input_cuts_short_is_asked_and_one_that_is_dropped_is_not():
    """
    The last statement of a script needs no semicolon; Ctrl-C drops what was begun.
    """
    questions = Questions()

    assert questions.take("SELECT 1") is None
    assert questions.is_open
    assert "SELECT 1" == questions.end()
    assert questions.take("SELECT 2") is None
    questions.forget()
    assert questions.end() is None


def test_words_are_completed_whatever_their_case():
    """
    Each word is offered once.
    """
    words = ["daily.keyed_state", "Daily.sources", "hourly.sources", "daily.keyed_state"]

    assert ["Daily.sources", "daily.keyed_state"] == completions("DAI", words)


@pytest.mark.parametrize(
    ("environ", "file"),
    [
        ({"XDG_STATE_HOME": "/s", "HOME": "/h"}, Path("/s/spark-stream/questions")),
        ({"HOME": "/h"}, Path("/h/.local/state/spark-stream/questions")),
        ({}, None),
    ],
)
def test_questions_are_kept_where_a_users_state_belongs(environ: dict[str, str], file: Path | None):
    """
    A user without a home has no memory of earlier shells.
    """
    assert file == history_file(environ)
