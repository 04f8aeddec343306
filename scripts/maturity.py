"""Write the table of maturity into docs/index.md, from :mod:`.runtime.base.maturity`.

Run it after a change there; a test compares what it would write with what is there, and the
versions in the table with those that the tests pin.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "index.md"
_TABLE: Final = re.compile(r"\| component \| tested with \| status \|\n(?:\|.*\n)+")


def page() -> str:
    """Return the page with the table as it should be."""
    sys.path.insert(0, str(ROOT))
    from airflow_provider.runtime.base.maturity import table

    text = PAGE.read_text(encoding="utf-8")
    written, count = _TABLE.subn(lambda _: table(), text)
    if count != 1:
        raise SystemExit(f"{PAGE.name} has {count} tables of maturity")
    return written


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
