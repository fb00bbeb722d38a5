"""What a compactor leaves for others to read, below ``_system/compactor``: small JSON files, each replaced as a whole.

| file | says | written by |
|---|---|---|
| ``status.json`` | what the holder of the lease does now | the holder, when it changes |
| ``cycles.json`` | the number of the last cycle, and when works ran last | whoever runs a cycle, before and after it |
| ``paused.json`` | that nothing is to run by the clock | anybody; it stays until somebody resumes |
| ``stop.json`` | which holder of the lease is to stop | `silt compactor stop`, which removes it when that has stopped |

A crash leaves a file as before or as after, and perhaps a draft, which the next write of that process's successor replaces.
Nothing here decides who may commit: that is what leases and epochs are for.
"""

import datetime
import fcntl
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

STATUS: Final = "status.json"
CYCLES: Final = "cycles.json"
PAUSED: Final = "paused.json"
STOP: Final = "stop.json"
LOCK: Final = ".cycles.lock"
ENDED: Final = frozenset({"cycle", "started", "jobs", "failed", "errors", "seconds"})
"""What is told of the last cycle, at least."""
LAST_CYCLE: Final = 2**53
"""A number of a cycle above this is none that anybody counted up to."""


class Notes:
    """The notes of one lake's compactor."""

    def __init__(self, layout: Layout, *, durable: bool, folder: Path | None = None) -> None:
        """Remember where they are, that of the compactor unless told; nothing is read or written yet."""
        self.folder = folder or layout.compactor
        self._durable = durable

    def read(self, name: str) -> dict[str, Any] | None:
        """Return a note; None if there is none.

        Raises:
            Unavailable: it cannot be read now.
            Corruption: it is damaged.
        """
        path = self.folder / name
        try:
            found = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Unavailable(f"{path} cannot be read ({error}). Check the disk and its permissions.") from error
        except (ValueError, RecursionError) as error:
            raise _damaged(path) from error
        if not isinstance(found, dict):
            raise _damaged(path)
        return found

    def write(self, name: str, note: dict[str, Any]) -> None:
        """Replace a note.

        Raises:
            Unavailable: it cannot be written now; the old one is still there.
        """
        path = self.folder / name
        draft = path.with_name(f".{name}.{process_name()}")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_draft(draft, json.dumps(note, default=str), durable=self._durable)
            reach("notes.after_draft")
            draft.replace(path)
            if self._durable:
                sync_directory(self.folder)
        except OSError as error:
            raise Unavailable(f"{path} cannot be written ({error}). Check the disk and its permissions.") from error
        reach("notes.after_write")

    def remove(self, name: str) -> bool:
        """Remove a note; return whether there was one."""
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
        """Return the note of cycles, an empty one if there is none.

        Raises:
            Unavailable: it cannot be read now.
            Corruption: it is damaged, or says what nobody here would write.
        """
        found = self.read(CYCLES) or {}
        last, ended, settled = found.get("last", 0), found.get("ended"), found.get("settled", {})
        is_ended = ended is None or (isinstance(ended, dict) and ended.keys() >= ENDED)
        is_settled = isinstance(settled, dict) and all(map(_is_moment, settled.values()))
        if not isinstance(last, int) or not 0 <= last <= LAST_CYCLE or not is_ended or not is_settled:
            raise _damaged(self.folder / CYCLES)
        return found

    def next_cycle(self, *, at_least: int = 1) -> int:
        """Return the number of the next cycle, which is then taken, whatever becomes of it: nobody gets it again.

        A cycle may run without the lease, so that two processes can ask for a number at once.
        """
        with self._alone():
            known = self.cycles()
            number = max(at_least, int(known.get("last", 0)) + 1)
            self.write(CYCLES, {**known, "last": number})
            return number

    def ended(self, cycle: dict[str, Any], *, settled: dict[str, str] | None = None) -> None:
        """Note what came of a cycle, and when works ran last."""
        with self._alone():
            known = self.cycles()
            self.write(CYCLES, {**known, "ended": cycle, "settled": {**known.get("settled", {}), **(settled or {})}})

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Let one at a time change the note of cycles; a crash lets go. Where the disk has no locks it is as without one."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            opened = (self.folder / LOCK).open("a")
        except OSError as error:
            raise Unavailable(
                f"{self.folder} cannot be written ({error}). Check the disk and its permissions."
            ) from error
        with opened:
            with suppress(OSError):
                fcntl.flock(opened, fcntl.LOCK_EX)
            yield


def write_draft(path: Path, text: str, *, durable: bool) -> None:
    """Write a file that gets its name later."""
    path.write_text(text)
    if durable:
        sync_file(path)


def _is_moment(text: object) -> bool:
    """Tell whether a text is a moment with its time zone."""
    try:
        return isinstance(text, str) and datetime.datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def _damaged(path: Path) -> Corruption:
    return Corruption(
        f"{path} is damaged. Restore it from a copy, or remove it: it is only a note.", reason=Reason.DAMAGED_FILE
    )
