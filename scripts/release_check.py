"""Do all of a release but the upload, from a clean clone of the last commit.

The steps: build the source distribution, and the wheel from it; ``twine check --strict``; the
changelog of a release; the documentation as a site; the wheel in empty environments with each
supported Airflow (``check_wheel.py``); a software bill of materials (SBOM). What is to be uploaded
is in ``dist/`` at the end. The tools are the dependency group ``release`` of pyproject.toml, in an
environment of their own.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Any, Final

import airflow_versions
import check_wheel
from check_wheel import DISTRIBUTION, NEWEST, PIP, ROOT, WheelError, output_of

DIST: Final = ROOT / "dist"
VENDORED: Final = {"htm": ("3.1.1", "Apache-2.0"), "uplot": ("1.6.32", "MIT")}
"""The JavaScript that the wheel contains: its version and its licence, by its name in npm."""


def main() -> int:
    """Check the release, fill ``dist/``, and print its files; return 0 when all is good."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    every = [*airflow_versions.PINS, NEWEST]
    parser.add_argument("--airflow", nargs="+", choices=every, default=every)
    began = time.perf_counter()
    try:
        with tempfile.TemporaryDirectory(prefix="release-check-") as name:
            made = check(Path(name), parser.parse_args().airflow)
            shutil.rmtree(DIST, ignore_errors=True)
            shutil.copytree(made, DIST)
    except WheelError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    for path in sorted(DIST.iterdir()):
        print(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  dist/{path.name}")
    say(f"good, in {time.perf_counter() - began:.0f} s; nothing was uploaded")
    return 0


def check(scratch: Path, airflows: list[str]) -> Path:
    """Do all steps in *scratch*, and return the folder of what is to be uploaded.

    Raises:
        WheelError: a step has failed; what it printed is shown.
    """
    clone, dist = scratch / "clone", scratch / "dist"
    say("cloning the last commit")
    if output_of(["git", "status", "--porcelain", "--untracked-files=no"]):
        say("changes that are not committed are left out")
    output_of(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(clone)])
    tools = tools_in(scratch / "tools")
    wheel = built(clone, dist, tools)
    check_changelog((clone / "CHANGELOG.md").read_text("utf-8"), version_of(wheel))
    say("building the documentation")
    site = {**os.environ, "PYTHONPATH": str(clone), "NO_COLOR": "1"}
    output_of([sys.executable, "scripts/docs_site.py"], environment=site, folder=clone)
    for airflow in airflows:
        python = check_wheel.try_with(airflow, wheel, scratch / airflow, clone)
        if python and airflow == NEWEST:
            say("writing the bill of materials")
            document = bill_of_materials(tools, python)
            path = dist / f"{wheel.name.partition('-py3')[0]}.cdx.json"
            path.write_text(json.dumps(with_contents(document, version_of(wheel)), indent=1))
    return dist


def say(step: str) -> None:
    """Print one step."""
    print(f"release: {step}", flush=True)


def tools_in(folder: Path) -> Path:
    """Return the programs of the dependency group ``release``, in a new environment."""
    say("installing the tools")
    venv.create(folder, with_pip=False)
    into = [*PIP, "--python", str(folder / "bin" / "python"), "install", "--quiet"]
    output_of([*into, "--constraint", str(check_wheel.CONSTRAINTS), "--group", "release"])
    return folder / "bin"


def built(clone: Path, dist: Path, tools: Path) -> Path:
    """Return the wheel, which is made of the source distribution; both are in *dist*."""
    say("building the source distribution and the wheel")
    pinned = {**os.environ, "PIP_CONSTRAINT": str(clone / "constraints.txt")}
    command = [str(tools / "python"), "-m", "build", "--outdir", str(dist), str(clone)]
    output_of(command, environment=pinned, folder=clone)
    say("checking both as PyPI does")
    files = [str(path) for path in dist.iterdir()]
    output_of([str(tools / "twine"), "check", "--strict", *files])
    (wheel,) = dist.glob("*.whl")
    return wheel


def version_of(wheel: Path) -> str:
    """Return the version in a wheel's name."""
    return wheel.name.split("-")[1]


def check_changelog(changelog: str, version: str) -> None:
    """Raise WheelError for a release that the changelog does not have, or not with its date."""
    if ".dev" in version:
        return
    if not re.search(rf"(?m)^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)$", changelog):
        raise WheelError(f"CHANGELOG.md has no heading `## {version} (YYYY-MM-DD)`")


# --- The bill of materials --------------------------------------------------------------------


def bill_of_materials(tools: Path, python: str) -> dict[str, Any]:
    """Return a CycloneDX document of an environment."""
    command = [str(tools / "cyclonedx-py"), "environment", "--output-reproducible", python]
    found: dict[str, Any] = json.loads(output_of(command))
    return found


def with_contents(document: dict[str, Any], version: str) -> dict[str, Any]:
    """Return the document about our distribution, with the JavaScript that its wheel contains.

    The tool lists the packages of an environment, ours among them with the path of its wheel.
    """
    own = f"{DISTRIBUTION}=={version}"
    (component,) = (each for each in document["components"] if each["bom-ref"] == own)
    vendored = [
        {
            "bom-ref": f"pkg:npm/{name}@{of}",
            "licenses": [{"license": {"id": licence}}],
            "name": name,
            "purl": f"pkg:npm/{name}@{of}",
            "type": "library",
            "version": of,
        }
        for name, (of, licence) in VENDORED.items()
    ]
    others = [each for each in document["components"] if each is not component]
    links = component.get("externalReferences", [])
    main_component = {
        **component,
        "externalReferences": [each for each in links if not each["url"].startswith("file:")],
        "hashes": [digest for each in links for digest in each.get("hashes", [])],
        "purl": f"pkg:pypi/{DISTRIBUTION}@{version}",
    }
    needs = {each["ref"]: each.get("dependsOn", []) for each in document["dependencies"]}
    needs |= {each["bom-ref"]: [] for each in vendored}
    needs[own] = sorted([*needs[own], *(each["bom-ref"] for each in vendored)])
    return {
        **document,
        "metadata": {**document["metadata"], "component": main_component},
        "components": [*others, *vendored],
        "dependencies": [{"ref": ref, "dependsOn": on} for ref, on in sorted(needs.items())],
    }


if __name__ == "__main__":
    sys.exit(main())
