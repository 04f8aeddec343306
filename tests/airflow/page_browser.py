"""A browser on the page "Streams": signed in, and with what it has complained of."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlencode

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from services import Airflow

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
NEEDS_BROWSER = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium"),
    pytest.mark.skipif(
        importlib.util.find_spec("playwright") is None,
        reason="no playwright: pip install playwright",
    ),
]
VIEWS = ("overview", "history", "runs", "failures", "savepoints", "state", "batches", "log", "raw")
HAS_READ = """() => {
    const shown = document.querySelector(".ss .ss-table, .ss [role=tabpanel]");
    return shown && !document.querySelector(".ss").innerText.includes("reading …");
}"""


class Browser:
    """A page of a browser that is signed in, and what it has complained of.

    Args:
        airflow: the services.
        page: playwright's.
    """

    def __init__(self, airflow: Airflow, page: Any) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.airflow = f"http://127.0.0.1:{airflow.port}"
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", self._refuse)
        page.on("console", self._hear)

    def _refuse(self, dialog: Any) -> None:
        self.complaints.append(dialog.message)
        dialog.dismiss()

    def _hear(self, message: Any) -> None:
        if message.type == "error":
            self.complaints.append(message.text)

    def open(self, **query: Any) -> Any:
        """Open the list, or a view of a job, and return what is there when it has been read."""
        address = f"{self.airflow}/plugin/spark-stream"
        self.page.goto(f"{address}?{urlencode(query)}" if query else address)
        self.page.wait_for_function(HAS_READ)
        return self.page.locator(".ss")


@contextlib.contextmanager
def open_browser(
    airflow: Airflow,
    *,
    theme: Literal["light", "dark"] = "light",
    width: int = 1500,
    token: str | None = None,
) -> Iterator[Browser]:
    """Give a browser that is signed in.

    Args:
        airflow: the services.
        theme: ``light`` or ``dark``.
        width: of its window, in pixels.
        token: of whom; None for who makes the tests' calls.
    """
    from playwright.sync_api import sync_playwright

    with contextlib.ExitStack() as stack:
        play = stack.enter_context(sync_playwright())
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        stack.callback(chromium.close)
        context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
        url = f"http://127.0.0.1:{airflow.port}"
        context.add_cookies([{"name": "_token", "value": token or airflow.token, "url": url}])
        if token is not None:  # where all are admins, the cookie's user is Airflow's own anonymous
            context.set_extra_http_headers({"Authorization": f"Bearer {token}"})
        context.add_init_script(f"localStorage.setItem('theme', '{theme}')")
        yield Browser(airflow, context.new_page())
