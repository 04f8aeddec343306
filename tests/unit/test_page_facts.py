"""Facts of the pages that drift by themselves: counts, figures, repeated rows, first steps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_provider.runtime.cli.main import _parser, main

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md")])
COUNTED = re.compile(
    r"\b(?:two|three|four|five|six|seven|eight|nine|ten|\d+) "
    r"(?:operators|example DAGs|examples|files run)\b",
    re.IGNORECASE,
)
# Read before there is an `airflow spark-stream`, which Airflow 3.1 does not have.
FIRST = ("README.md", "docs/get-started.md", "docs/index.md", "docs/tutorial.md")


def blocks_of(page: Path) -> list[str]:
    """Return the paragraphs, points of lists and tables of a page, without its code."""
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.split(r"\n\s*\n|\n(?=- )", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_counts_what_grows(page: Path) -> None:
    """The number of operators and examples changes, and no reader needs it."""
    assert [] == [found[0] for each in blocks_of(page) for found in COUNTED.finditer(each)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_table_has_a_row_twice(page: Path) -> None:
    """A merge leaves such rows."""
    for block in blocks_of(page):
        rows = [line for line in block.splitlines() if line.startswith("|")][2:]
        assert sorted({*rows}) == sorted(rows)


@pytest.mark.parametrize("name", FIRST)
def test_the_first_steps_work_with_every_airflow(name: str) -> None:
    """They use ``spark-stream``, which does not depend on Airflow's version."""
    assert "airflow spark-stream" not in (ROOT / name).read_text("utf-8")


def test_the_overview_of_commands_has_each() -> None:
    """The first table of the page links every command."""
    (table,) = [each for each in blocks_of(DOCS / "command-line.md") if "[`run`](#run)" in each]
    parser = _parser("spark-stream", "", ())
    (commands,) = [action.choices for action in parser._actions if action.choices]

    assert sorted(commands) == sorted({*re.findall(r"\[`([\w-]+)`\]\(#", table)})


def test_the_maturity_table_has_every_store_and_launcher() -> None:
    """What was tested against a stand-in is experimental on the first page."""
    (table,) = [each for each in blocks_of(DOCS / "index.md") if "| status |" in each]

    for component in ("S3", "Google Cloud Storage", "Azure", "HDFS", "NFS", "Kafka"):
        assert f"{component}" in table
    for component in ("YARN", "Kubernetes", "EMR Serverless", "Livy", "KubernetesExecutor"):
        assert f"{component}" in table
    assert "moto; never Amazon's own | experimental" in table


def test_the_help_of_package_shows_a_command_that_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its example is executed in another folder."""
    with pytest.raises(SystemExit):
        main(["package", "--help"])
    (example,) = re.findall(r"spark-stream package (/data/\S+)", capsys.readouterr().out)

    assert 0 == main(["package", str(tmp_path / Path(example).name)])


def test_the_changelog_is_short_and_whole() -> None:
    """A first release is told in 250 words; later changes come as files."""
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")

    assert len(text.split()) <= 250
    assert (ROOT / "changelog.d" / "README.md").is_file()
