"""Write the names of Spark's settings into ``airflow_provider/runtime/spark/settings.txt``.

They are the constants of the classes in Spark's own jars that look like one, so no JVM is started.
Names of Sparks that are not given stay: the list is of all supported versions. Run it for a new
version, with the folder of each Spark; by default with the installed one and those of
``.work/versions``.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "airflow_provider" / "runtime" / "spark" / "settings.txt"
HEADING = "# Names of the settings of Spark 3.5 to 4.3; scripts/spark_settings.py writes them.\n"
# A class file has a constant as its tag, its length in two bytes, and its text.
CONSTANT = re.compile(rb"\x01(?=(..)(spark(?:\.[A-Za-z0-9_\-]+)+))", re.DOTALL)


def names_in(home: Path) -> set[str]:
    """Return the names of settings in the jars of a Spark."""
    return {name for jar in (home / "jars").glob("spark-*.jar") for name in names_in_jar(jar)}


def names_in_jar(jar: Path) -> Iterator[str]:
    """Yield the names of settings in the classes of a jar."""
    with zipfile.ZipFile(jar) as archive:
        for member in archive.namelist():
            if member.endswith(".class"):
                yield from _names_in_class(archive.read(member))


def _names_in_class(data: bytes) -> Iterator[str]:
    for found in CONSTANT.finditer(data):
        length, text = int.from_bytes(found[1], "big"), found[2]
        if length == len(text):  # else it is a sentence, or a name that is put together
            yield text.decode()


def installed_sparks() -> list[Path]:
    """Return the folders of the Sparks that are here."""
    spec = importlib.util.find_spec("pyspark")
    own = [Path(spec.origin).parent] if spec is not None and spec.origin else []
    return own + sorted((ROOT / ".work" / "versions").glob("*/pyspark"))


def main(argv: Sequence[str] | None = None) -> int:
    """Write the list, and say how many names it has."""
    parser = argparse.ArgumentParser(description="Write the names of Spark's settings.")
    parser.add_argument("homes", nargs="*", type=Path, metavar="SPARK_HOME")
    homes = parser.parse_args(argv).homes or installed_sparks()
    before = LIST.read_text().splitlines() if LIST.exists() else []
    names = {name for name in before if not name.startswith("#")}
    for home in homes:
        found = names_in(home)
        if not found:
            print(f"{home}: no jars of Spark there", file=sys.stderr)
            return 1
        names |= found
    LIST.write_text(HEADING + "".join(f"{name}\n" for name in sorted(names)))
    print(f"{LIST.relative_to(ROOT)}: {len(names)} names")
    return 0


if __name__ == "__main__":
    sys.exit(main())
