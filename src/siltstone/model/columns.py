"""The columns Siltstone adds to a change row, and the app transactions it keeps in Delta logs.

User columns never start with ``_``; these names are therefore free. `CHANGE_FIELDS` are the physical columns of a
change file behind the user's own; ``_seq`` is a partition value and lives in the log alone.
"""

from enum import StrEnum
from typing import Final

import pyarrow as pa

RESERVED_PREFIX: Final = "_"

SEQ: Final = "_seq"
OP: Final = "_op"
POS: Final = "_pos"
ROW_SEQ: Final = "_row_seq"
BATCH_ID: Final = "_batch_id"
WRITTEN_AT: Final = "_written_at"
ACTOR: Final = "_actor"
REASON: Final = "_reason"
PERIOD: Final = "_period"
"""The hour, day, week or month of a log's rows, a partition value of `base`; its length is its granularity."""


class Op(StrEnum):
    """What a change row does."""

    UPSERT = "U"
    APPEND = "A"
    TOMBSTONE = "D"


CHANGE_FIELDS: Final = (
    pa.field(OP, pa.string(), nullable=False),
    pa.field(POS, pa.int64(), nullable=False),
    pa.field(ROW_SEQ, pa.int64()),
    pa.field(BATCH_ID, pa.string(), nullable=False),
    pa.field(WRITTEN_AT, pa.timestamp("us", tz="UTC"), nullable=False),
    pa.field(ACTOR, pa.string()),
    pa.field(REASON, pa.string()),
)

BASE_FIELDS: Final = (
    pa.field(WRITTEN_AT, pa.timestamp("us", tz="UTC")),
    pa.field(BATCH_ID, pa.string()),
)
"""The columns behind the user's own in the base files of a log."""

APP_SEQ: Final = "siltstone.seq"
APP_FOLD: Final = "siltstone.fold"
APP_PRUNE: Final = "siltstone.prune"
APP_EPOCH: Final = "siltstone.epoch"
APP_PRODUCER: Final = "producer/"
APP_LOADED: Final = "loaded/"
"""Followed by the SHA-256 of a file that was loaded."""
FORGOTTEN_MS: Final = 1
"""Time of a transaction that is forgotten. No other carries a time, so no clock can expire one."""
APP_CONTENT: Final = "siltstone.content"
APP_COMMITTED: Final = "siltstone.committed"
"""The version of the last commit by Siltstone. A table at a higher version has commits of another program."""
APP_LOADS: Final = "siltstone.loads"
"""On the base of a log: set once files are loaded as changes; from then on no load goes straight to base."""
COMMIT_ID: Final = "siltstone.commit"
COMMIT_KIND: Final = "siltstone.kind"
COMMIT_PID: Final = "siltstone.pid"
COMMIT_UNDONE: Final = "siltstone.undone_after"
"""On a repair: the version to which it leads back. Entries of another program between the two do not count."""
COMMIT_CRC: Final = "siltstone.crc32"
"""The last field of an entry's first line: the CRC-32 of the whole entry without this field."""
ROWS_REMOVED: Final = "siltstone.rows_removed"
"""How many rows the removed files held: an entry says it only of added ones."""
CHANGED_FROM: Final = "siltstone.changed_from_ms"
CHANGED_TO: Final = "siltstone.changed_to_ms"
"""When the first and the last of the changes that a fold brought into base were committed."""
FOLDED_FILES: Final = "siltstone.folded_files"
FOLDED_BYTES: Final = "siltstone.folded_bytes"
"""How many change files a fold brought into base, and how large they were: its entry names none of them."""
JOB: Final = "siltstone.job"
"""The name of the job of a cycle that made a commit: whether it was done can be told from the log."""
TOMBSTONES: Final = "siltstone.tombstones"
"""How many of the added change rows are tombstones."""
