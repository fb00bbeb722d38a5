"""Ctrl-C at a safe moment: a step that must not be cut in two is finished first.

Python raises KeyboardInterrupt between any two instructions of the main thread: after a lock was taken and before a ``with``
block knows it, or while a ``finally`` runs. Inside `uninterrupted` an interrupt is noted, and raised when the block ends, or at
a call of `raise_noted`. The blocks are short: one try of a commit, one round of a writer queue. Other threads never get
interrupts, so nothing happens there.
"""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Final, Self

PATIENT_INTERRUPTS: Final = 3
"""From this many interrupts on in one block they are raised at once: the block hangs, and the user insists."""


class Uninterrupted:
    """Defers SIGINT while its block runs; one inside another block does nothing of its own."""

    def __init__(self) -> None:
        self._before: Any = None
        self._noted = 0

    def __enter__(self) -> Self:
        if not _blocks and threading.current_thread() is threading.main_thread():
            before = signal.getsignal(signal.SIGINT)
            if callable(before):
                self._before = before
                signal.signal(signal.SIGINT, self._note)
                _blocks.append(self)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted += 1
        if self._noted >= PATIENT_INTERRUPTS:
            self._before(number, frame)

    def raise_noted(self) -> None:
        """Raise an interrupt that was noted."""
        if self._noted:
            self._noted = 0
            self._before(signal.SIGINT, None)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            _blocks.clear()
            signal.signal(signal.SIGINT, self._before)
            if kind is None or not issubclass(kind, KeyboardInterrupt):
                self.raise_noted()


def raise_noted() -> None:
    """Raise an interrupt that a block has noted: between two steps, where nothing is half done."""
    if _blocks and threading.current_thread() is threading.main_thread():
        _blocks[0].raise_noted()


_blocks: Final[list[Uninterrupted]] = []
"""The outermost block of the main thread, if it is in one."""
