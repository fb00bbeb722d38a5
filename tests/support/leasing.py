"""Lakes with leases, and other processes that use them."""

import time
from pathlib import Path
from typing import Any, Final

from siltstone.clock import Clock, SystemClock
from siltstone.compactor.scheduler import Scheduler
from siltstone.compactor.tasks import ScheduledTask, TaskContext
from siltstone.config import Role, Settings
from siltstone.coordination.leases import COMPACTOR, Lease, Leases
from siltstone.delta.layout import Layout
from siltstone.delta.table import Table
from siltstone.errors import Fenced, SiltstoneError
from siltstone.lake import Lake
from siltstone.model.commit import Commit, CommitKind
from tests.support.tables import FAST, open_table

ELSEWHERE: Final = "another machine"
TRY_SECONDS: Final = 30.0


def lake_at(root: Path) -> Path:
    """Create a lake with one dataset."""
    with Lake.open(root, settings=FAST) as lake:
        lake.create("a.b.c", "id BIGINT NOT NULL", key="id")
    return root


def leases_of(root: Path, *, clock: Clock | None = None, settings: Settings = FAST) -> Leases:
    """Return leases as another process has them."""
    return Leases(Layout.at(root), settings, clock or SystemClock())


def taken(leases: Leases, *, ttl_seconds: float = 60.0) -> Lease:
    """Acquire the compactor's lease, which must be free."""
    lease = leases.acquire(COMPACTOR, role=Role.ALL, ttl_seconds=ttl_seconds)
    assert lease is not None
    return lease


def commit_with(table: Table, epoch: int) -> int:
    """Commit as a job with this epoch; return the version."""

    def build(parent: Any) -> Commit:  # noqa: ANN401
        return Commit(kind=CommitKind.EPOCH, plan_version=parent.version, epoch=epoch)

    return table.commit(build).version


def take_in_process(root: Path, tried: Path, number: int, processes: int) -> int:
    """Acquire the lease and hold it until all processes have tried; return the epoch, 0 if the lease was not free."""
    lease = leases_of(root).acquire(COMPACTOR, role=Role.ALL)
    (tried / str(number)).touch()
    end = time.monotonic() + TRY_SECONDS
    while lease is not None and len(list(tried.iterdir())) < processes and time.monotonic() < end:
        time.sleep(0.005)
    if lease is None:
        return 0
    lease.release()
    return lease.epoch


def take_turns_for(root: Path, seconds: float) -> list[tuple[int, float, float]]:
    """Acquire, hold and release repeatedly; return (epoch, from, until) of each time, by the processes' common clock."""
    leases, turns = leases_of(root), []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        lease = leases.acquire(COMPACTOR, role=Role.ALL)
        if lease is None:
            time.sleep(0.002)
            continue
        began = time.monotonic()
        lease.renew()
        lease.check()
        ended = time.monotonic()
        lease.release()
        turns.append((lease.epoch, began, ended))
    return turns


def operate(root: str, operation: str) -> int:
    """Acquire, renew or release: the operations that crash tests interrupt."""
    lease = taken(leases_of(Path(root)))
    if operation == "renew":
        lease.renew()
    if operation == "release":
        lease.release()
    return lease.epoch


def schedule_until_killed(root: str, ready: str) -> None:
    """Run a scheduler whose only task reports its start and runs until the process is killed."""

    def work(run: TaskContext) -> None:
        Path(ready).write_text(str(run.lease.epoch))
        while not run.stopping():
            time.sleep(0.01)

    scheduler = Scheduler(
        [ScheduledTask(name="endless", run=work)], leases=leases_of(Path(root)), settings=FAST, clock=SystemClock()
    )
    scheduler.start()
    scheduler.wait(scheduler.trigger(), seconds=300)


def hold_and_commit(root: str, table: str, ready: str, go: str, ttl_seconds: float = 60.0) -> dict[str, Any]:
    """Acquire the lease, commit with its epoch, wait until `go` exists, and try to commit again."""
    lease = taken(leases_of(Path(root)), ttl_seconds=ttl_seconds)
    target = open_table(Path(table))
    commit_with(target, lease.epoch)
    Path(ready).write_text(str(lease.epoch))
    while not Path(go).exists():
        time.sleep(0.01)
    outcomes = {}
    for name, step in (
        ("commit", lambda: commit_with(target, lease.epoch)),
        ("check", lease.check),
        ("renew", lease.renew),
    ):
        try:
            step()
            outcomes[name] = "done"
        except Fenced:
            outcomes[name] = "fenced"
        except SiltstoneError as error:
            outcomes[name] = f"{type(error).__name__}: {error}"
    return {"epoch": lease.epoch, **outcomes}
