"""State files of a lake's compactor, below ``_system/compactor``: small JSON files, each replaced as a whole.

| file | content | writer |
|---|---|---|
| ``status.json`` | what the lease holder does now | the lease holder, when it changes |
| ``cycles.json`` | the number of the last cycle, and when tasks ran last | each process that runs a cycle, before and after it |
| ``paused.json`` | the schedule is paused | any process; it stays until a resume |
| ``stop.json`` | the lease holder that is to stop | `silt compactor stop`, which removes it when that has stopped |

A crash leaves a file as before or as after, and perhaps a draft, which the next write replaces.
No file decides who may commit: leases and epochs do.

A file that cannot be read or written now is Unavailable. A damaged one is Corruption.
"""

import datetime
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from siltstone.coordination.host_identity import process_name
from siltstone.delta.fsync import sync_directory, sync_file
from siltstone.delta.layout import Layout
from siltstone.errors import Corruption, Reason, Unavailable
from siltstone.failpoints import reach
from siltstone.host.file_lock import lock

STATUS: Final = "status.json"
CYCLES: Final = "cycles.json"
PAUSED: Final = "paused.json"
STOP: Final = "stop.json"
LOCK: Final = ".cycles.lock"
ENDED: Final = frozenset({"cycle", "started", "jobs", "failed", "errors", "seconds"})
"""Fields that the record of the last cycle must have."""
LAST_CYCLE: Final = 2**53
"""Highest valid number of a cycle."""


class StateFiles:
    """The state files of one folder, by default those of the compactor."""

    def __init__(self, layout: Layout, *, durable: bool, folder: Path | None = None) -> None:
        self.folder = folder or layout.compactor
        self._durable = durable

    def read(self, name: str) -> dict[str, Any] | None:
        """Return the content of a file; None if it does not exist."""
        path = self.folder / name
        try:
            content = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Unavailable(f"{path} cannot be read ({error}). Check the disk and its permissions.") from error
        except (ValueError, RecursionError) as error:
            raise _damaged(path) from error
        if not isinstance(content, dict):
            raise _damaged(path)
        return content

    def write(self, name: str, content: dict[str, Any]) -> None:
        """Replace a file. After an error it has the old content or the new one."""
        path = self.folder / name
        draft = path.with_name(f".{name}.{process_name()}")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            draft.write_text(json.dumps(content, default=str))
            if self._durable:
                sync_file(draft)
            reach("state_file.after_draft")
            draft.replace(path)
            if self._durable:
                sync_directory(self.folder)
        except OSError as error:
            raise Unavailable(f"{path} cannot be written ({error}). Check the disk and its permissions.") from error
        reach("state_file.after_write")

    def remove(self, name: str) -> bool:
        """Remove a file; return whether it existed."""
        path = self.folder / name
        try:
            path.unlink()
            if self._durable:
                sync_directory(self.folder)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise Unavailable(f"{path} cannot be removed ({error}). Check the disk and its permissions.") from error
        return True

    def cycles(self) -> dict[str, Any]:
        """Return the content of ``cycles.json``; empty if it does not exist. Refuse values that no cycle writes."""
        content = self.read(CYCLES) or {}
        last, ended, settled = content.get("last", 0), content.get("ended"), content.get("settled", {})
        is_ended = ended is None or (isinstance(ended, dict) and ended.keys() >= ENDED)
        is_settled = isinstance(settled, dict) and all(map(_is_moment, settled.values()))
        if not isinstance(last, int) or not 0 <= last <= LAST_CYCLE or not is_ended or not is_settled:
            raise _damaged(self.folder / CYCLES)
        return content

    def next_cycle(self, *, at_least: int = 1) -> int:
        """Reserve and return the number of the next cycle. No other cycle gets it.

        Cycles run with and without the lease, so two processes may reserve numbers at once.
        """
        with self._cycles_lock():
            content = self.cycles()
            number = max(at_least, int(content.get("last", 0)) + 1)
            self.write(CYCLES, {**content, "last": number})
            return number

    def ended(self, cycle: dict[str, Any], *, settled: dict[str, str] | None = None) -> None:
        """Record the result of a cycle, and the last run of its tasks."""
        with self._cycles_lock():
            content = self.cycles()
            all_settled = {**content.get("settled", {}), **(settled or {})}
            self.write(CYCLES, {**content, "ended": cycle, "settled": all_settled})

    @contextmanager
    def _cycles_lock(self) -> Iterator[None]:
        """Lock ``cycles.json`` for one process at a time. A crash releases the lock. On disks without locks it has no effect."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            opened = (self.folder / LOCK).open("a")
        except OSError as error:
            raise Unavailable(
                f"{self.folder} cannot be written ({error}). Check the disk and its permissions."
            ) from error
        with opened:
            with suppress(OSError):
                lock(opened.fileno())
            yield


def _is_moment(text: object) -> bool:
    """True for a text that is a time with a time zone."""
    try:
        return isinstance(text, str) and datetime.datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def _damaged(path: Path) -> Corruption:
    return Corruption(
        f"{path} is damaged. Restore it from a copy, or remove it: it holds no rows.", reason=Reason.DAMAGED_FILE
    )
