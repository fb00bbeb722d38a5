"""Ctrl-C at a safe moment: a step that must not be interrupted is finished first.

Python raises KeyboardInterrupt between any two instructions of the main thread. It may come after a lock was acquired
and before a ``with`` block knows it, or while a ``finally`` runs. Inside `Uninterrupted` an interrupt is recorded, and
raised when the block ends, or at a call of `raise_noted`. The blocks are short: one attempt of a commit, one round of a
writer queue. Other threads never get interrupts, so the block has no effect there.
"""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Final, Self

PATIENT_INTERRUPTS: Final = 3
"""Number of interrupts in one block from which they are raised at once. The block hangs, and the user insists."""
INTERRUPT_CHECK_SECONDS: Final = 0.1
"""Seconds after which a wait inside a block calls `raise_noted`."""


class Uninterrupted:
    """Defers SIGINT while its block runs. A nested block has no effect of its own."""

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
        """Raise a recorded interrupt."""
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
    """Raise an interrupt that a block has recorded. Called between two steps, where no step is half done."""
    if _blocks and threading.current_thread() is threading.main_thread():
        _blocks[0].raise_noted()


_blocks: Final[list[Uninterrupted]] = []
"""The outermost block of the main thread, if it is in one."""
