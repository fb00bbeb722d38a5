"""Resolves dataset names to stores. The lookup is cached until the registry changes."""

import threading
from dataclasses import dataclass

from siltstone.dataset.registry import Registry
from siltstone.dataset.store import Store
from siltstone.model.names import DatasetName


@dataclass(frozen=True, slots=True)
class _Found:
    version: int
    store: Store


class Sources:
    """The stores of dataset names, with open tables. Thread-safe."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._found: dict[str, _Found] = {}
        self._mutex = threading.Lock()

    def store(self, name: str) -> Store:
        """Return the store that a name has now.

        Raises:
            NotFound: there is no such dataset.
        """
        version = self._registry.version()
        known = self._found.get(name)
        if known is not None and known.version == version:
            return known.store
        with self._mutex:
            found = self._registry.find(DatasetName.parse(name))
            same = known is not None and known.store.incarnation == found.incarnation
            store = known.store if known is not None and same else self._registry.store(found)
            self._found[name] = _Found(version, store)
            return store

    def forget(self, name: str) -> None:
        """Release the open tables of a dataset."""
        with self._mutex:
            self._found.pop(name, None)
