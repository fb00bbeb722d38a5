"""The writer queue: batches that wait for one table of one process are committed together.

There is no thread. The first caller that finds nobody committing becomes the *leader*: it takes everything that is
waiting, commits it as one entry with consecutive sequences, and hands each caller its own result. Whoever arrives
meanwhile waits for the next round. One commit so carries one batch when the table is quiet and many when it is busy.

A batch that fails its own check (an idempotent producer's repeat) is answered without failing the others. If the
commit itself fails, every caller of that round gets the error: nothing of the round was written.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from siltstone.errors import Unavailable

B = TypeVar("B")
R = TypeVar("R")


@dataclass(slots=True, eq=False)
class _Ticket(Generic[B, R]):
    batch: B
    result: R | None = None
    error: BaseException | None = None
    done: threading.Event = field(default_factory=threading.Event)


class WriterQueue(Generic[B, R]):
    """Groups what several threads write at once."""

    def __init__(self, commit: Callable[[Sequence[B]], Sequence[R]], *, bound: int, wait_seconds: float) -> None:
        """Commit groups with `commit`, which returns one result a batch, in order; let at most `bound` batches wait."""
        self._commit = commit
        self._wait_seconds = wait_seconds
        self._places = threading.BoundedSemaphore(bound)
        self._leader = threading.Lock()
        self._mutex = threading.Lock()
        self._waiting: list[_Ticket[B, R]] = []

    def submit(self, batch: B) -> R:
        """Return the batch's result once it is durable.

        Raises:
            Unavailable: the queue stayed full for the whole time limit.
        """
        if not self._places.acquire(timeout=self._wait_seconds):
            raise Unavailable("The writer queue is full; nothing was written. Write slower or in larger batches.")
        try:
            return self._submit(_Ticket(batch))
        finally:
            self._places.release()

    def _submit(self, ticket: _Ticket[B, R]) -> R:
        with self._mutex:
            self._waiting.append(ticket)
        with self._leader:
            if not ticket.done.is_set():
                self._lead()
        if ticket.error is not None:
            raise ticket.error
        assert ticket.result is not None  # noqa: S101  # a done ticket has a result or an error
        return ticket.result

    def _lead(self) -> None:
        with self._mutex:
            group, self._waiting = self._waiting, []
        try:
            results = self._commit([ticket.batch for ticket in group])
            for ticket, result in zip(group, results, strict=True):
                ticket.result = result
        except BaseException as error:
            for ticket in group:
                ticket.error = error
            raise
        finally:
            for ticket in group:
                ticket.done.set()
