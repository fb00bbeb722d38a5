"""Damages of a lake that can be found without reading rows, and their repair.

| damage | repair |
|---|---|
| a folder with a dataset that the registry does not name | register it again |
| commits of another program on the registry, the leases or the journal | undo them by one commit (`delta.foreign_commits`) |
| a registered dataset without its folder | drop its name, only on request: its disk may not be mounted |
| a journal that cannot be queried | rebuild its projection from the log |
| tables of a dataset that its readers and writers refuse | see `dataset.table_repair` |
| data files of a dataset that are missing or cannot be read, found by a status | none: restore a backup |
| a state file of the compactor that cannot be read | delete it: the next cycle writes it again |

If the registry cannot be read, no dataset is checked. Repair the registry first, then check again. A check changes
nothing. Each repair is one step that can be repeated. A crash leaves the damage or the repaired state.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Final

from siltstone.clock import Clock
from siltstone.compaction.journal.journal import Journal
from siltstone.compaction.operations.dataset_status import status
from siltstone.config import Settings
from siltstone.coordination.state_files import CYCLES, PAUSED, STATUS, STOP, StateFiles
from siltstone.dataset import table_repair
from siltstone.dataset.adoption import Adoption
from siltstone.dataset.registry import Registration, Registry
from siltstone.delta.checkpoints import Retention
from siltstone.delta.layout import JOURNAL, REGISTRY, SYSTEM, Layout, has_versions
from siltstone.delta.table import Table
from siltstone.errors import Conflict, Corruption, Gone, InvalidRequest, NotFound, SiltstoneError, Unavailable
from siltstone.model.names import DatasetName


class DamageKind(StrEnum):
    """Kinds of damage."""

    UNREGISTERED = "unregistered"
    MISSING = "missing"
    JOURNAL = "journal"
    NOTE = "note"
    TABLES = "tables"
    FILES = "files"
    SYSTEM = "system"


_ORDER: Final = (DamageKind.MISSING, DamageKind.TABLES, DamageKind.FILES)
"""Order in which damages of datasets are listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """One damage: its subject, the finding, and the remedy. Without `repairable` a person must repair it."""

    kind: DamageKind
    subject: str
    """Name of the dataset, the journal, the system table or the file."""
    finding: str
    remedy: str
    repairable: bool = True
    incarnation: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the damage as plain data."""
        return asdict(self) | {"kind": self.kind.value}


def system_tables(layout: Layout, *, settings: Settings, clock: Clock) -> tuple[Table, ...]:
    """Return the registry, the leases and the journal as tables. Nothing is read yet."""
    return tuple(
        Table(
            path,
            settings=settings,
            clock=clock,
            retention=Retention(hours=settings.changes_retention_hours),
            label=f"Table {path}",
        )
        for path in (layout.registry, layout.leases, layout.events)
    )


class Repairs:
    """Finds and repairs the damages of one lake."""

    def __init__(
        self,
        *,
        registry: Registry,
        adoption: Adoption,
        journal: Journal,
        state_files: StateFiles,
        system: Iterable[Table],
    ) -> None:
        self._system = {f"{SYSTEM}/{table.path.name}": table for table in system}
        self._registry = registry
        self._adoption = adoption
        self._journal = journal
        self._state_files = state_files

    def damages(self) -> list[Damage]:
        """List every damage. Nothing is changed."""
        damages = list(self._refused_system())
        refused = {damage.subject for damage in damages}
        if REGISTRY not in refused:
            datasets = [damage for row in self._registry.all() if (damage := self._damage_of(row)) is not None]
            damages += [*self._unregistered(), *sorted(datasets, key=lambda damage: _ORDER.index(damage.kind))]
        if JOURNAL not in refused:
            damages += self._broken_journal()
        return [*damages, *self._broken_state_files()]

    def repair(self, damage: Damage, *, drop_missing: bool = False) -> None:
        """Repair one damage. The name of a dataset whose folder is missing is dropped only with `drop_missing`.

        Raises:
            InvalidRequest: a folder is missing, and `drop_missing` is not set. Nothing was changed.
            Conflict: the damage cannot be repaired, or has changed meanwhile. Nothing was changed.
        """
        if not damage.repairable or damage.kind is DamageKind.FILES:
            raise Conflict(f"{damage.subject} was not repaired: {damage.remedy}")
        name = damage.subject
        match damage.kind:
            case DamageKind.UNREGISTERED:
                self._adoption.adopt(DatasetName.parse(name), damage.incarnation or "")
            case DamageKind.MISSING:
                self._drop_missing(name, allowed=drop_missing)
            case DamageKind.JOURNAL:
                log = self._journal.log()
                if log is not None:
                    log.rebuild()
            case DamageKind.TABLES:
                table_repair.repair(self._registry.store(self._registry.find(DatasetName.parse(name))))
            case DamageKind.SYSTEM:
                self._system[name].undo_foreign()
            case DamageKind.NOTE:
                self._state_files.remove(name)

    def _drop_missing(self, name: str, *, allowed: bool) -> None:
        if not allowed:
            raise InvalidRequest(
                f"The folder of dataset {name} is missing; nothing was changed. Mount its disk or restore the folder. "
                "To drop its name, repair with drop_missing=True (silt doctor --repair --drop-missing)."
            )
        if not any(str(row.name) == name and self._registry.broken(row) for row in self._registry.all()):
            raise Conflict(f"Dataset {name} is not missing any more; nothing was changed.")
        self._registry.drop(DatasetName.parse(name))

    def _refused_system(self) -> Iterator[Damage]:
        """List the system tables to which another program has committed."""
        for subject, table in self._system.items():
            try:
                if not has_versions(table.path):
                    continue
                table.pin()
            except Corruption as error:
                with suppress(Conflict):
                    damage = table_repair.foreign_damage(table, str(error))
                    if damage.repairable or subject != JOURNAL:  # `_broken_journal` reports the journal
                        yield Damage(kind=DamageKind.SYSTEM, subject=subject, **asdict(damage))
            except (SiltstoneError, OSError):
                continue  # unavailable now, which is not a damage

    def _unregistered(self) -> Iterator[Damage]:
        for folder in self._adoption.unregistered():
            yield Damage(
                kind=DamageKind.UNREGISTERED,
                subject=folder.dataset,
                finding=f"{folder.path} holds committed data, and the registry does not name it.",
                remedy=folder.obstacle or f"Register it again, with its {folder.sequence} sequences.",
                repairable=folder.obstacle is None,
                incarnation=folder.incarnation,
            )

    def _damage_of(self, row: Registration) -> Damage | None:
        """Return the damage of a dataset: its folder is missing, its tables are refused, or files cannot be read."""
        damaged = partial(Damage, subject=str(row.name), incarnation=row.incarnation)
        if error := self._registry.broken(row):
            remedy = "Drop the name from the registry. If the folder reappears later, a sweep deletes it."
            return damaged(kind=DamageKind.MISSING, finding=str(error), remedy=remedy)
        store = self._registry.store(row)
        with suppress(Gone, NotFound, Unavailable, InvalidRequest):
            if damage := table_repair.damage_of(store):
                return damaged(kind=DamageKind.TABLES, **asdict(damage))
            current = status(store.current())
            files = [path for path, kind in current.unreadable_kinds.items() if kind == Corruption.kind]
            if files:
                more = f" and {len(files) - 1} more" if len(files) > 1 else ""
                finding = f"{files[0]}{more} cannot be read: {current.unreadable[files[0]]}."
                remedy = "Restore the dataset's folder from a backup."
                return damaged(kind=DamageKind.FILES, finding=finding, remedy=remedy, repairable=False)
        return None

    def _broken_journal(self) -> Iterator[Damage]:
        try:
            log = self._journal.log()
        except Corruption as error:
            remedy = "Restore _system/events from a backup, or move it away: a new journal is then begun."
            yield Damage(kind=DamageKind.JOURNAL, subject=JOURNAL, finding=str(error), remedy=remedy, repairable=False)
            return
        except SiltstoneError:
            return  # unavailable now, which is not a damage
        if log is None:
            return
        try:
            self._journal.open_cycles()
            self._journal.cycles(1)
        except Corruption as error:
            remedy = "Rebuild the projection of the journal from its log."
            yield Damage(kind=DamageKind.JOURNAL, subject=JOURNAL, finding=str(error), remedy=remedy)

    def _broken_state_files(self) -> Iterator[Damage]:
        remedies = {
            STATUS: "Delete it; the compactor writes it again.",
            CYCLES: "Delete it; the next cycle takes its number from the journal.",
            PAUSED: "Delete it; the compactor then runs by the clock again.",
            STOP: "Delete it, and request the stop again.",
        }
        for name, remedy in remedies.items():
            with suppress(SiltstoneError):
                try:
                    self._state_files.cycles() if name == CYCLES else self._state_files.read(name)
                except Corruption as error:
                    yield Damage(kind=DamageKind.NOTE, subject=name, finding=str(error), remedy=remedy)
