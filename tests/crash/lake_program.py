"""Another program in the tables of a chain: it appends, compacts, deletes, expires, until told.

``KIND ROOT``; the file ``round.json`` in the folder says which hours are written now, and up to
which commit each table may lose what it has.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa

from tests.crash.chain_rows import HOURS, rows_of
from tests.crash.lake import BRONZE, lake_of, write_raw

PAUSE_S = 0.7
FIRST_ID = 10**9
COUNT = 500
KEPT = 2  # its own appends that it does not delete


def main(kind: str, root: Path) -> None:
    """Change the tables in turn, and write how often into ``acts.json``."""
    lake, chance, done = lake_of(kind, root), random.Random(11), Counter[str]()
    appended = 0
    while not (root / "stop").exists():
        now = json.loads((root / "round.json").read_text())
        act = chance.choice(["append", "append", "compact", "delete", "expire"])
        table = chance.choice(["bronze", "silver", "silver", "gold"])
        happened = False
        if act == "append":
            rows = rows_of(chance, FIRST_ID + appended * COUNT, COUNT, now["round"] * HOURS)
            write_raw(root / "appended", appended, rows)
            origin = pa.array([f"n{appended}"] * COUNT)
            lake.append("bronze", rows.append_column("origin", origin).cast(BRONZE))
            appended += 1
            happened = True
        elif act == "compact":
            happened = lake.compact(table)
        elif act == "delete" and now["round"] and appended > KEPT:
            happened = lake.delete("bronze", f"n{chance.randrange(appended - KEPT)}", appended)
        elif act == "expire" and table in now["until"]:
            happened = lake.expire(table, now["until"][table])
        done[act] += happened
        (root / "acts.json").write_text(json.dumps(done))
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
