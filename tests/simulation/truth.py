"""Expected rows of a simulated lake: plain dicts, updated by each write in the order of its sequence."""

import datetime
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

Row = dict[str, Any]

SUBJECTS: Final = 12
REGIONS: Final = ("eu", "us")
LATE_SHARE: Final = 0.2
"""Share of late rows. Most are late by hours, some by days."""
LATE_HOURS: Final = (10, 10, 10, 60)


@dataclass
class Truth:
    """Expected rows of a dataset, by their number; in a keyed dataset the number is the key."""

    rows: dict[int, Row] = field(default_factory=dict)

    def add(self, rows: list[Row]) -> None:
        """Add appended or upserted rows."""
        self.rows |= {row["n"]: row for row in rows}

    def hide(self, who: str) -> None:
        """Hide a subject: all its rows so far, but no later row."""
        self.rows = {n: row for n, row in self.rows.items() if row["who"] != who}

    def drop(self, key: int) -> None:
        """Remove a hidden key."""
        self.rows.pop(key, None)


def event(random: Random, n: int, *, now: datetime.datetime, payload_bytes: int) -> Row:
    """Return an event of about now, or a late event."""
    late = random.random() < LATE_SHARE
    minutes = random.randrange(60, 60 * random.choice(LATE_HOURS)) if late else random.randrange(10)
    return {
        "n": n,
        "at": now - datetime.timedelta(minutes=minutes),
        "who": f"S-{random.randrange(SUBJECTS)}",
        "region": random.choice(REGIONS),
        "payload": random.randbytes(payload_bytes).hex(),
    }
