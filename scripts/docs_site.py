"""Build the documentation as a site: ``.work/site`` from ``docs/`` and the code.

``mkdocs.yml`` says what the site looks like and where each page lies in it. Pages are written for
the repository, so they link files outside of ``docs/``, too; this gives those files pages in the
site, and points the links at them. Zensical then builds the site, and fails for a page, a picture
or a heading that a link names and that is not there.
"""

from __future__ import annotations

import argparse
import ast
import os
import posixpath
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import docs_operators
import docs_reference

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "mkdocs.yml"
SOURCE = ROOT / ".work" / "docs"  # docs_dir of mkdocs.yml
SITE = ROOT / ".work" / "site"  # site_dir of mkdocs.yml

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# A link or a picture of Markdown; its target is not one of another site.
LINK = re.compile(r"(?<=\]\()(?![a-z]+:)([^)#\s]+)(#[^)\s]*)?(?=\))")
# What a fence says of its block to the tests alone (tests/snippets.py), after the language.
FENCE_INFO = re.compile(r"(?<=^```)(\w+)(?: (?!title=).*| (title=\"[^\"]*\").*)$", re.MULTILINE)
CODE = re.compile(r"`[^`]+`")
FENCE = re.compile(r"^(`{3,}|~{3,})")
# Files outside of docs/ that have a page, in the order of the site.
OUTSIDE = ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "README.md")
# What the site has a reference of, in place of the code.
REFERENCE = {
    "airflow_provider/runtime/cli": "reference/commands.md",
    "airflow_provider/runtime/observe/samples.py": "reference/metrics.md",
    "airflow_provider/runtime/errors/__init__.py": "reference/errors.md",
    "airflow_provider/runtime/failures/rules.py": "reference/errors.md",
    "airflow_provider/runtime/queries/context.py": "reference/job.md",
}
OLDEST_PYTHON = (3, 11)  # of Zensical; its marker in pyproject.toml says the same


class PageError(Exception):
    """One line that says which page or link has to change, and how."""


def main() -> int:
    """Build the site, or serve it and follow changes of its pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", action="store_true", help="serve it at 127.0.0.1:8000")
    serve_it = parser.parse_args().serve
    if sys.version_info[:2] < OLDEST_PYTHON:
        print("docs: not built, for Zensical needs Python {}.{} or newer".format(*OLDEST_PYTHON))
        return 0
    try:
        lay_out()
        return serve() if serve_it else build()
    except PageError as error:
        print(f"docs: {error}", file=sys.stderr)
        return 1


def build() -> int:
    """Build the site afresh; a warning is an error."""
    shutil.rmtree(SITE, ignore_errors=True)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    ended = subprocess.run(command, cwd=ROOT, check=False)
    if ended.returncode == 0:
        print(f"docs: {len(list(SITE.rglob('*.html')))} pages in {SITE.relative_to(ROOT)}")
    return ended.returncode


def serve() -> int:
    """Serve the site until the process is interrupted, and lay its pages out when one changes."""
    command = [sys.executable, "-m", "zensical", "serve", "--dev-addr", "127.0.0.1:8000"]
    ended = threading.Event()
    threading.Thread(target=_follow, args=(ended,), daemon=True).start()
    try:
        return subprocess.run(command, cwd=ROOT, check=False).returncode
    except KeyboardInterrupt:
        return 0
    finally:
        ended.set()


def _follow(ended: threading.Event) -> None:
    seen = _ages()
    while not ended.wait(1):
        if (now := _ages()) != seen:
            seen = now
            try:
                lay_out()
            except PageError as error:
                print(f"docs: {error}", file=sys.stderr)


def _ages() -> dict[Path, int]:
    pages = [*(ROOT / "docs").rglob("*"), *(ROOT / name for name in OUTSIDE), CONFIG]
    return {path: path.stat().st_mtime_ns for path in pages if path.is_file()}


# --- Pages ------------------------------------------------------------------------------------


def lay_out() -> None:
    """Write all pages of the site to ``.work/docs``, and nothing that has not changed."""
    files = site_files()
    pages = {name for name in files if name.endswith(".md")}
    if files["operators.md"] != relinked("docs/operators.md", docs_operators.page()):
        raise PageError("docs/operators.md differs from the code: run scripts/docs_operators.py")
    if missing := sorted(set(named_in(navigation())) ^ pages):
        raise PageError(f"{missing[0]} is a page that the nav of mkdocs.yml lacks, or the reverse")
    check_links(files)
    for path in SOURCE.rglob("*"):
        if path.is_file() and path.relative_to(SOURCE).as_posix() not in files:
            path.unlink()
    for name, content in files.items():
        target = SOURCE / name
        if not target.exists() or target.read_bytes() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)


def check_links(files: Mapping[str, bytes]) -> None:
    """Raise PageError for a link to a file that is not there; Zensical looks at pages alone."""
    for name in (name for name in files if name.endswith(".md")):
        for line, quoted in quoted_lines(files[name].decode()):
            for link in () if quoted else LINK.finditer(line):
                if (
                    posixpath.normpath(posixpath.join(posixpath.dirname(name), link[1]))
                    not in files
                ):
                    raise PageError(f"{name} links {link[1]}, which is not there")


def site_files() -> dict[str, bytes]:
    """Return what the site is built of, by its path in ``.work/docs``."""
    files = {}
    for path in sorted(path for path in (ROOT / "docs").rglob("*") if path.is_file()):
        if path.parent.name == "schemas":
            continue  # the reference has them
        name = path.relative_to(ROOT).as_posix()
        page = path.suffix == ".md"
        files[location_of(name)] = relinked(name, path.read_text()) if page else path.read_bytes()
    for name in OUTSIDE:
        files[location_of(name)] = relinked(name, (ROOT / name).read_text())
    for path in sorted((ROOT / "dags").glob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        files[location_of(name)] = program_page(path).encode()
    return files | {name: rendered(text) for name, text in docs_reference.pages().items()}


def location_of(name: str) -> str:
    """Return where the site has a file of the repository; raise PageError if it has none."""
    if name in REFERENCE:
        return REFERENCE[name]
    if name.startswith("docs/"):
        return name.removeprefix("docs/")
    if name in OUTSIDE:
        return f"repository/{name.lower()}"
    if name.startswith("dags/") and name.endswith(".py"):
        return f"repository/{name.removesuffix('.py')}.md"
    raise PageError(f"{name} has no page in the site")


def relinked(name: str, text: str) -> bytes:
    """Return a page's text with links that fit its location in the site."""
    here = posixpath.dirname(location_of(name))

    def moved(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(name), link[1]))
        if target.startswith("docs/schemas/"):
            anchor = Path(target).stem.replace(".", "").lower()
            return posixpath.relpath("reference/documents.md", here or ".") + f"#{anchor}"
        has_pages = (ROOT / target / "README.md").exists()
        try:
            location = location_of(f"{target}/README.md" if has_pages else target)
        except PageError as error:
            raise PageError(f"{name} links {link[1]}: {error}; quote its name instead") from None
        return posixpath.relpath(location, here or ".") + (link[2] or "")

    return rendered(
        "".join(
            FENCE_INFO.sub(_shown_info, line) if quoted else LINK.sub(moved, line)
            for line, quoted in quoted_lines(text)
        )
    )


def _shown_info(info: re.Match[str]) -> str:
    return f"{info[1]} {info[2]}" if info[2] else info[1]


def rendered(text: str) -> bytes:
    """Return a page's text as Python-Markdown reads it, which takes a bar in code as it is."""
    return "".join(
        CODE.sub(lambda code: code[0].replace("\\|", "|"), line)
        if line.startswith("|") and not quoted
        else line
        for line, quoted in quoted_lines(text)
    ).encode()


def quoted_lines(text: str) -> Iterable[tuple[str, bool]]:
    """Yield the lines of a page with whether each belongs to a fenced block."""
    fence = ""
    for line in text.splitlines(keepends=True):
        found = FENCE.match(line)
        if found and (not fence or line.strip() == fence):
            yield line, True
            fence = "" if fence else found[1]
        else:
            yield line, bool(fence)


def program_page(path: Path) -> str:
    """Return a page of an example: its docstring and its code."""
    code = path.read_text()
    about = ast.get_docstring(ast.parse(code)) or ""
    return f"# {path.name}\n\n{about}\n\n```python\n{code}```\n"


# --- Navigation -------------------------------------------------------------------------------


def navigation() -> list[Any]:
    """Return the nav of ``mkdocs.yml``."""
    import yaml

    found: list[Any] = yaml.safe_load(CONFIG.read_text())["nav"]
    return found


def named_in(nav: Any) -> Iterable[str]:
    """Yield the pages that a nav names."""
    if isinstance(nav, str):
        yield nav
        return
    for each in nav.values() if isinstance(nav, dict) else nav:
        yield from named_in(each)


if __name__ == "__main__":
    os.environ.setdefault("NO_COLOR", "1")
    sys.exit(main())
