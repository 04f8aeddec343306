"""Hooks of the build: the project's addresses, the links of its README, and its example DAGs.

``[tool.hatch.metadata.hooks.custom]`` in pyproject.toml has two addresses, which a maintainer fills
in once. The hooks make ``project.urls`` of them, and absolute links of the README's relative ones,
which PyPI cannot resolve. A release is not built without them; a development version is.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface
from packaging.version import Version

SETTINGS = "[tool.hatch.metadata.hooks.custom] of pyproject.toml"
# A relative target of a link or a picture, in Markdown or in HTML.
RELATIVE = re.compile(r"(?:(?<=\]\()|(?<=src=\")|(?<=href=\"))(?![a-z]+:|[#/])[^)\s\"]+")
PICTURE = re.compile(r"\.(?:gif|jpe?g|png|svg)$")
EXAMPLES = "airflow_provider/example_dags"
"""Where registries of Airflow providers look for examples in a wheel."""


class MetadataHook(MetadataHookInterface):
    """Fill in ``project.urls`` and ``project.readme``."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add both fields to *metadata*, which has the version.

        Raises:
            ValueError: the version is a release's, and an address is missing.
        """
        version = metadata["version"]
        repository, documentation = (
            str(self.config.get(name, "")).rstrip("/") for name in ("repository", "documentation")
        )
        if not (Version(version).is_devrelease or (repository and documentation)):
            raise ValueError(
                f"{version} is a release: set `repository` and `documentation` in {SETTINGS}, "
                "or build a development version, such as 1.2.3.dev0"
            )
        metadata["urls"] = urls_of(repository, documentation)
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": with_absolute_links(text, repository, version) if repository else text,
        }


class BuildHook(BuildHookInterface):  # type: ignore[type-arg]  # it has no configuration
    """Put ``dags/`` into the wheel, and not into an editable installation."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the folder to what the wheel contains."""
        if self.target_name == "wheel" and version == "standard":
            build_data["force_include"]["dags"] = EXAMPLES


def urls_of(repository: str, documentation: str) -> dict[str, str]:
    """Return the links that PyPI shows beside the README."""
    found = {"Documentation": documentation} if documentation else {}
    if repository:
        found["Source"] = repository
        found["Changelog"] = f"{repository}/blob/main/CHANGELOG.md"
        found["Issues"] = f"{repository}/issues"
    return found


def with_absolute_links(text: str, repository: str, version: str) -> str:
    """Return a page with its relative links pointed at the files of the version's tag."""
    reference = "main" if Version(version).is_devrelease else f"v{version}"

    def absolute(link: re.Match[str]) -> str:
        kind = "raw" if PICTURE.search(link[0]) else "blob"
        return f"{repository}/{kind}/{reference}/{link[0]}"

    return RELATIVE.sub(absolute, text)
