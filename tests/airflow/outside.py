"""The package in ``outside_package/``, installed as pip installs a wheel."""

from __future__ import annotations

import configparser
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


def wheel(folder: Path) -> Path:
    """Pack the package as a build backend does: its modules, its metadata and its entry points."""
    read = configparser.ConfigParser(delimiters="=")
    read.read(HERE / "outside_package" / "pyproject.toml")
    groups = {name.split('"')[1]: read[name] for name in read.sections() if "entry-points" in name}
    lines = [
        line
        for group, found in groups.items()
        for line in (f"[{group}]", *(f"{k} = {v.strip(chr(34))}" for k, v in found.items()))
    ]
    made, info = folder / "streams_outside-1.0-py3-none-any.whl", "streams_outside-1.0.dist-info"
    with zipfile.ZipFile(made, "w") as archive:
        for module in sorted((HERE / "outside_package").glob("*.py")):
            archive.write(module, module.name)
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: streams-outside\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr(f"{info}/entry_points.txt", "\n".join(lines) + "\n")
        archive.writestr(f"{info}/RECORD", "")
    return made


def install(folder: Path) -> Path:
    """Install the package into a folder of its own, as pip does; not each environment has pip."""
    installed = folder / "installed"
    with zipfile.ZipFile(wheel(folder)) as archive:
        archive.extractall(installed)
    return installed
