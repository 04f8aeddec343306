"""Blocks of code in the pages: each is run, parsed or checked, or says why not.

The first word after a fence is the block's language. What follows is for the tests, and is not
shown: ``no-run: REASON`` for Python that is only compiled, the title of a schema for a document.
``title="NAME"`` is shown, as the name of the file that the reader makes of it.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "tests" / "README.md"])
LANGUAGES = {"bash", "ini", "json", "python", "sql", "text", "yaml"}
NO_RUN = "no-run:"

# Who can run a block of Python: what it imports or names decides.
OF_AIRFLOW = re.compile(
    r"airflow\.sdk|airflow_provider\.(?!extensions|runtime)|\bSpark\w+(Operator|Sensor)\("
)
OF_SPARK = re.compile(r"\bpyspark\b|\bctx\b|\bspark\b")
COMMAND = re.compile(r"^(?:\$ )?(?:airflow )?spark-stream +[a-z]")
OPTIONAL = re.compile(r"\[[^\]]*\]")


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        location: its page and line, to be found by.
        language: the first word after the fence; empty without one.
        mark: the words after it.
        text: its lines.
    """

    location: str
    language: str
    mark: str
    text: str

    @property
    def why_not_run(self) -> str:
        """The reason for which nobody runs this Python; empty if somebody does."""
        return self.mark.removeprefix(NO_RUN).strip() if self.mark.startswith(NO_RUN) else ""

    @property
    def title(self) -> str:
        """The name of the file that the reader makes of this block; empty if none."""
        found = re.match(r'title="([^"]+)"', self.mark)
        return found[1] if found else ""

    @property
    def runner(self) -> str:
        """Who runs this Python: ``airflow``, ``spark``, ``python``, ``story``, or ``nobody``.

        A story is a page whose programs and commands are run in their order.
        """
        if self.why_not_run:
            return "nobody"
        if OF_AIRFLOW.search(self.text):
            return "airflow"
        if self.title and not self.functions():
            return "story"
        return "spark" if OF_SPARK.search(self.text) else "python"

    def functions(self) -> list[str]:
        """Return the names of the functions at the top of this Python that are jobs."""
        return [
            node.name
            for node in ast.parse(self.text).body
            if isinstance(node, ast.FunctionDef) and [arg.arg for arg in node.args.args] == ["ctx"]
        ]


@functools.cache
def blocks() -> tuple[Block, ...]:
    """Return the blocks of all pages."""
    return tuple(block for page in PAGES for block in _blocks_of(page))


def python_of(runner: str) -> list[Block]:
    """Return the blocks of Python that somebody runs, see :attr:`Block.runner`."""
    return [each for each in blocks() if each.language == "python" and each.runner == runner]


def _blocks_of(page: Path) -> Iterator[Block]:
    fence, info, begin = "", "", 0
    lines: list[str] = []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        found = re.match(r"(`{3,}|~{3,})(.*)", line)
        if found and not fence:
            fence, info, begin, lines = found[1], found[2].strip(), number, []
        elif fence and line.strip() == fence:
            language, _, mark = info.partition(" ")
            location = f"{page.relative_to(ROOT)}:{begin}"
            yield Block(location, language, mark.strip(), "\n".join(lines) + "\n")
            fence = ""
        else:
            lines.append(line)


# --- commands ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Command:
    """A ``spark-stream`` command.

    Attributes:
        words: its arguments, as its parser gets them.
        is_whole: whether it is all there; "…" at the end stands for the rest.
    """

    words: list[str]
    is_whole: bool

    @classmethod
    def of(cls, text: str) -> Command:
        """Return the command of a line, without what the shell makes of its result."""
        text = re.sub(r"^(?:\$ )?(?:airflow )?spark-stream ", "", text)
        words = []
        for word in shlex.split(OPTIONAL.sub("", text), comments=True):
            if word in {"|", "&&", "||", ";", "&"} or word.startswith((">", "2>")):
                break
            words.append(word)
        is_whole = words[-1:] != ["…"]
        return cls(words if is_whole else words[:-1], is_whole)


def commands_in(text: str) -> Iterator[Command]:
    """Yield each ``spark-stream`` command of a block.

    In a list of commands, what follows a command after three spaces says what it does; a word
    in brackets may be left out.
    """
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        if COMMAND.match(line):
            yield Command.of(re.split(r" {3,}", line)[0])


def commands_in_prose(page: Path) -> Iterator[Command]:
    """Yield the commands that a page's sentences and tables quote."""
    in_block = False
    for line in page.read_text().splitlines():
        if line.startswith(("```", "~~~")):
            in_block = not in_block
        for quoted in () if in_block else re.findall(r"`(spark-stream [a-z][^`]*)`", line):
            yield Command.of(quoted.replace("\\|", "|"))
