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
import threading
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from siltstone.clock import Clock, utc_text
from siltstone.config import Settings
from siltstone.coordination.host_identity import installation, machine, process_space
from siltstone.coordination.state_files import StateFiles
from siltstone.delta.layout import Layout
from siltstone.delta.log_reader import Mark, file_mark
from siltstone.errors import SiltstoneError, Unavailable
from siltstone.model.roles import check_may_compact, may_compact
from siltstone.query.hot.fill_queue import Filler
from siltstone.query.hot.residents import Residents
from siltstone.query.hot.stats import CacheStats

STATUS_SECONDS: Final = 2.0
"""Shortest interval in seconds between two status files of a process."""
STATUS_EXPIRY: Final = timedelta(days=1)
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
        self._directives = StateFiles(layout, durable=settings.durable, folder=layout.hot / "directives")
        self._statuses = StateFiles(layout, durable=False, folder=layout.hot / "processes")
        self._clock = clock

    def mark(self) -> Mark:
        """Return a mark that changes with every directive; empty if this process may not read the folder."""
        try:
            return file_mark(self._directives.folder)
        except OSError:
            return ()

    def all(self) -> list[CacheDirective]:
        """Return every directive, by name.

        Raises:
            Corruption, Unavailable: a directive cannot be read.
        """
        names = sorted(path.name.removesuffix(SUFFIX) for path in _files(self._directives.folder))
        return [self.of(name) for name in names]

    def readable(self) -> list[CacheDirective]:
        """Return all readable directives; skip damaged files, or all if the folder cannot be read."""
        directives = []
        with contextlib.suppress(SiltstoneError):
            for path in _files(self._directives.folder):
                with contextlib.suppress(SiltstoneError):
                    directives.append(self.of(path.name.removesuffix(SUFFIX)))
        return directives

    def of(self, name: str) -> CacheDirective:
        """Return the directive for a dataset."""
        data = self._directives.read(name + SUFFIX) or {}
        return CacheDirective(
            name=name, pinned=bool(data.get("pinned")), warm=data.get("warm"), evict=data.get("evict")
        )

    def pin(self, name: str) -> CacheDirective:
        """Request that a dataset is always resident."""
        return self._write(replace(self.of(name), pinned=True))

    def warm(self, name: str) -> CacheDirective:
        """Request that running processes fill a dataset."""
        return self._write(replace(self.of(name), warm=self._clock.new_id()))

    def evict(self, name: str) -> CacheDirective:
        """Unpin a dataset, and request that running processes evict it."""
        return self._write(replace(self.of(name), pinned=False, evict=self._clock.new_id()))

    def _write(self, directive: CacheDirective) -> CacheDirective:
        check_may_compact(self._role, doing="send directives to the hot cache")
        self._directives.write(directive.name + SUFFIX, directive.to_dict() | {"at": self._now()})
        return directive

    def _now(self) -> str:
        return utc_text(self._clock.now(), timespec="microseconds")

    def publish_stats(self, process: str, stats: CacheStats) -> None:
        """Write the status file of a process; do nothing if the process may not write it."""
        if not may_compact(self._role) or not self._layout.is_lake():
            return
        status = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "machine": machine(),
            "installation": installation(),
            "space": process_space(),
            "at": self._now(),
        }
        with contextlib.suppress(SiltstoneError):
            self._statuses.write(process + SUFFIX, status | stats.to_dict())

    def remove_status(self, process: str) -> None:
        """Delete the status file of a process at its shutdown."""
        with contextlib.suppress(SiltstoneError):
            self._statuses.remove(process + SUFFIX)

    def process_stats(self) -> list[dict[str, Any]]:
        """Return the status of the live processes. Delete the status files of dead processes of this machine."""
        live = []
        for path in _files(self._statuses.folder):
            with contextlib.suppress(SiltstoneError):
                status = self._statuses.read(path.name)
                if status is not None and not _is_dead(status, self._clock.now()):
                    live.append(status)
                elif status is not None and may_compact(self._role):
                    self._statuses.remove(path.name)
        return sorted(live, key=lambda status: (str(status.get("host")), int(status.get("pid") or 0)))


def _files(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.name.endswith(SUFFIX) and not path.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise Unavailable(f"{folder} cannot be read ({error}). Check the disk and its permissions.") from error


def _is_dead(status: dict[str, Any], now: datetime) -> bool:
    """True if a process is known to be dead, by its id in this PID namespace or a machine restart.

    An older version did not write where its processes run. Such a process counts as dead after `STATUS_EXPIRY`
    without a status.
    """
    import psutil

    if status.keys().isdisjoint({"space", "machine"}):
        return not isinstance(status.get("at"), str) or now - datetime.fromisoformat(status["at"]) > STATUS_EXPIRY
    if status.get("space") == process_space():
        pid = status.get("pid")
        return not (isinstance(pid, int) and psutil.pid_exists(pid))
    is_restarted = status.get("machine") != machine() and status.get("installation") == installation()
    return is_restarted and installation() != ""


class DirectiveFollower:
    """Follows the directives in one process, and writes its status. Slow work runs on the background thread."""

    def __init__(self, directives: DirectiveStore, residents: Residents, filler: Filler, *, clock: Clock) -> None:
        """Start with the pins. Earlier warmings and evictions do not apply to this process."""
        self._directives = directives
        self._residents = residents
        self._filler = filler
        self._clock = clock
        self._process = clock.new_id()
        self._mark: Mark | None = None
        self._mutex = threading.Lock()
        self._done: dict[str, CacheDirective] = {}
        self._published_seconds = -STATUS_SECONDS

    def check(self) -> None:
        """Schedule new directives, and the status if it is due. This is quick if there are none."""
        mark = self._directives.mark()
        if mark != self._mark:
            with self._mutex:  # the first look is queued before every later one
                first, self._mark = self._mark is None, mark
                directives = self._directives.readable() if first else None  # a warming from now on is followed
                self._residents.run_later(lambda: self._follow(directives))
        now = self._clock.monotonic_seconds()
        if now - self._published_seconds >= STATUS_SECONDS:
            self._published_seconds = now
            self._residents.run_later(self._publish_stats)

    def _follow(self, at_start: list[CacheDirective] | None) -> None:
        """Follow the directives that were read `at_start`, of which only pins apply, or those that are new by now."""
        first = at_start is not None
        for directive in self._directives.readable() if at_start is None else at_start:
            before = self._done.get(directive.name, CacheDirective(name=directive.name))
            self._done[directive.name] = directive
            slot = self._residents.slot(directive.name)
            if not first and directive.evict != before.evict:
                with slot.lock:
                    slot.note(pinned=False)
                    self._residents.evict(slot, "Not resident: it was evicted by a command.")
            if directive.pinned != before.pinned:
                with slot.lock:
                    slot.note(pinned=directive.pinned)
            if (directive.pinned and not before.pinned) or (not first and directive.warm != before.warm):
                slot.fill_scheduled = True
                self._filler.fill_in_background(slot, by_name=True)
        self._publish_stats()

    def _publish_stats(self) -> None:
        self._directives.publish_stats(self._process, self._residents.stats())

    def close(self) -> None:
        """Delete the status file of this process."""
        self._directives.remove_status(self._process)
