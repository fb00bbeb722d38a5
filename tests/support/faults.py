"""Faults around the writing of a log entry, and Ctrl-C inside an event."""

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
from deltalake.exceptions import CommitFailedError, DeltaError

from siltstone.delta.table import Table
from tests.support.internals import replace_entry_writing

ERRORS: dict[str, type[Exception]] = {
    "a lost race": CommitFailedError,
    "an error of delta-rs": DeltaError,
    "an error of the disk": OSError,
}
Write = Callable[[], None]
Fault = Callable[[Write], None]


class InterruptedEvent(threading.Event):
    """An event whose lock is held when Ctrl-C arrives, as in the first instructions of `threading.Event.set`."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def set(self) -> None:
        self.lock.acquire()
        os.kill(os.getpid(), signal.SIGINT)
        super().set()
        self.lock.release()


class FaultyEntry:
    """Replaces the writing of an entry: runs one fault per try, then writes as usual."""

    def __init__(self, *faults: Fault) -> None:
        self.left = list(faults)
        self.tries = 0

    def write(self, real: Write) -> None:
        self.tries += 1
        if self.left:
            self.left.pop(0)(real)
        else:
            real()

    def install(self, monkeypatch: pytest.MonkeyPatch) -> "FaultyEntry":
        """Replace the function that writes an entry."""
        fake = self

        def write_entry(table: Table, *given: Any, **named: Any) -> None:  # noqa: ANN401
            fake.write(lambda: real(table, *given, **named))

        real = replace_entry_writing(monkeypatch, write_entry)
        return self


def lands_then_raises(error: Exception, *, after: Callable[[], object] = lambda: None) -> Fault:
    """Write the entry, run an action, and then fail."""

    def fault(real: Write) -> None:
        real()
        after()
        raise error

    return fault


def raises(error: Exception, *, before: Callable[[], object] = lambda: None) -> Fault:
    """Fail without writing."""

    def fault(_real: Write) -> None:
        before()
        raise error

    return fault


def overtaken(by: Callable[[], object]) -> Fault:
    """Let another writer commit first, then write: the real error of a lost race."""

    def fault(real: Write) -> None:
        by()
        real()

    return fault
