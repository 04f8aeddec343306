"""The build: a release needs the project's addresses, and the README's links become absolute."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tests.present import present

pytest.importorskip("hatchling")

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY = "https://example.com/team/project"
ADDRESSES = {"repository": f"{REPOSITORY}/", "documentation": "https://docs.example.com"}


@pytest.fixture(scope="module")
def hooks() -> Any:
    """Import the hooks of the build."""
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(present(spec))
    present(present(spec).loader).exec_module(module)
    return module


def metadata_of(hooks: Any, version: str, **addresses: str) -> dict[str, Any]:
    """Return the fields that a build of this version gets."""
    metadata: dict[str, Any] = {"version": version}
    hooks.MetadataHook(str(ROOT), addresses).update(metadata)
    return metadata


@pytest.mark.parametrize("missing", ["repository", "documentation"])
@pytest.mark.parametrize("version", ["0.1.0", "1.0.0rc1"])
def test_a_release_without_an_address_is_not_built(hooks: Any, version: str, missing: str) -> None:
    """The error names the setting; a release candidate is published, too."""
    with pytest.raises(ValueError, match=rf"{version} is a release: set `repository`"):
        metadata_of(hooks, version, **{**ADDRESSES, missing: ""})


def test_a_development_version_is_built_without_addresses(hooks: Any) -> None:
    """It has no links, and the README as it is."""
    metadata = metadata_of(hooks, "0.1.0.dev0")

    assert {} == metadata["urls"]
    assert (ROOT / "README.md").read_text() == metadata["readme"]["text"]


def test_a_release_has_the_links_of_the_project(hooks: Any) -> None:
    """Both addresses give all of them."""
    assert {
        "Documentation": "https://docs.example.com",
        "Source": REPOSITORY,
        "Changelog": f"{REPOSITORY}/blob/main/CHANGELOG.md",
        "Issues": f"{REPOSITORY}/issues",
    } == metadata_of(hooks, "0.1.0", **ADDRESSES)["urls"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[a](docs/a.md#b)", f"[a]({REPOSITORY}/blob/v1.2.0/docs/a.md#b)"),
        ("![a](docs/a.png)", f"![a]({REPOSITORY}/raw/v1.2.0/docs/a.png)"),
        ('<img src="docs/a.svg">', f'<img src="{REPOSITORY}/raw/v1.2.0/docs/a.svg">'),
        ("[a](https://b.example/c.md) [d](#e)", "[a](https://b.example/c.md) [d](#e)"),
    ],
)
def test_a_relative_link_becomes_absolute(hooks: Any, text: str, expected: str) -> None:
    """It leads to the file of the version's tag, a picture to the file itself."""
    assert expected == hooks.with_absolute_links(text, REPOSITORY, "1.2.0")


def test_a_development_version_links_main(hooks: Any) -> None:
    """It has no tag."""
    assert f"[a]({REPOSITORY}/blob/main/a.md)" == hooks.with_absolute_links(
        "[a](a.md)", REPOSITORY, "1.2.0.dev3"
    )


def test_no_link_of_the_readme_stays_relative(hooks: Any) -> None:
    """PyPI would show each as a dead one."""
    text = metadata_of(hooks, "0.1.0", **ADDRESSES)["readme"]["text"]

    assert not hooks.RELATIVE.search(text)
    assert text.count(REPOSITORY) == len(hooks.RELATIVE.findall((ROOT / "README.md").read_text()))


@pytest.mark.parametrize(
    ("target", "version", "expected"),
    [
        ("wheel", "standard", {"dags": "airflow_provider/example_dags"}),
        ("wheel", "editable", {}),
        ("sdist", "standard", {}),
    ],
)
def test_the_example_dags_are_in_the_wheel(
    hooks: Any, target: str, version: str, expected: dict[str, str]
) -> None:
    """An editable installation has no copies of them beside the checkout."""
    data: dict[str, Any] = {"force_include": {}}
    hooks.BuildHook(str(ROOT), {}, None, None, "", target).initialize(version, data)

    assert expected == data["force_include"]
