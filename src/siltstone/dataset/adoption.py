"""Unregistered datasets: finds datasets on disk that the registry does not name, and registers them again.

A registry that was restored from an older copy does not name datasets that were created since. Their folders are never
swept (`dataset.dataset_folder`). Both tables carry the specification as a property, so the registry's row can be
rewritten from it.
"""

from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from siltstone.clock import Clock
from siltstone.dataset.dataset_folder import Marker, read_marker, write_marker
from siltstone.dataset.orphan_folders import UnregisteredFolder, unregistered_folders
from siltstone.dataset.registry import LIVE, Registration, Registry
from siltstone.dataset.store import Store
from siltstone.delta.layout import BASE, Layout
from siltstone.delta.table_reader import LogChanged, TableReader
from siltstone.errors import Conflict, Corruption, NotFound, SiltstoneError
from siltstone.model.names import DatasetName
from siltstone.model.schema import own_columns
from siltstone.model.spec import PROPERTY_SPEC, Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Unregistered:
    """A folder with a dataset that the registry does not name; `obstacle` is the reason if it cannot be adopted."""

    dataset: str
    incarnation: str
    path: str
    sequence: int | None = None
    rows_in_base: int | None = None
    obstacle: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return asdict(self)

    def described(self) -> str:
        """Return the finding and the remedy in two sentences."""
        finding = f"Dataset {self.dataset}: {self.path} holds committed data, and the registry does not name it."
        todo = "Run silt doctor --repair to register it again." if self.obstacle is None else self.obstacle
        return f"{finding} {todo}"


class Adoption:
    """Finds unregistered datasets of one lake and registers them again."""

    def __init__(self, registry: Registry, layout: Layout, *, clock: Clock, durable: bool) -> None:
        self._registry = registry
        self._layout = layout
        self._clock = clock
        self._durable = durable

    def unregistered(self) -> list[Unregistered]:
        """List the unregistered datasets by name; nothing is changed."""
        folders = sorted(
            unregistered_folders(self._registry, self._layout), key=lambda folder: (folder.name, folder.path)
        )
        live = {row.name for row in self._registry.all()} if folders else set()
        shared = {name for name, count in Counter(folder.name for folder in folders).items() if count > 1}
        return [self._diagnosed(folder, live=live, shared=shared) for folder in folders]

    def adopt(self, name: DatasetName, incarnation: str) -> Unregistered:
        """Register an unregistered dataset again. A crash leaves it registered or not, and its rows unchanged.

        Raises:
            NotFound: there is no such unregistered dataset.
            Conflict: it cannot be adopted, or a dataset of that name was created meanwhile. Nothing was changed.
        """
        datasets = self.unregistered()
        dataset = next((d for d in datasets if (d.dataset, d.incarnation) == (str(name), incarnation)), None)
        if dataset is None:
            raise NotFound(f"There is no unregistered dataset {name} with incarnation {incarnation}.")
        if dataset.obstacle is not None:
            raise Conflict(f"Dataset {name} was not registered: {dataset.obstacle}")
        store = self._store(UnregisteredFolder(name, Path(dataset.path)))
        if read_marker(store.path) is None:  # made by an older Siltstone
            write_marker(store.path, Marker(dataset=str(name), incarnation=incarnation), durable=self._durable)
        self._registry.adopt(name, incarnation, store.schema, store.spec)
        return dataset

    def _diagnosed(
        self, folder: UnregisteredFolder, *, live: set[DatasetName], shared: set[DatasetName]
    ) -> Unregistered:
        dataset = Unregistered(dataset=str(folder.name), incarnation=folder.path.name, path=str(folder.path))
        marker = read_marker(folder.path)
        obstacle = None
        if marker is not None and marker != Marker(dataset=dataset.dataset, incarnation=dataset.incarnation):
            obstacle = f"Its marker names {marker.dataset}: it was moved or copied here. Move it back."
        elif folder.name in live:
            obstacle = "Another dataset has that name now. Drop that one first, or move this folder away."
        elif folder.name in shared:
            obstacle = "There are several such folders of that name. Move all but one out of the lake."
        if obstacle is not None:
            return replace(dataset, obstacle=obstacle)
        try:
            snapshot = self._store(folder).snapshot()
        except (SiltstoneError, LogChanged, OSError) as error:
            return replace(dataset, obstacle=f"It cannot be read: {error}")
        return replace(dataset, sequence=snapshot.sequence, rows_in_base=snapshot.base.rows)

    def _store(self, folder: UnregisteredFolder) -> Store:
        """Return the storage of an unregistered dataset, from the properties of its base."""
        base = TableReader(folder.path / BASE, clock=self._clock, label=f"Dataset {folder.name}", must_exist=True)
        text = base.properties().get(PROPERTY_SPEC)
        if text is None:
            raise Corruption(
                f"Dataset {folder.name}: {base.path} lacks the property {PROPERTY_SPEC}. Restore it from a backup."
            )
        return self._registry.store(
            Registration(
                name=folder.name,
                n=0,
                incarnation=folder.path.name,
                state=LIVE,
                spec=Spec.from_json(text),
                schema=own_columns(base.columns()),
                at=self._clock.now(),
            )
        )
