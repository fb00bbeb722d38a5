"""A buffered producer: many threads insert rows one by one, and the rows are appended to a log in batches.

Terms. The rows of one `insert` are a *parcel*. Parcels *wait* until a *flush* writes all waiting parcels as one batch.

Flow:

1. `insert` puts a parcel into the buffer and returns a future. The thread that fills the buffer (by rows or bytes)
   flushes it, and so waits for the disk. So callers cannot insert faster than the disk writes for long.
2. A background thread flushes parcels that have waited too long.
3. When the batch is durable, the future of each of its parcels gets the acknowledgement. It has the sequence, the
   number of written rows, and the rejected rows by their position in the parcel.

A bad row is rejected by itself. If a batch fails as a whole, the futures of all its parcels fail with that error. The
next `flush` or `close` raises it. So a caller that never reads a future does not mistake lost rows for written ones. A
caller that knows that the rows were not written may insert them again. A crash loses waiting parcels, which were not
acknowledged. `close` writes them; a closed producer has lost nothing. Ctrl-C is deferred while a lock is held, and
until the futures of a batch are completed (see `delta.group_commit`).
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Final

from siltstone.clock import Clock
from siltstone.errors import InvalidRequest
from siltstone.host.deferred_interrupts import INTERRUPT_CHECK_SECONDS, Uninterrupted, raise_noted
from siltstone.model.reports import AppendAck

VALUE_BYTES: Final = 8
"""Assumed size in bytes of a value that is neither text nor bytes nor a collection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a batch: rows, bytes and the age of the oldest waiting row."""

    rows: int
    seconds: float
    size_bytes: int

    def check(self, dataset: str) -> None:
        """Raise InvalidRequest for a limit that is not a positive number: it would never flush, or always."""
        limits: dict[str, object] = {"rows": self.rows, "seconds": self.seconds, "bytes": self.size_bytes}
        for name, value in limits.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < threading.TIMEOUT_MAX:
                raise InvalidRequest(
                    f"Dataset {dataset}: {name} of a producer must be a positive number, not {value!r}."
                )


@dataclass(frozen=True, slots=True)
class _Parcel:
    rows: Sequence[Any]
    future: "Future[AppendAck]"


class Producer:
    """Buffers rows for one log and appends them in batches. Safe to share between threads."""

    def __init__(self, append: Callable[[list[Any]], AppendAck], limits: Limits, *, clock: Clock) -> None:
        """Start with an empty buffer, and a thread that watches its age."""
        self._append = append
        self._limits = limits
        self._clock = clock
        self._changed = threading.Condition()  # guards all fields that follow
        self._waiting: list[_Parcel] = []
        self._rows = 0
        self._bytes = 0
        self._oldest_seconds = 0.0
        self._failure: BaseException | None = None
        self._closed = False
        self._flushing = threading.Lock()  # one batch at a time, in the order of insertion
        self._watcher = threading.Thread(target=self._watch, name="siltstone-producer", daemon=True)
        self._watcher.start()

    def insert(self, rows: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> "Future[AppendAck]":
        """Insert one row, or several that are acknowledged together.

        Returns:
            A future. Its result means that the rows are durable, except those it names as rejected.

        Raises:
            InvalidRequest: the producer is closed, or there is no row.
        """
        parcel_rows = [rows] if isinstance(rows, Mapping) else list(rows)
        if not parcel_rows:
            raise InvalidRequest("There is no row to insert.")
        parcel = _Parcel(parcel_rows, Future())
        parcel.future.set_running_or_notify_cancel()  # an inserted parcel is written: no caller can cancel it
        size = sum(_weight(row) for row in parcel_rows)
        with Uninterrupted(), self._changed:
            if self._closed:
                raise InvalidRequest("This producer is closed. Make another one.")
            if not self._waiting:
                self._oldest_seconds = self._clock.monotonic_seconds()
            self._waiting.append(parcel)
            self._rows += len(parcel_rows)
            self._bytes += size
            full = self._rows >= self._limits.rows or self._bytes >= self._limits.size_bytes
            self._changed.notify_all()
        if full:
            self._write()
        return parcel.future

    def flush(self) -> None:
        """Write all waiting parcels, and return when they are durable.

        Raises:
            SiltstoneError: this batch or an earlier one was not written.
        """
        self._write()
        with Uninterrupted(), self._changed:
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Write all waiting parcels, and accept no more; safe to repeat.

        Raises:
            SiltstoneError: this batch or an earlier one was not written.
        """
        with Uninterrupted(), self._changed:
            self._closed = True
            self._changed.notify_all()
        self._watcher.join()
        self.flush()

    def __enter__(self) -> "Producer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _watch(self) -> None:
        """Flush parcels that have waited too long, until the producer is closed."""
        while True:
            with self._changed:
                if self._closed:
                    return
                remaining = None
                if self._waiting:
                    remaining = self._oldest_seconds + self._limits.seconds - self._clock.monotonic_seconds()
                if remaining is None or remaining > 0:
                    self._changed.wait(remaining)
                    continue
            self._write()

    def _write(self) -> None:
        """Append all waiting parcels. An error is set on their futures, and stored for the next flush or close.

        Futures are completed without a lock, because a listener may insert again.
        """
        taken: list[_Parcel] = []
        ack: AppendAck | None = None
        failure: BaseException | None = None
        with Uninterrupted():
            while not self._flushing.acquire(timeout=INTERRUPT_CHECK_SECONDS):
                raise_noted()
            try:
                with self._changed:
                    taken, self._waiting = self._waiting, []
                    self._rows = self._bytes = 0
                if taken:
                    ack = self._append([row for parcel in taken for row in parcel.rows])
            except BaseException as error:  # noqa: BLE001  # raised below, or by the next flush
                failure = error
                with self._changed:
                    self._failure = self._failure or error
            finally:
                self._flushing.release()
            if ack is not None:
                _acknowledge(taken, ack)
            if failure is not None:
                for parcel in taken:
                    parcel.future.set_exception(failure)
                if not isinstance(failure, Exception):
                    raise failure


def _acknowledge(taken: Sequence[_Parcel], ack: AppendAck) -> None:
    """Give each parcel its share of a batch's acknowledgement."""
    refused = list(ack.refused)
    start = 0
    for parcel in taken:
        count = len(parcel.rows)
        parcel_refused = tuple(replace(r, row=r.row - start) for r in refused if start <= r.row < start + count)
        refused = refused[len(parcel_refused) :]  # refused rows are in order
        written = count - len(parcel_refused)
        start += count
        parcel.future.set_result(
            AppendAck(
                sequence=ack.sequence if written else None,
                rows=written,
                applied=ack.applied and written > 0,
                refused=parcel_refused,
            )
        )


def _weight(value: Any) -> int:  # noqa: ANN401
    """Return the approximate size of a value in bytes.

    >>> _weight({"at": 7, "page": "/shop", "tags": ["a", "b"]})
    15
    """
    match value:
        case str() | bytes():
            return len(value)
        case Mapping():
            return sum(_weight(inner) for inner in value.values())
        case list() | tuple():
            return sum(_weight(inner) for inner in value)
        case _:
            return VALUE_BYTES
