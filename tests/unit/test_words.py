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
    from collections.abc import Iterable, Iterator

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
# Each has a plain word in the field: again, recorded, restarted, the caller, is.
UNUSED = re.compile(
    r"\b(anew|told|whoever|(?:put|puts|putting) (?:it )?down|(?:come|comes|came) to|"
    r"(?:stand|stands|stood) at|is had|had been had)\b",
    re.IGNORECASE,
)
# A reader whose first language is another one loses the thread of a longer sentence.
MOST_WORDS = 44
# What lists more than it tells: each of its sentences is a list.
LISTS = {"ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"}
UNUSED_IN_NAMES = re.compile(r"(?:^|_)(?:anew|told)(?:_|$)")
# A driver renews its heartbeat, or has a current one.
UNUSED_IN_CODE = re.compile(r"\b(beats?|beaten|beating)\b", re.IGNORECASE)
CODE_IN_PROSE = re.compile(r"``[^`]*``|`[^`]*`|^\s*\w+:")  # the last: an argument's name
TERMS = (
    "adaptive batches",
    "attempt",
    "bootstrap",
    "claim mode",
    "class archive",
    "committable",
    "drain",
    "epoch",
    "failover region",
    "fencing token",
    "final checkpoint",
    "handover",
    "idle source",
    "job directory",
    "launcher",
    "lease",
    "pool",
    "pre-commit",
    "replay",
    "restart strategy",
    "revert",
    "rewind",
    "run",
    "savepoint",
    "slice",
    "standby",
    "suspend",
    "watermark marker",
)


def place_of(path: Path, line: int) -> str:
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


def prose_of(source: str) -> Iterator[tuple[int, str]]:
    """Yield the comments, docstrings and texts of a module, line by line, with their numbers.

    Of one without a listed word, also in its code, nothing: to parse it would take a while.
    """
    if not (UNUSED.search(source) or UNUSED_IN_CODE.search(source)):
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for number, line in enumerate(node.value.splitlines()):
                yield node.lineno + number, line


def unused_words(
    lines: Iterable[tuple[int, str]], *patterns: re.Pattern[str]
) -> Iterator[tuple[int, str]]:
    """Yield what is not used, and where; names of the code in backticks are left out."""
    for number, line in lines:
        prose = CODE_IN_PROSE.sub("", line)
        for pattern in patterns:
            yield from ((number, found.group()) for found in pattern.finditer(prose))


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
    """
    A module's docstring begins with a noun or an imperative, tests included.
    """
    offenders = [
        f"{place_of(path, 1)}: {docstring.splitlines()[0]}"
        for path in (*MODULES, *TESTS)
        if (docstring := module_docstring(path.read_text(encoding="utf-8")))
        and QUESTIONS.fullmatch(first_word(docstring))
    ]

    assert [] == offenders, "\n".join(offenders)


def test_a_module_of_the_package_has_a_docstring():
    """
    One that says something: a sentence, not a word.
    """
    offenders = [
        place_of(path, 1)
        for path in MODULES
        if len(module_docstring(path.read_text(encoding="utf-8")).split()) < 3
    ]

    assert [] == offenders, "\n".join(offenders)


def test_sources_and_pages_use_the_words_of_the_field():
    """
    Comments, docstrings, messages, pages and the docstrings of test modules have no listed word.
    """
    found: dict[Path, Iterator[tuple[int, str]]] = {}
    for path in MODULES:
        lines = prose_of(path.read_text(encoding="utf-8"))
        found[path] = unused_words(lines, UNUSED, UNUSED_IN_CODE)
    for path in TESTS:
        docstring = module_docstring(path.read_text(encoding="utf-8"))
        found[path] = unused_words(enumerate(docstring.splitlines(), 1), UNUSED, UNUSED_IN_CODE)
    for path in PAGES:
        page = path.read_text(encoding="utf-8")
        found[path] = unused_words(enumerate(page.splitlines(), 1), UNUSED)
    offenders = [f"{place_of(path, n)}: {word}" for path, all_ in found.items() for n, word in all_]

    assert [] == offenders, "\n".join(offenders)


def test_no_name_of_the_package_is_a_listed_word():
    """
    A variable is called after what it holds: a summary, a record, what was reported.
    """
    offenders = [
        f"{place_of(path, token.start[0])}: {token.string}"
        for path in MODULES
        if re.search(r"told|anew", source := path.read_text(encoding="utf-8"))
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.NAME and UNUSED_IN_NAMES.search(token.string)
    ]

    assert [] == offenders, "\n".join(offenders)


def test_no_sentence_of_a_page_is_too_long():
    """
    Two sentences are read sooner than one of fifty words.
    """
    offenders = [
        f"{path.relative_to(ROOT)}: {len(sentence.split())} words: {sentence}"
        for path in PAGES
        if path.name not in LISTS
        for sentence in sentences_of(path.read_text(encoding="utf-8"))
        if len(sentence.split()) > MOST_WORDS
    ]

    assert [] == offenders, "\n".join(offenders)


def test_the_glossary_has_every_term_with_its_counterpart():
    """
    Each row links a page of Spark's, Flink's or Airflow's, or says that the word is ours.
    """
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


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('"""It begins anew."""\n', [(1, "anew")]),
        ('told = 1  # whoever\n"""\nputs down\n"""\n', [(1, "whoever"), (3, "puts down")]),
        ('x = f"it comes to {told}"\n', [(1, "comes to")]),
        ('"""The ``beat`` of a `told`; a heartbeat, it tells."""\n', []),
        ('"""It beats.\n\nArgs:\n    anew: whether to.\n"""\n', [(1, "beats")]),
    ],
)
def test_a_listed_word_would_be_found(source, found):
    """
    In comments, docstrings and texts, and not in names, quoted or not.
    """
    assert found == sorted(unused_words(prose_of(source), UNUSED, UNUSED_IN_CODE))


def test_a_question_would_be_found():
    """
    Also in capitals or behind markup; a noun that begins alike is none.
    """
    assert "what" == first_word("``What`` it is.")
    assert "is" == first_word("Is it alive?")
    assert "historical" == first_word("Historical data.")


def test_sentences_are_found():
    """
    In paragraphs, points and the cells of tables; lines of one are joined, code is left out.
    """
    page = "# Head\n\nOne\nsentence. `Two`.\n\n- point\n\n| a. B | c |\n|---|\n```text\nno\n```\n"

    found = [each for each in sentences_of(page) if each.strip("-")]
    assert ["Head", "One sentence.", "`Two`.", "point", "a.", "B", "c"] == found
