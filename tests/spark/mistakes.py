"""Mistakes that people make first, and the exact text of what they are shown, from ``mistakes.txt``.

A block has the mistake; ``$``, or ``$$`` if Spark has to look, with variables of the environment,
the entry and further arguments; with ``>`` the lines of ``job.py``; and the screen. ``{here}`` is the
line of a mistake: one of ``mistaken_jobs.py`` that ends with ``# here``. What goes on in the next line
of the screen is one line here; ``{root}`` is the folder of the test.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import shlex
from pathlib import Path

from airflow_provider.runtime.errors.explanation import HEADING

JOBS = Path(__file__).with_name("mistaken_jobs.py")
_DETAILS = re.compile(r"(?<=  details: )\S+")


@dataclasses.dataclass(frozen=True)
class Mistake:
    """What somebody does, and what is said of it.

    Attributes:
        what: the mistake, in a few words.
        entry: the job's function; a name alone is one of ``mistaken_jobs.py``.
        exit_code: of the command.
        text: the screen that ends what it prints on stderr.
        options: further arguments; one that begins with ``@`` is the job directory.
        file: what is in ``job.py``.
        environment: variables.
        needs_spark: whether Spark has to look.
    """

    what: str
    entry: str
    exit_code: int
    text: str
    options: tuple[str, ...] = ()
    file: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    needs_spark: bool = False

    def arguments(self, root: Path) -> list[str]:
        """Return the command's arguments, and make what it needs in the folder *root*."""
        (root / "input").mkdir()
        (root / "input" / "a.csv").write_text(
            "2026-01-01 00:00:00,a,1\n2026-01-01 00:01:00,b,x\n", encoding="utf-8"
        )
        (root / "spark" / "jars").mkdir(parents=True)
        (root / "spark" / "jars" / "spark-core_2.12-2.4.8.jar").touch()
        (root / "job.py").write_text(self.file, encoding="utf-8")
        is_whole = ":" in self.entry or "/" in self.entry
        entry = self.entry.replace("{jobs}", str(JOBS)) if is_whole else f"{JOBS}:{self.entry}"
        locations = [option[1:] for option in self.options if option.startswith("@")]
        options = [option for option in self.options if not option.startswith("@")]
        filled = [
            *("run", locations[0] if locations else "{root}/job", "--entry", entry),
            *("--param", "input={root}/input", "--param", "output={root}/output", *options),
        ]
        return [text.replace("{root}", str(root)) for text in filled]

    def variables(self, root: Path) -> dict[str, str]:
        """Return the variables of the environment."""
        return {name: value.replace("{root}", str(root)) for name, value in self.environment}

    def said(self, stderr: str, root: Path) -> str:
        """Return the screen that a command has printed, as :attr:`text` has it."""
        lines = stderr.replace(str(root), "{root}").replace(str(JOBS), "{jobs}")
        lines = re.sub(r"\n    (?! )", " ", lines)
        shown = [line for line in lines.splitlines() if not re.match(r"\d{4}-\d\d-\d\d ", line)]
        text = re.sub(rf"{JOBS.name}:(\d+)", _marked, "\n".join(shown).strip())
        return _DETAILS.sub("{details}", text[text.find(HEADING) :])


def _marked(found: re.Match[str]) -> str:
    """Return a line of the jobs' file as the table has it, if it is one of a mistake."""
    line = JOBS.read_text(encoding="utf-8").splitlines()[int(found[1]) - 1]
    return f"{JOBS.name}:{{here}}" if line.endswith("# here") else found[0]


def table() -> list[str]:
    """Return the lines of the table of the reference: mistakes that Spark finds, with a fix."""
    head = ["| what is said | what to do | exit code |", "|---|---|---|"]
    shown = [each for each in MISTAKES if each.needs_spark and "  what to do: " in each.text]
    return [*head, *dict.fromkeys(map(_row, shown))]  # two may be told in the same words


def _row(mistake: Mistake) -> str:
    lines = mistake.text.strip().splitlines()
    what = lines[0].removeprefix("spark-stream: error: ")
    remedy = [line for line in lines if line.startswith("  what to do: ")]
    said = what.replace("{jobs}", "jobs.py").replace("{root}", "/data").replace("|", "\\|")
    do = remedy[0].removeprefix("  what to do: ") if remedy else ""
    return f"| {said} | {do} | {mistake.exit_code} |"


def _read(block: str) -> Mistake:
    what, command, *lines = block.splitlines()
    mark, *words = shlex.split(command)
    given = list(itertools.takewhile(lambda word: re.match(r"[A-Z_]+=", word), words))
    entry, *options = words[len(given) :]
    file = [line[2:] for line in lines if line.startswith(">")]
    text = "\n".join(line for line in lines if not line.startswith(">"))
    exit_code = re.search(r"^  exit code (\d)", text, re.MULTILINE)
    return Mistake(
        what,
        entry,
        int(exit_code[1]) if exit_code else 2,
        text,
        options=tuple(options),
        file="".join(f"{line}\n" for line in file),
        environment=tuple((name, value) for name, _, value in (w.partition("=") for w in given)),
        needs_spark=mark == "$$",
    )


TABLE = Path(__file__).with_name("mistakes.txt").read_text(encoding="utf-8")
MISTAKES = tuple(_read(block) for block in TABLE.strip().split("\n\n"))
