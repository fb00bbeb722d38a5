"""The columns that Siltstone adds to a change row, and the app transactions that it stores in Delta logs.

User columns never start with ``_``, so these names cannot collide with them. `CHANGE_FIELDS` are the physical columns
of a change file, after the user's columns. ``_seq`` is a partition value and is stored only in the log.
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
"""The hour, day, week or month of a log's rows: a partition value of `base`. Its length gives its granularity."""


class Op(StrEnum):
    """The operation of a change row."""

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
"""Columns after the user's columns in the base files of a log."""

APP_SEQ: Final = "siltstone.seq"
APP_FOLD: Final = "siltstone.fold"
APP_PRUNE: Final = "siltstone.prune"
APP_EPOCH: Final = "siltstone.epoch"
APP_PRODUCER: Final = "producer/"
APP_LOADED: Final = "loaded/"
"""Prefix of the transaction of a loaded file, before the file's SHA-256."""
FORGOTTEN_MS: Final = 1
"""Time of a transaction that is dropped. No other transaction has a time, so no clock can expire one."""
APP_CONTENT: Final = "siltstone.content"
APP_COMMITTED: Final = "siltstone.committed"
"""The version of the last commit by Siltstone. A table at a higher version has commits of another program."""
APP_LOADS: Final = "siltstone.loads"
"""On the base of a log: set once files are loaded as changes. From then on no load writes directly to base."""
COMMIT_ID: Final = "siltstone.commit"
COMMIT_KIND: Final = "siltstone.kind"
COMMIT_PID: Final = "siltstone.pid"
COMMIT_UNDONE: Final = "siltstone.undone_after"
"""On a repair: the version that it restores. Entries of another program between the two versions are ignored."""
COMMIT_CRC: Final = "siltstone.crc32"
"""The last field of an entry's first line: the CRC-32 of the whole entry without this field."""
ROWS_REMOVED: Final = "siltstone.rows_removed"
"""Number of rows in the removed files, because an entry has row counts only of added files."""
CHANGED_FROM: Final = "siltstone.changed_from_ms"
CHANGED_TO: Final = "siltstone.changed_to_ms"
"""Commit times, in milliseconds, of the first and the last change that a fold wrote to base."""
FOLDED_FILES: Final = "siltstone.folded_files"
FOLDED_BYTES: Final = "siltstone.folded_bytes"
"""Number and bytes of the change files that a fold wrote to base, because its entry does not name them."""
JOB: Final = "siltstone.job"
"""Name of the job of a cycle that made a commit. The log shows by it whether the job was done."""
TOMBSTONES: Final = "siltstone.tombstones"
"""Number of tombstones among the added change rows."""
