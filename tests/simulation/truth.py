"""What the lake of a simulation must say: plain dicts, brought forward by each write in the order of its sequence."""

import datetime
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

Row = dict[str, Any]

SUBJECTS: Final = 12
REGIONS: Final = ("eu", "us")
LATE_SHARE: Final = 0.2
"""So many rows come late: by hours mostly, by days some."""
LATE_HOURS: Final = (10, 10, 10, 60)


@dataclass
class Truth:
    """The rows that a dataset shows, by their number; the number of a keyed dataset's row is its key."""

    rows: dict[int, Row] = field(default_factory=dict)

    def add(self, rows: list[Row]) -> None:
        """Rows were appended or upserted."""
        self.rows |= {row["n"]: row for row in rows}

    def hide(self, who: str) -> None:
        """A subject was hidden: all that is there of it, and nothing that comes later."""
        self.rows = {n: row for n, row in self.rows.items() if row["who"] != who}

    def drop(self, key: int) -> None:
        """A key was hidden."""
        self.rows.pop(key, None)


def event(random: Random, n: int, *, now: datetime.datetime, payload_bytes: int) -> Row:
    """One event of about now, or a late one."""
    late = random.random() < LATE_SHARE
    minutes = random.randrange(60, 60 * random.choice(LATE_HOURS)) if late else random.randrange(10)
    return {
        "n": n,
        "at": now - datetime.timedelta(minutes=minutes),
        "who": f"S-{random.randrange(SUBJECTS)}",
        "region": random.choice(REGIONS),
        "payload": random.randbytes(payload_bytes).hex(),
    }
