"""Words of the project: module docstrings name the thing, and prose uses the field's words."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("airflow_provider", "dags", "scripts")
MODULES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
# Decisions stay as they were written.
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
GLOSSARY = ROOT / "docs" / "glossary.md"

# A docstring that begins with one of them hides the noun that a reader searches for.
QUESTIONS = re.compile(
    r"what|which|where|how|who|whether|when|why|is|are|may|has|does|from|that", re.IGNORECASE
)
# A reader whose first language is another one loses the thread of a longer sentence.
MOST_WORDS = 44
# What lists more than it tells: each of its sentences is a list.
LISTS = {"ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"}
TEXTS = {".css", ".js", ".py", ".txt"}
TERMS = (
    "batch sizing",
    "attempt",
    "bootstrap",
    "claim mode",
    "CDS archive",
    "committable",
    "drain",
    "driver pool",
    "epoch",
    "failover region",
    "fencing token",
    "final checkpoint",
    "handover",
    "idle source",
    "job directory",
    "launcher",
    "lease",
    "pre-commit",
    "replay",
    "restart strategy",
    "revert",
    "rewind",
    "run",
    "savepoint",
    "slice",
    "suspend",
    "warm driver",
    "watermark marker",
)

# Words of this project's first versions, and the field's, which readers know.
REPLACED = {
    r"spark streams?\b": "Structured Streaming job",
    r"[\[`]spark_streaming\]|AIRFLOW__SPARK_STREAMING__": "[spark_stream]",
    r"\bways? out\b": "fix",
    r"\bin force\b": "active",
    r"\bprobation\b": "trial period",
    r"\bkept rows?\b": "quarantined row",
    r"\baccount of (?:its |the )?rows\b": "row counts",
    r"\bmembers? of (?:a|the) (?:document|record)s?\b": "field",
    r"\brights? (?:to (?:read|write|see|list)|of the driver)\b": "permission",
    r"\bstart(?:s|ed|ing)? over\b": "reset",
    r"\badaptive batch(?:es)?\b|\bpac(?:ed|ing)\b": "batch sizing",
    r"\bclass archives?\b|\barchives? of classes\b": "CDS archive",
    r"\bweakness(?:es)?\b": "vulnerability",
    r"\bspark-stream (?:pool|rejected)\b|--pool\b|--probation\b": "the new command",
}


def location_of(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def module_docstring(source: str) -> str:
    """Return the docstring with which the source begins; reads no further."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.STRING:
            return str(ast.literal_eval(token.string))
        if token.type not in {tokenize.COMMENT, tokenize.NL, tokenize.ENCODING}:
            break
    return ""


def first_word(docstring: str) -> str:
    return re.split(r"[^\w'-]+", docstring.lstrip("`*: "), maxsplit=1)[0].lower()


def sentences_of(page: str) -> Iterator[str]:
    """Yield the sentences of a page: of its paragraphs, points and cells, not of its code."""
    text = re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"\]\([^)]*\)", "]", text)  # addresses
    text = re.sub(r"^\s*(?:[-*]|\d+\.|#+)\s", "\n", text, flags=re.MULTILINE)
    cells = re.sub(r"^\|.*\|$", lambda row: row[0].replace("|", "\n\n"), text, flags=re.MULTILINE)
    for part in re.split(r"\n\s*\n", cells):
        yield from re.split(r"(?<=[.!?:])\s+(?=[A-Z`\[\"*])", " ".join(part.split()))


def rows_of(page: str) -> list[list[str]]:
    """Return the cells of the rows of a page's table, without its head."""
    lines = [line for line in page.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_a_module_says_first_what_it_is():
    """A module's docstring begins with a noun or an imperative, tests included."""
    offenders = [
        f"{location_of(path, 1)}: {docstring.splitlines()[0]}"
        for path in (*MODULES, *TESTS)
        if (docstring := module_docstring(path.read_text(encoding="utf-8")))
        and QUESTIONS.fullmatch(first_word(docstring))
    ]

    assert [] == offenders, "\n".join(offenders)


def test_a_module_of_the_package_has_a_docstring():
    """One that says something: a sentence, not a word."""
    offenders = [
        location_of(path, 1)
        for path in MODULES
        if len(module_docstring(path.read_text(encoding="utf-8")).split()) < 3
    ]

    assert [] == offenders, "\n".join(offenders)


def test_no_sentence_of_a_page_is_too_long():
    """Two sentences are read sooner than one of fifty words."""
    offenders = [
        f"{path.relative_to(ROOT)}: {len(sentence.split())} words: {sentence}"
        for path in PAGES
        if path.name not in LISTS
        for sentence in sentences_of(path.read_text(encoding="utf-8"))
        if len(sentence.split()) > MOST_WORDS
    ]

    assert [] == offenders, "\n".join(offenders)


def test_the_glossary_has_every_term_with_its_counterpart():
    """Each row links a page of Spark's, Flink's or Airflow's, or says that the word is ours."""
    rows = rows_of(GLOSSARY.read_text(encoding="utf-8"))
    counterpart = re.compile(
        r"\]\(https://[\w.]*(?:spark|flink|airflow|cwiki|nightlies)\.?[\w.]*apache\.org/"
    )

    assert [] == sorted(set(TERMS) - {row[0] for row in rows})
    assert sorted(row[0] for row in rows) == [row[0] for row in rows]
    assert [] == [
        row[0]
        for row in rows
        if "ours" not in row[2].split(";")[0] and not counterpart.search(row[2])
    ]


def test_a_question_would_be_found():
    """Also in capitals or behind markup; a noun that begins alike is none."""
    assert "what" == first_word("``What`` it is.")
    assert "is" == first_word("Is it alive?")
    assert "historical" == first_word("Historical data.")


@pytest.mark.slow
def test_sentences_are_found():
    """In paragraphs, points and the cells of tables; lines of one are joined, code is left out."""
    page = "# Head\n\nOne\nsentence. `Two`.\n\n- point\n\n| a. B | c |\n|---|\n```text\nno\n```\n"

    found = [each for each in sentences_of(page) if each.strip("-")]
    assert ["Head", "One sentence.", "`Two`.", "point", "a.", "B", "c"] == found


def test_a_replaced_word_does_not_return():
    """In pages, and in all texts of the package: names, messages, docstrings and scripts of the page."""
    files = [path for path in (ROOT / "airflow_provider").rglob("*") if path.suffix in TEXTS]
    offenders = [
        f"{location_of(path, number)}: {found[0]!r}: use {instead!r}"
        for path in (*PAGES, *files)
        if "vendor" not in path.parts
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for word, instead in REPLACED.items()
        if (found := re.search(word, line, re.IGNORECASE))
    ]

    assert [] == offenders, "\n".join(offenders)
