"""The site of the documentation: what it is laid out of, what is refused, and how it looks."""

from __future__ import annotations

import contextlib
import functools
import http.server
import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def builder() -> Iterator[Any]:
    """Import the script that builds the site."""
    pytest.importorskip("yaml")
    sys.path.insert(0, str(ROOT / "scripts"))
    yield importlib.import_module("docs_site")
    sys.path.remove(str(ROOT / "scripts"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[a](../ARCHITECTURE.md#the-rooms)", "[a](repository/architecture.md#the-rooms)"),
        ("[a](../dags/flights_stream.py)", "[a](repository/dags/flights_stream.md)"),
        ("[a](decisions)", "[a](decisions/README.md)"),
        ("[a](schemas/run_spec.RunSpec.json)", "[a](reference/documents.md#run_specrunspec)"),
        ("[a](../airflow_provider/runtime/cli)", "[a](reference/commands.md)"),
        ("[a](leases.md) [b](https://example.com)", "[a](leases.md) [b](https://example.com)"),
        ("| `a \\| b` |\n", "| `a | b` |\n"),
        ('```python title="a.py" x\n```\n', '```python title="a.py"\n```\n'),
        ("```python no-run: why\n[a](nowhere.py)\n```\n", "```python\n[a](nowhere.py)\n```\n"),
    ],
)
def test_a_link_is_moved_to_where_the_site_has_the_page(
    builder: Any, text: str, expected: str
) -> None:
    """Links into the repository lead to pages of the site; those of other sites, and code, stay."""
    assert expected.encode() == builder.relinked("docs/page.md", text)


def test_a_link_to_a_file_without_a_page_is_an_error(builder: Any) -> None:
    """A link to a file that the site does not have names the page, the link and the fix."""
    with pytest.raises(builder.PageError, match=r"docs/page\.md links \.\./Makefile: .* quote"):
        builder.relinked("docs/page.md", "[a](../Makefile)")


def test_a_link_to_a_picture_that_is_not_there_is_an_error(builder: Any) -> None:
    """Pictures and other files that pages link are there, too."""
    there = {"index.md": b"[a](a/page.md)", "a/page.md": b"![b](../b.png)", "b.png": b""}
    builder.check_links(there)

    with pytest.raises(builder.PageError, match=r"index\.md links b\.jpg, which is not there"):
        builder.check_links({**there, "index.md": b"![b](b.jpg)"})


@pytest.mark.slow
def test_every_page_is_in_the_nav(builder: Any) -> None:
    """All pages, those of the reference included, are in the nav of mkdocs.yml, each once."""
    named = list(builder.named_in(builder.navigation()))

    assert sorted(name for name in builder.site_files() if name.endswith(".md")) == sorted(named)


@pytest.mark.slow
def test_the_reference_has_all_commands_errors_documents_and_metrics(builder: Any) -> None:
    """
    Whatever the code has of them is in the site, with its arguments, and nobody has written it.
    """
    pages = builder.site_files().items()
    files = {name: content.decode() for name, content in pages if name.endswith(".md")}
    from airflow_provider.runtime import errors
    from airflow_provider.runtime.observe.samples import METRICS

    job = files["reference/job.md"]
    for heading in ("### JobContext.read\n", "### JobContext.on_finish\n", "## delta\n"):
        assert heading in job
    assert [] == [each for each in ("let_end", "`holding`", "source_names") if each in job]
    assert "## savepoint take\n" in files["reference/commands.md"]
    assert "`--target-batch-time DURATION|off`" in files["reference/commands.md"]
    for metric in METRICS:
        assert f"`{metric.name}`" in files["reference/metrics.md"]
    kinds = [each for each in vars(errors).values() if isinstance(each, type)]
    for kind in (each for each in kinds if issubclass(each, errors.SparkStreamError)):
        assert f"`{kind.__name__}`" in files["reference/errors.md"]
    for path in (ROOT / "docs" / "schemas").glob("*.json"):
        assert f"## {path.stem}\n" in files["reference/documents.md"]


@pytest.mark.slow
def test_the_page_of_arguments_is_that_of_the_code(
    builder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The site is not built of a page that differs from signatures and docstrings."""
    operators = importlib.import_module("docs_operators")
    assert operators.page() == (ROOT / "docs" / "operators.md").read_text()

    monkeypatch.setattr(operators, "page", lambda: "# Arguments of another version\n")
    with pytest.raises(builder.PageError, match=r"run scripts/docs_operators\.py"):
        builder.lay_out()


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("zensical") is None, reason="Zensical needs Python 3.11"
)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# Home\n\n[a](#home)\n", ""),
        ("# Home\n\n[a](nowhere.md)\n", "page does not exist"),
        ("# Home\n\n[a](#nowhere)\n", "anchor does not exist"),
    ],
)
def test_a_dead_link_fails_the_build(tmp_path: Path, text: str, said: str) -> None:
    """A page or a heading that is not there ends the build with an error that says so."""
    config = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[0].replace(".work/", "")
    (tmp_path / "mkdocs.yml").write_text(config)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(text)
    (tmp_path / "docs" / "site.css").write_text("")
    built = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"],
        cwd=tmp_path,
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    plain = re.sub(r"\x1b\[[0-9;]*m", "", built.stdout + built.stderr)
    assert bool(said) == bool(built.returncode), plain
    assert said in plain


# --- a browser --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """Build the site strictly, and serve it on the loopback."""
    built = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "docs_site.py")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    handler = functools.partial(Quiet, directory=str(ROOT / ".work" / "site"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files, and does not print what it serves."""

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@contextlib.contextmanager
def watched_page(theme: Any) -> Iterator[tuple[Any, list[str], set[str]]]:
    """Give a page of a browser, its complaints, and the hosts that it has asked."""
    from playwright.sync_api import sync_playwright

    complaints: list[str] = []
    hosts: set[str] = set()
    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = chromium.new_context(color_scheme=theme).new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "console", lambda said: complaints.append(said.text) if said.type == "error" else None
        )
        page.on("request", lambda asked: hosts.add(asked.url.split("/")[2].split(":")[0]))
        yield page, complaints, hosts
        chromium.close()


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")
@pytest.mark.skipif(
    importlib.util.find_spec("playwright") is None, reason="no playwright: pip install playwright"
)
@pytest.mark.skipif(
    importlib.util.find_spec("zensical") is None, reason="Zensical needs Python 3.11"
)
@pytest.mark.parametrize(("theme", "scheme"), [("light", "default"), ("dark", "slate")])
def test_the_search_finds_a_page_which_opens(site: str, theme: str, scheme: str) -> None:
    """
    In light and in dark: the search finds a word, its page opens, nothing fails, and nobody but
    this machine is asked for anything.
    """
    with watched_page(theme) as (page, complaints, hosts):
        page.goto(f"{site}/index.html")
        assert scheme == page.locator("body").get_attribute("data-md-color-scheme")
        page.keyboard.press("/")
        page.keyboard.type("savepoint")
        page.get_by_text(re.compile(r"^\d+ results$")).wait_for(timeout=15_000)
        page.keyboard.press("Enter")
        page.wait_for_url("**/savepoints.html*", timeout=15_000)
        assert page.locator("h1").inner_text().startswith("Savepoints")

    assert [] == complaints
    assert {"127.0.0.1"} == hosts
