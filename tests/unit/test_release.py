"""The release check: the changelog of a release, the bill of materials, and what is vendored."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def script() -> Iterator[Any]:
    """Import the script that checks a release."""
    sys.path.insert(0, str(ROOT / "scripts"))
    yield importlib.import_module("release_check")
    sys.path.remove(str(ROOT / "scripts"))


@pytest.mark.parametrize(
    ("changelog", "version"),
    [("## 1.2.0 (2026-12-01)\n", "1.2.0"), ("## 1.2.0 (not released)\n", "1.2.0.dev0")],
)
def test_a_changelog_fits_its_version(script: Any, changelog: str, version: str) -> None:
    """A release has a heading with its date; a development version needs none."""
    script.check_changelog(changelog, version)


@pytest.mark.parametrize("changelog", ["## 1.2.0 (not released)\n", "## 1.2.1 (2026-12-01)\n", ""])
def test_a_release_without_its_heading_is_refused(script: Any, changelog: str) -> None:
    """The error shows the heading."""
    with pytest.raises(script.WheelError, match=r"no heading `## 1\.2\.0 \(YYYY-MM-DD\)`"):
        script.check_changelog(changelog, "1.2.0")


def test_the_bill_of_materials_is_about_the_package(script: Any) -> None:
    """It has the JavaScript of the wheel, which no tool finds, and the package depends on it."""
    own = f"{script.DISTRIBUTION}==1.2.0"
    digest = {"alg": "SHA-256", "content": "0a"}
    links = [{"url": "file:///tmp/x.whl", "hashes": [digest]}, {"url": "https://example.com"}]
    found = script.with_contents(
        {
            "metadata": {"tools": {}},
            "components": [
                {"bom-ref": own, "externalReferences": links},
                {"bom-ref": "fsspec==1"},
            ],
            "dependencies": [{"ref": own, "dependsOn": ["fsspec==1"]}, {"ref": "fsspec==1"}],
        },
        "1.2.0",
    )
    vendored = ["pkg:npm/htm@3.1.1", "pkg:npm/uplot@1.6.32"]

    assert {
        "bom-ref": own,
        "externalReferences": links[1:],
        "hashes": [digest],
        "purl": f"pkg:pypi/{script.DISTRIBUTION}@1.2.0",
    } == found["metadata"]["component"]
    assert ["fsspec==1", *vendored] == [each["bom-ref"] for each in found["components"]]
    assert {own: ["fsspec==1", *vendored], "fsspec==1": []} | {key: [] for key in vendored} == {
        each["ref"]: each["dependsOn"] for each in found["dependencies"]
    }


def test_the_bill_of_materials_names_every_vendored_file(script: Any) -> None:
    """A new file, or a new version of uPlot, fails here until the list has it."""
    folder = ROOT / "airflow_provider" / "plugins" / "static" / "vendor"

    assert {path.stem.lower() for path in folder.glob("*.js")} == set(script.VENDORED)
    (version,) = re.findall(r"uPlot \(v([\d.]+)\)", (folder / "uPlot.js").read_text())
    assert version == script.VENDORED["uplot"][0]
