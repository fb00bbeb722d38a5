"""Requests to the holder of the compactor's lease: files of the lake, so that no port has to be open.

Terms. A *requester* asks, the *holder* of the lease takes a request, does it and answers; the requester *follows* meanwhile.
The files are below ``_system/compactor/requests``, named by the id of the request:

1. ``<id>.asked``   the requester has renamed its draft to this name: from now on it is asked. Removing it withdraws it;
2. ``<id>.taken``   the holder has renamed it: it begins. Of withdrawing and taking exactly one succeeds;
3. ``<id>.told``    what happens meanwhile, one line of JSON each; information for people;
4. ``<id>.answer``  the result, linked under this name only if there is none yet, and synced. Then ``<id>.taken`` goes.

The requester reads the answer and removes all of them. It holds a presence under the request's id for as long as it follows, and
touches its file: a request that nobody follows any more, by the presence on this machine and by a file that is not touched on
another one, is not begun.

What a crash leaves. The requester's before 1: a draft, which is swept; after 1: a request that nobody follows, which is not
begun. The holder's after 2 and before 4: a taken request without an answer; the next holder does it again, and every work can be
repeated; after 4: an answer beside the taken request, which is then not done again.
"""

import contextlib
import json
import os
import socket
from pathlib import Path
from typing import Any, Final

from siltstone.clock import Clock
from siltstone.coordination.host_identity import machine, process_name
from siltstone.coordination.liveness import Presence, is_live
from siltstone.coordination.state_files import write_draft
from siltstone.delta.fsync import sync_directory
from siltstone.delta.layout import Layout
from siltstone.errors import Corruption, InvalidRequest, Reason, Unavailable
from siltstone.failpoints import reach
from siltstone.model.compaction_request import MAX_REQUEST_BYTES, Answer, Request, Wish

ASKED, TAKEN, TOLD, ANSWER, BAD = ".asked", ".taken", ".told", ".answer", ".bad"
DRAFT: Final = ".draft"
TOUCH_SECONDS: Final = 5.0
"""How often a requester shows that it still follows."""
SILENT_SECONDS: Final = 60.0
"""A requester on another machine whose file was not touched for so long does not follow any more."""
KEPT_SECONDS: Final = 3_600.0
"""What nobody has read after this time is removed."""


class Requests:
    """The requests of one lake."""

    def __init__(self, layout: Layout, *, clock: Clock, durable: bool) -> None:
        """Remember where they are; nothing is read or written yet."""
        self._layout = layout
        self._folder = layout.compactor / "requests"
        self._clock = clock
        self._durable = durable
        self._touched: dict[str, tuple[float, float]] = {}

    # ---- the requester -------------------------------------------------------------------------------------------

    def ask(self, wish: Wish) -> "Following":
        """Ask the holder; the answer comes to what is returned, which has to be closed.

        Raises:
            Unavailable: the lake cannot be written; nothing was asked.
        """
        request = Request(
            id=self._clock.new_id(),
            wish=wish,
            machine=machine(),
            host=socket.gethostname(),
            pid=os.getpid(),
            asked_at=self._clock.now().isoformat(timespec="milliseconds"),
        )
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            presence = Presence(self._layout.work, request.id)
            try:
                draft = self._path(request.id, DRAFT)
                write_draft(draft, request.to_json(), durable=self._durable)
                reach("request.after_draft")
                draft.rename(self._path(request.id, ASKED))
                self._sync()
                reach("request.after_ask")
            except BaseException:
                presence.close()
                raise
        except OSError as error:
            raise Unavailable(
                f"The compactor cannot be asked: {self._folder} cannot be written ({error}). Check the disk and its permissions."
            ) from error
        return Following(self, request, presence, self._clock)

    def withdraw(self, request_id: str) -> bool:
        """Take a request back; False if it was begun, and goes on."""
        try:
            self._path(request_id, ASKED).unlink()
        except FileNotFoundError:
            return False
        return True

    def is_taken(self, request_id: str) -> bool:
        """Tell whether a holder has begun it."""
        return self._path(request_id, TAKEN).exists()

    def answer_of(self, request_id: str) -> Answer | None:
        """Return the answer, if it is there.

        Raises:
            Corruption: it cannot be read.
        """
        path = self._path(request_id, ANSWER)
        try:
            return Answer.from_json(path.read_text())
        except FileNotFoundError:
            return None
        except (InvalidRequest, UnicodeDecodeError) as error:
            raise Corruption(
                f"{path} cannot be read ({error}). Look at silt compactor status.", reason=Reason.DAMAGED_FILE
            ) from error

    def told(self, request_id: str, *, after: int) -> tuple[list[dict[str, Any]], int]:
        """Return what was told after a place in the file, whole lines only, and the place to go on from."""
        try:
            with self._path(request_id, TOLD).open("rb") as file:
                file.seek(after)
                text = file.read()
        except FileNotFoundError:
            return [], after
        whole = text[: text.rfind(b"\n") + 1]
        lines = []
        for line in whole.splitlines():
            with contextlib.suppress(
                ValueError, RecursionError
            ):  # what is told is for people; a line that is cut is left out
                lines.append(json.loads(line))
        return lines, after + len(whole)

    def touch(self, request_id: str) -> None:
        """Show that somebody follows."""
        for ending in (ASKED, TAKEN):
            with contextlib.suppress(FileNotFoundError):
                os.utime(self._path(request_id, ending))

    def forget(self, request_id: str) -> None:
        """Remove all that is left of a request; the answer last."""
        for ending in (DRAFT, ASKED, TAKEN, TOLD, ANSWER):
            self._path(request_id, ending).unlink(missing_ok=True)
        self._touched.pop(request_id, None)

    # ---- the holder ----------------------------------------------------------------------------------------------

    def waiting(self) -> list[Request]:
        """Return what was asked and not answered, oldest first; what is no request is put aside as ``<id>.bad``."""
        found = []
        for request_id, endings in self._listed().items():
            if ANSWER in endings:
                if TAKEN in endings:  # the holder died between the two
                    self._path(request_id, TAKEN).unlink(missing_ok=True)
                continue
            for ending in (ASKED, TAKEN):
                if ending in endings and (request := self._read(self._path(request_id, ending))) is not None:
                    found.append(request)
                    break
        return sorted(found, key=lambda request: (request.asked_at, request.id))

    def _read(self, path: Path) -> Request | None:
        try:
            request = Request.from_json(path.read_text()) if path.stat().st_size <= MAX_REQUEST_BYTES else None
        except FileNotFoundError:
            return None
        except (InvalidRequest, UnicodeDecodeError, IsADirectoryError):
            request = None
        if request is None or request.id != path.stem:
            with contextlib.suppress(OSError):  # gone, or we may only look: it is left out either way
                path.rename(path.with_suffix(BAD))
            return None
        return request

    def is_followed(self, request: Request) -> bool:
        """Tell whether its requester still waits for the answer, as far as can be told."""
        if request.machine == machine():
            return is_live(self._layout.work, request.id)
        changed = max((self._changed(request.id, ending) for ending in (ASKED, TAKEN)), default=0.0)
        now = self._clock.monotonic_seconds()
        seen = self._touched.get(request.id)
        if seen is None or seen[0] != changed:
            seen = self._touched[request.id] = (changed, now)
        return now - seen[1] < SILENT_SECONDS

    def begin(self, request: Request) -> bool:
        """Begin a request; False if it was withdrawn. One that a dead holder had begun is begun again."""
        try:
            self._path(request.id, ASKED).rename(self._path(request.id, TAKEN))
        except FileNotFoundError:
            if not self.is_taken(request.id):
                return False
        self._sync()
        reach("request.after_take")
        return True

    def tell(self, request_id: str, line: dict[str, Any]) -> None:
        """Say what happens, to whom it concerns; a disk that refuses that harms nothing."""
        with contextlib.suppress(OSError), self._path(request_id, TOLD).open("a") as file:
            file.write(json.dumps(line, default=str) + "\n")

    def answer(self, answer: Answer) -> None:
        """Answer a request, durably; the first answer stands.

        Raises:
            Unavailable: it cannot be written now; try again.
        """
        draft = self._path(answer.id, f"{ANSWER}-{process_name()}{DRAFT}")
        reach("request.before_answer")
        try:
            write_draft(draft, answer.to_json(), durable=self._durable)
            with contextlib.suppress(FileExistsError):
                self._path(answer.id, ANSWER).hardlink_to(draft)
            self._sync()
            reach("request.after_answer")
            draft.unlink()
            for ending in (ASKED, TAKEN):
                self._path(answer.id, ending).unlink(missing_ok=True)
        except OSError as error:
            raise Unavailable(
                f"{self._folder} cannot be written ({error}). Check the disk and its permissions."
            ) from error

    def sweep(self) -> None:
        """Remove what nobody will read any more: files of requesters that are gone, when they are old."""
        cut = self._clock.now().timestamp() - KEPT_SECONDS
        for request_id, endings in self._listed().items():
            old = all(self._changed(request_id, ending) < cut for ending in endings)
            if old and not is_live(self._layout.work, request_id):
                for ending in endings:
                    with contextlib.suppress(IsADirectoryError, PermissionError):  # a folder is none of ours
                        self._path(request_id, ending).unlink(missing_ok=True)

    # ---- small things --------------------------------------------------------------------------------------------

    def _listed(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        try:
            names = sorted(path.name for path in self._folder.iterdir())
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise Unavailable(
                f"{self._folder} cannot be read ({error}). Check the disk and its permissions."
            ) from error
        for name in names:
            stem, dot, ending = name.partition(".")
            if stem:
                found.setdefault(stem, set()).add(f"{dot}{ending}")
        return found

    def _changed(self, request_id: str, ending: str) -> float:
        try:
            return self._path(request_id, ending).stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def _path(self, request_id: str, ending: str) -> Path:
        return self._folder / f"{request_id}{ending}"

    def _sync(self) -> None:
        if self._durable:
            sync_directory(self._folder)


class Following:
    """A request of ours that somebody else does. Close it, whatever comes of it."""

    def __init__(self, requests: Requests, request: Request, presence: Presence, clock: Clock) -> None:
        """Use `Requests.ask`."""
        self.request = request
        self._requests = requests
        self._presence = presence
        self._clock = clock
        self._place = 0
        self._touched_seconds = clock.monotonic_seconds()

    def told(self) -> list[dict[str, Any]]:
        """Return what was told since the last time."""
        lines, self._place = self._requests.told(self.request.id, after=self._place)
        return lines

    def answer(self) -> Answer | None:
        """Return the answer, if it is there, and show that we still wait for it."""
        found = self._requests.answer_of(self.request.id)
        now = self._clock.monotonic_seconds()
        if found is None and now - self._touched_seconds >= TOUCH_SECONDS:
            self._touched_seconds = now
            self._requests.touch(self.request.id)
        return found

    def withdraw(self) -> bool:
        """Take it back; False if it was begun, and goes on."""
        return self._requests.withdraw(self.request.id)

    def close(self, *, goes_on: bool = False) -> None:
        """Stop following; one that does not go on is removed."""
        if not goes_on:
            self._requests.forget(self.request.id)
        self._presence.close()
