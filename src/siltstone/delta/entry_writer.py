"""Writing a log entry: the one step that decides a commit.

An entry is written completely under a separate name, its *draft*, and then linked to its final name. A local file system
creates a link or refuses it atomically, for any number of processes. So an entry exists completely or not at all, and of all
writers of one version exactly one succeeds. delta-rs uses the same system calls on a local disk. Around them it also lists and
replays the log twice, which took most of the time of a small commit.

Each entry can be checked for completeness. Its first line ends with the CRC-32 of all its bytes. Its last line is the
transaction `APP_COMMITTED`, the entry's own version. A commit is checked against that of its parent. So a commit of
another program is noticed even after a checkpoint has replaced its entry.

A crash leaves a draft. No reader mistakes its name for an entry (delta-rs names its own drafts the same way). Log
cleaning deletes it.
"""

import contextlib
import getpass
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from siltstone.delta.fsync import sync_beside
from siltstone.delta.layout import entry_name, in_log
from siltstone.failpoints import reach
from siltstone.model.columns import (
    APP_COMMITTED,
    COMMIT_CRC,
    COMMIT_ID,
    COMMIT_KIND,
    COMMIT_PID,
    FORGOTTEN_MS,
    ROWS_REMOVED,
)
from siltstone.model.commit import Commit

ENGINE: Final = "siltstone"


def put_entry(
    table: Path, version: int, content: bytes, *, draft_id: str, durable: bool, beside: Sequence[str] = ()
) -> None:
    """Write the entry of a version that does not exist yet. The draft's id must be unused.

    A durable draft is synced before it is linked. So a power cut can remove the entry, but not leave a part of it.
    Paths in `beside`, which the entry names and which are not on disk yet, are synced at the same time.

    Raises:
        FileExistsError: the version already exists.
        OSError: the disk failed. The entry may exist nevertheless, for example after a lost reply of a network disk.
    """
    path = in_log(table, entry_name(version))
    draft = f"{path}#{int(draft_id, 16)}"
    try:
        with open(draft, "xb") as file:  # noqa: PTH123
            file.write(content)
            if durable:
                file.flush()
                sync_beside(file.fileno(), beside)
        reach("commit.after_draft")
        os.link(draft, path)
    finally:
        with contextlib.suppress(OSError):  # a remaining draft is deleted when the log is cleaned
            os.unlink(draft)  # noqa: PTH108


def entry_content(commit: Commit, *, version: int, commit_id: str, now_ms: int) -> bytes:
    """Return a commit as the lines of its entry, sealed with their checksum."""
    actions = _actions(commit, version, commit_id, now_ms)
    content = b"".join(_as_json(action).encode() + b"\n" for action in actions)
    end = content.index(b"}}\n")  # of the first line, the commitInfo, which gets the checksum
    return b'%b,"%b":"%08x"%b' % (content[:end], COMMIT_CRC.encode(), zlib.crc32(content), content[end:])


_as_json: Final = json.JSONEncoder(separators=(",", ":")).encode
"""One shared encoder, because its construction takes longer than its use."""


def _actions(commit: Commit, version: int, commit_id: str, now_ms: int) -> Iterator[dict[str, Any]]:
    yield {
        "commitInfo": {
            "timestamp": now_ms,
            "operation": "WRITE",
            "operationParameters": {"mode": "Append"},
            "engineInfo": ENGINE,
            "userName": _user(),
            COMMIT_PID: str(os.getpid()),
            COMMIT_ID: commit_id,
            COMMIT_KIND: commit.kind.value,
            **({ROWS_REMOVED: str(sum(file.rows for file in commit.removes))} if commit.removes else {}),
            **commit.info,
        }
    }
    yield from (dict(action) for action in commit.table_actions)
    data_change = not commit.kind.moves_rows_only
    for file in commit.adds:
        yield {
            "add": {
                "path": quote(file.path),
                "partitionValues": dict(file.partition),
                "size": file.size_bytes,
                "modificationTime": now_ms,
                "dataChange": data_change,
                **({"stats": file.stats} if file.stats else {}),
            }
        }
    for file in commit.removes:
        yield {
            "remove": {
                "path": quote(file.path),
                "deletionTimestamp": now_ms,
                "dataChange": data_change,
                "extendedFileMetadata": True,
                "partitionValues": dict(file.partition),
                "size": file.size_bytes,
            }
        }
    for app, number in sorted(commit.transactions.items()):
        yield {"txn": {"appId": app, "version": number}}
    for app, number in sorted(commit.forgets.items()):
        yield {"txn": {"appId": app, "version": number, "lastUpdated": FORGOTTEN_MS}}
    yield {"txn": {"appId": APP_COMMITTED, "version": version}}


@cache
def _user() -> str:
    """Return the name of this process's system user. Nothing else about the committing user is written."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in a container
        return str(os.getuid())
