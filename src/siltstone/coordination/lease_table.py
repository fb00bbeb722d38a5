"""The rows of leases: a Delta table of the lake, with one live file for each name. `leases` explains their purpose.

A row is read through the log. It is cached with the time at which it was first seen. That distinguishes a silent holder
from one that renews. A row is written in three steps: a staged file, one commit, the deletion of the replaced file. A
row that cannot be read is an error, never a free lease.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Final

import pyarrow as pa

from siltstone.clock import Clock
from siltstone.config import Settings
from siltstone.coordination.liveness import is_live
from siltstone.delta.checkpoints import try_checkpoint_and_clean
from siltstone.delta.layout import DATA, Layout, has_versions, owner_of
from siltstone.delta.named_rows import NamedRowTable
from siltstone.errors import CommitUnknown, Conflict, Corruption, Gone, NotFound, Reason, SiltstoneError, Unavailable
from siltstone.failpoints import reach
from siltstone.host import fork_safety
from siltstone.model.commit import CommitKind
from siltstone.model.files import DataFile
from siltstone.model.lease import LeaseRow
from siltstone.spark_tasks.parquet_checksums import open_parquet

APP_LEASE: Final = "lease/"
READ_TRIES: Final = 5
"""Highest number of tries to read a row. Its file can be replaced and deleted after the log was read."""
_ROW: Final = pa.schema(
    [
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("holder", pa.string(), nullable=False),
        pa.field("machine", pa.string(), nullable=False),
        pa.field("host", pa.string(), nullable=False),
        pa.field("pid", pa.int64(), nullable=False),
        pa.field("role", pa.string(), nullable=False),
        pa.field("since", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("renewed_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("expires_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("ttl_seconds", pa.float64(), nullable=False),
        pa.field("released", pa.bool_(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedRow:
    """A cached row: the file that identifies it, and the monotonic time at which it was first seen."""

    path: str
    row: LeaseRow
    since_seconds: float


class LeaseTable:
    """The lease rows of one lake."""

    def __init__(self, layout: Layout, settings: Settings, clock: Clock) -> None:
        self._layout = layout
        self._settings = settings
        self._clock = clock
        self._lock = threading.RLock()
        self._cache: dict[str, CachedRow] = {}
        self._table = self._open()

    def write(self, row: LeaseRow, *, allowed: Callable[[int, str | None], bool]) -> None:
        """Commit one row in place of the previous one.

        `allowed` gets the epoch and the live file of each parent that the commit is tried on. Conflict if it is False.
        A crash leaves a staged file that no log names. Or it leaves the new row and the file of the old row, which no
        log names any more.
        """

        def check(epoch: int, live: DataFile | None) -> None:
            if not allowed(epoch, live.path if live else None):
                raise Conflict(
                    f"Lease {row.name!r} of lake {self._layout.root} was renewed by its holder or acquired by another "
                    "process. Nothing was changed. Try again."
                )

        with self.errors_translated():
            values = {name: value for name, value in asdict(row).items() if name != "name"}
            file = self._table.stage(row.name, values, owner=f"{row.holder}.{self._clock.new_id()}")
            reach("lease.after_stage")
            removed: tuple[DataFile, ...] = ()
            try:
                committed = self._table.replace_row(file, f"{APP_LEASE}{row.name}", row.epoch, check=check)
                removed, version = committed.commit.removes, committed.version
            except CommitUnknown:
                newest = self.read(row.name)
                if newest is None or newest.path != file.path:
                    raise
                version = self._table.version()
            reach("lease.after_commit")
            for old in removed:
                with contextlib.suppress(OSError):  # the next process that acquires a lease sweeps the rest
                    (self._layout.leases / old.path).unlink(missing_ok=True)
        if version % self._settings.checkpoint_interval_commits == 0:
            try_checkpoint_and_clean(  # synchronous: no writer waits for an acknowledgement
                self._layout.leases, retention=self._table.retention, durable=self._settings.durable, clock=self._clock
            )

    def owns(self, row: LeaseRow) -> bool:
        """True if this holder still has the lease with this epoch, by the newest version of the table."""
        app = f"{APP_LEASE}{row.name}"
        try:
            with self.errors_translated():
                pinned = self._table.pin(app)
        except NotFound:
            return False
        live = self._table.live_file(pinned.files, row.name)
        is_holder = live is not None and owner_of(live.path) == row.holder
        return is_holder and pinned.transactions.get(app) == row.epoch

    def read(self, name: str) -> CachedRow | None:
        """Read the row of a lease, and cache the time since which it is unchanged."""
        fork_safety.check()
        with self._lock:
            for _ in range(READ_TRIES):
                with self.errors_translated():
                    if not self._exists():
                        return None
                    app = f"{APP_LEASE}{name}"
                    pinned = self._table.pin(app)
                live = self._table.live_file(pinned.files, name)
                epoch = pinned.transactions.get(app)
                if live is None and epoch is None:
                    return None
                if live is None or epoch is None:
                    raise self._damaged(f"lease {name!r} has {'no row' if epoch else 'no epoch'}")
                with contextlib.suppress(FileNotFoundError):
                    return self._cached(name, live.path, epoch)
        raise self._damaged(f"the row of lease {name!r} is missing")

    def _cached(self, name: str, path: str, epoch: int) -> CachedRow:
        cached = self._cache.get(name)
        if cached is None or cached.path != path:
            row = self._read_file(name, path)
            if row.epoch != epoch:
                raise self._damaged(f"lease {name!r} has epoch {epoch} and a row of epoch {row.epoch}")
            cached = CachedRow(path=path, row=row, since_seconds=self._clock.monotonic_seconds())
            self._cache[name] = cached
        return cached

    def _read_file(self, name: str, path: str) -> LeaseRow:
        try:
            with open_parquet(self._layout.leases / path) as file:
                [values] = file.read().to_pylist()
            return LeaseRow(name=name, **values)
        except FileNotFoundError:
            raise
        except (pa.ArrowException, ValueError, TypeError) as error:
            raise self._damaged(f"{path} cannot be read ({error})") from error
        except OSError as error:
            raise Unavailable(
                f"{self._table.label}: {path} cannot be read ({error}). Check its permissions."
            ) from error

    def _exists(self) -> bool:
        """True if the table exists. Rows without a log are a damage, not a table that is still to be created."""
        rows = self._layout.leases / DATA
        if has_versions(self._layout.leases):
            return True
        if not rows.is_dir() or not any(rows.iterdir()):
            return False
        if has_versions(self._layout.leases):  # another process created it and wrote a row between the checks
            return True
        raise self._damaged("its log is gone")

    def ensure(self) -> None:
        """Create the table if the lake has none. Of several concurrent processes one creates it, and all continue."""
        with self.errors_translated():
            if self._exists():
                return
            if not self._layout.is_lake():
                raise NotFound(
                    f"There is no lake at {self._layout.root} yet. Check the path, or make one with silt create."
                )
            with contextlib.suppress(Conflict):
                self._table.create_empty()

    def _open(self) -> NamedRowTable:
        return NamedRowTable(
            self._layout.leases,
            _ROW,
            CommitKind.LEASE,
            settings=self._settings,
            clock=self._clock,
            label=f"The leases of lake {self._layout.root}",
        )

    def sweep(self) -> None:
        """Delete files that crashed holders left and no log names.

        Files of the last minutes stay, because a holder may be about to commit them.
        """
        if self._layout.link_in(self._layout.leases / DATA):
            return
        with contextlib.suppress(OSError, SiltstoneError):
            cut = self._clock.now().timestamp() - self._settings.changes_retention_hours * 3600
            old = [path for path in (self._layout.leases / DATA).iterdir() if path.stat().st_mtime < cut]
            dead = [path for path in old if not is_live(self._layout.liveness, path.name.split(".")[0])]
            live = {file.path for file in self._table.pin().files}  # after `dead`: names every committed row
            for path in dead:
                if f"{DATA}/{path.name}" not in live:
                    path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def errors_translated(self) -> Iterator[None]:
        """Translate disk errors, and the deletion of the table during use, into errors that name the next step."""
        try:
            yield
        except OSError as error:
            raise Unavailable(
                f"{self._table.label} cannot be used ({error}). Check the disk and its permissions."
            ) from error
        except Gone as error:
            self._table = self._open()
            raise Unavailable(f"{self._table.label} were deleted while they were in use. Try again.") from error

    def _damaged(self, why: str) -> Corruption:
        return Corruption(
            f"{self._table.label} are damaged: {why}. End every process that compacts, and restore {self._layout.leases} from "
            "a copy, or remove that folder if there is no copy.",
            reason=Reason.DAMAGED_FILE,
        )
