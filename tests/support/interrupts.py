"""Ctrl-C at a chosen moment, and whether a call ends afterwards."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable

import pytest

SOON_SECONDS = 10.0


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def interrupted_at(number: int, work: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> bool:
    """Run work.

    Ctrl-C arrives at the main thread's n-th entry of a condition; return False if there are fewer entries.
    """
    enter, entries = threading.Condition.__enter__, iter(range(number + 1))

    def enter_interrupted(condition: threading.Condition) -> bool:
        entered = enter(condition)
        if threading.get_ident() == threading.main_thread().ident and next(entries, None) == number:
            interrupt()
        return entered

    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(threading.Condition, "__enter__", enter_interrupted)
        work()
    return next(entries, None) is None


def ends_soon(work: Callable[[], object]) -> bool:
    """Return whether a call on another thread ends in time."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(SOON_SECONDS)
    return not thread.is_alive()
