"""Listeners that are notified of purges and drops, so that no process memory keeps deleted rows."""

from collections.abc import Callable
from pathlib import Path

Listener = Callable[[Path], object]


class PurgeListeners:
    """The listeners of one lake object. Caches of rows register here."""

    def __init__(self) -> None:
        """Start without listeners."""
        self._listeners: list[Listener] = []

    def add(self, listener: Listener) -> None:
        """Call `listener` with the folder of each dataset that is purged or dropped from now on."""
        self._listeners.append(listener)

    def notify(self, folder: Path) -> None:
        """Call all listeners: rows of this folder must leave memory."""
        for listener in tuple(self._listeners):
            listener(folder)
