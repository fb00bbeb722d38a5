"""Requests to the hot caches of a lake, and the status of each cache, stored below ``_system/hot``.

A cache belongs to a process, and the process of a command ends at once. So commands write directives, and every
long-running process follows them before its next answer. It compares the folder's modification time first, and reads
nothing if that is unchanged.

| file | content | written by |
|---|---|---|
| ``directives/<dataset>.json`` | whether it is pinned, and the ids of the last requested warming and eviction | commands |
| ``processes/<id>.json`` | the residents of one process, with their counters | that process, every few seconds of use |

A pin lasts until it is removed, also for processes that start later. A warming or an eviction applies to processes that
run at the time of the request. These files contain no user values. A crash leaves the old or the new directive.
"""

import contextlib
import os
import socket
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from siltstone.clock import Clock
from siltstone.config import Settings
from siltstone.coordination.host_identity import installation, machine, process_space
from siltstone.coordination.state_files import StateFiles
from siltstone.delta.layout import Layout
from siltstone.delta.log_reader import Mark, file_mark
from siltstone.errors import SiltstoneError
from siltstone.model.roles import check_may_compact, may_compact
from siltstone.query.hot.fill_queue import Filler
from siltstone.query.hot.residents import Residents
from siltstone.query.hot.slot import Slot
from siltstone.query.hot.stats import CacheStats

TELL_SECONDS: Final = 2.0
"""Shortest interval in seconds between two status files of a process."""
SILENCE: Final = timedelta(days=1)
"""Age of a status file after which its process counts as dead, if nothing else is known about the process."""
SUFFIX: Final = ".json"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheDirective:
    """The directive for one dataset."""

    name: str
    pinned: bool = False
    warm: str | None = None
    evict: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the directive as plain data."""
        return {"dataset": self.name, "pinned": self.pinned, "warm": self.warm, "evict": self.evict}


class DirectiveStore:
    """The directives of one lake, and the status files of its processes."""

    def __init__(self, layout: Layout, *, settings: Settings, clock: Clock) -> None:
        self._layout = layout
        self._role = settings.role
        self._notes = StateFiles(layout, durable=settings.durable, folder=layout.hot / "directives")
        self._told = StateFiles(layout, durable=False, folder=layout.hot / "processes")
        self._clock = clock

    def mark(self) -> Mark:
        """Return a mark that changes with every directive; empty if this process may not read the folder."""
        try:
            return file_mark(self._notes.folder)
        except OSError:
            return ()

    def all(self) -> list[CacheDirective]:
        """Return every directive, by name.

        Raises:
            Corruption, Unavailable: a directive cannot be read.
        """
        names = sorted(path.name.removesuffix(SUFFIX) for path in _files(self._notes.folder))
        return [self.of(name) for name in names]

    def readable(self) -> list[CacheDirective]:
        """Return all readable directives; skip damaged files."""
        found = []
        for path in _files(self._notes.folder):
            with contextlib.suppress(SiltstoneError):
                found.append(self.of(path.name.removesuffix(SUFFIX)))
        return found

    def of(self, name: str) -> CacheDirective:
        """Return the directive for a dataset."""
        found = self._notes.read(name + SUFFIX) or {}
        return CacheDirective(
            name=name, pinned=bool(found.get("pinned")), warm=found.get("warm"), evict=found.get("evict")
        )

    def pin(self, name: str) -> CacheDirective:
        """Request that a dataset is always resident."""
        before = self.of(name)
        return self._write(CacheDirective(name=name, pinned=True, warm=before.warm, evict=before.evict))

    def warm(self, name: str) -> CacheDirective:
        """Request that running processes fill a dataset."""
        before = self.of(name)
        return self._write(
            CacheDirective(name=name, pinned=before.pinned, warm=self._clock.new_id(), evict=before.evict)
        )

    def evict(self, name: str) -> CacheDirective:
        """Unpin a dataset, and request that running processes evict it."""
        return self._write(CacheDirective(name=name, warm=self.of(name).warm, evict=self._clock.new_id()))

    def _write(self, wish: CacheDirective) -> CacheDirective:
        check_may_compact(self._role, doing="ask something of the hot cache")
        self._notes.write(wish.name + SUFFIX, wish.to_dict() | {"at": self._clock.now().isoformat()})
        return wish

    # ---- status of processes -------------------------------------------------------------------------------------

    def tell(self, process: str, stats: CacheStats) -> None:
        """Write the status file of a process; do nothing if the process may not write it."""
        if not may_compact(self._role) or not self._layout.is_lake():
            return
        about = _this_process() | {"at": self._clock.now().isoformat()}
        with contextlib.suppress(SiltstoneError):
            self._told.write(process + SUFFIX, about | stats.to_dict())

    def silent(self, process: str) -> None:
        """Delete the status file of a process at its shutdown."""
        with contextlib.suppress(SiltstoneError):
            self._told.remove(process + SUFFIX)

    def told(self) -> list[dict[str, Any]]:
        """Return the status of the live processes. Delete the status files of dead processes of this machine."""
        found = []
        for path in _files(self._told.folder):
            with contextlib.suppress(SiltstoneError):
                about = self._told.read(path.name)
                if about is None:
                    continue
                if _is_dead(about, self._clock.now()):
                    if may_compact(self._role):
                        self._told.remove(path.name)
                    continue
                found.append(about)
        return sorted(found, key=lambda about: (str(about.get("host")), int(about.get("pid") or 0)))


def _files(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.name.endswith(SUFFIX) and not path.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _this_process() -> dict[str, Any]:
    where = {"machine": machine(), "installation": installation(), "space": process_space()}
    return {"pid": os.getpid(), "host": socket.gethostname()} | where


def _is_dead(about: dict[str, Any], now: datetime) -> bool:
    """True if a process is known to be dead: by its id in this process space, or because its machine was restarted.

    An older version did not write where its processes run. Such a process counts as dead after `SILENCE` without a
    status.
    """
    if about.keys().isdisjoint({"space", "machine"}):
        return not isinstance(about.get("at"), str) or now - datetime.fromisoformat(about["at"]) > SILENCE
    if about.get("space") == process_space():
        return not _lives(about.get("pid"))
    started_anew = about.get("machine") != machine() and about.get("installation") == installation()
    return started_anew and installation() != ""


def _lives(pid: object) -> bool:
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # the process is alive and belongs to another user
    return True


class DirectiveFollower:
    """Follows the directives in one process, and writes its status. Slow work runs on the background thread."""

    def __init__(self, wishes: DirectiveStore, residents: Residents, filler: Filler, *, clock: Clock) -> None:
        """Start with the pins. Earlier warmings and evictions do not apply to this process."""
        self._wishes = wishes
        self._residents = residents
        self._filler = filler
        self._clock = clock
        self._process = clock.new_id()
        self._mark: Mark | None = None
        self._done: dict[str, CacheDirective] = {}
        self._told_seconds = -TELL_SECONDS

    def look(self) -> None:
        """Check for new directives. This is quick if there are none."""
        mark = self._wishes.mark()
        if mark != self._mark:
            first, self._mark = self._mark is None, mark
            self._residents.later(lambda: self._obey(first=first))
        now = self._clock.monotonic_seconds()
        if now - self._told_seconds >= TELL_SECONDS:
            self._told_seconds = now
            self._residents.later(self._tell)

    def _obey(self, *, first: bool) -> None:
        for wish in self._wishes.readable():
            before = self._done.get(wish.name, CacheDirective(name=wish.name))
            self._done[wish.name] = wish
            self._do(self._residents.slot(wish.name), wish, before, new=not first)
        self._tell()

    def _do(self, slot: Slot, wish: CacheDirective, before: CacheDirective, *, new: bool) -> None:
        if new and wish.evict != before.evict:
            with slot.lock:
                slot.note(pinned=False)
                self._residents.drop(slot, "Not resident: it was evicted by a command.")
        if wish.pinned != before.pinned:
            with slot.lock:
                slot.note(pinned=wish.pinned)
        if (wish.pinned and not before.pinned) or (new and wish.warm != before.warm):
            slot.wanted = True
            self._filler.behind(slot, by_name=True)

    def _tell(self) -> None:
        entries = tuple(slot.entry for slot in self._residents.all())
        self._wishes.tell(self._process, CacheStats(budget_bytes=self._residents.budget_bytes, entries=entries))

    def close(self) -> None:
        """Delete the status file of this process."""
        self._wishes.silent(self._process)
