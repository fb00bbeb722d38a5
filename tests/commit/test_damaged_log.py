"""A log damaged by a power cut, a bad disk or a user: repaired where nothing is lost, otherwise a named error."""

import re
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from siltstone.clock import SystemClock
from siltstone.compaction.operations.commit import prune
from siltstone.compaction.operations.squash import squash
from siltstone.config import Role
from siltstone.coordination.leases import COMPACTOR
from siltstone.delta import checkpoints, table_reader
from siltstone.delta.checkpoints import (
    Retention,
    checkpoint_and_clean,
    forget_history,
    try_checkpoint_and_clean,
    write_checkpoint,
)
from siltstone.delta.full_replay import MAX_ENTRIES
from siltstone.delta.layout import LOG, entry_name
from siltstone.delta.log_reader import LAST_CHECKPOINT, list_log, transactions
from siltstone.delta.table import ParentVersion
from siltstone.errors import Corruption, Reason, SiltstoneError, Unavailable
from siltstone.eventlog.log import EventLog
from siltstone.lake import Lake
from siltstone.model.columns import APP_SEQ
from siltstone.model.commit import Commit, CommitKind
from tests.support.histories import received
from tests.support.internals import store_of
from tests.support.leasing import lake_at, leases_of, taken
from tests.support.refusals import refused as refuses
from tests.support.tables import FAST, append, ids, make_table, open_table

Damage = Callable[[Path], object]

APPENDS = 5
FAR = 10**18
FEW_ENTRIES = Retention(hours=100, max_entries=1)


def entry(path: Path, version: int) -> Path:
    return path / LOG / entry_name(version)


def checkpoint(path: Path, version: int = APPENDS) -> Path:
    return path / LOG / f"{version:020d}.checkpoint.parquet"


def cut(file: Path, left: int) -> None:
    """Leave only the first bytes of a file."""
    file.write_bytes(file.read_bytes()[:left])


def cut_lines(file: Path, left: int) -> None:
    """Leave only the first lines of a file."""
    lines = file.read_bytes().splitlines(keepends=True)
    assert len(lines) > left
    file.write_bytes(b"".join(lines[:left]))


def link_to_nothing(file: Path) -> None:
    file.unlink()
    file.symlink_to("/no/such/disk/entry.json")


def flip(file: Path, text: bytes) -> None:
    """Flip the lowest bit of the byte after the last occurrence of a text."""
    content = bytearray(file.read_bytes())
    content[content.rindex(text) + len(text)] ^= 1
    file.write_bytes(content)


def with_checkpoint(then: Damage) -> Damage:
    def damage(path: Path) -> None:
        write_checkpoint(path, durable=False)
        then(path)

    return damage


def with_cleaned_checkpoint(then: Damage) -> Damage:
    """Write a checkpoint, delete its history, and append once more."""

    def damage(path: Path) -> None:
        write_checkpoint(path, durable=False)
        forget_history(path)
        append(open_table(path), APPENDS + 1)
        then(path)

    return damage


def with_older_checkpoint(then: Damage) -> Damage:
    """Write a cleaned checkpoint at 5, then one at 7; entries 5 to 7 exist."""

    def damage(path: Path) -> None:
        write_checkpoint(path, durable=False)
        append(open_table(path), APPENDS + 1)
        append(open_table(path), APPENDS + 2)
        forget_history(path)
        write_checkpoint(path, durable=False)
        then(path)

    return damage


HEALED: dict[str, tuple[Damage, int]] = {
    "a pointer of garbage": (with_checkpoint(lambda p: (p / LOG / LAST_CHECKPOINT).write_text("{nonsense")), 5),
    "an empty pointer": (with_checkpoint(lambda p: (p / LOG / LAST_CHECKPOINT).write_bytes(b"")), 5),
    "a pointer of garbage over a cleaned log": (
        with_cleaned_checkpoint(lambda p: (p / LOG / LAST_CHECKPOINT).write_text("{nonsense")),
        6,
    ),
    "an empty pointer over a cleaned log": (
        with_cleaned_checkpoint(lambda p: (p / LOG / LAST_CHECKPOINT).write_bytes(b"")),
        6,
    ),
    "no pointer over a cleaned log": (with_cleaned_checkpoint(lambda p: (p / LOG / LAST_CHECKPOINT).unlink()), 6),
    "a pointer to nothing": (with_checkpoint(lambda p: checkpoint(p).unlink()), 5),
    "a pointer to nothing above an older checkpoint": (with_older_checkpoint(lambda p: checkpoint(p, 7).unlink()), 7),
    "an empty checkpoint": (with_checkpoint(lambda p: checkpoint(p).write_bytes(b"")), 5),
    "a checkpoint cut short": (with_checkpoint(lambda p: cut(checkpoint(p), 100)), 5),
    "a checkpoint of zeroes": (with_checkpoint(lambda p: checkpoint(p).write_bytes(bytes(4096))), 5),
    "an empty checkpoint above an older one": (with_older_checkpoint(lambda p: checkpoint(p, 7).write_bytes(b"")), 7),
}


def lose_entries(*versions: int) -> Damage:
    def damage(path: Path) -> None:
        for version in versions:
            entry(path, version).unlink()

    return damage


def cut_checkpoint_and_lose(*versions: int) -> Damage:
    def damage(path: Path) -> None:
        cut(checkpoint(path), 100)
        lose_entries(*versions)(path)

    return damage


BROKEN: dict[str, Damage] = {
    "an empty last entry": lambda p: entry(p, 5).write_bytes(b""),
    "an empty entry in the middle": lambda p: entry(p, 3).write_bytes(b""),
    "an empty first entry": lambda p: entry(p, 0).write_bytes(b""),
    "a last entry cut short": lambda p: cut(entry(p, 5), 200),
    "an entry in the middle cut short": lambda p: cut(entry(p, 3), 50),
    "a blank last entry": lambda p: entry(p, 5).write_text("\n"),
    "a blank entry in the middle": lambda p: entry(p, 3).write_text("  \n\n"),
    "an empty object as last entry": lambda p: entry(p, 5).write_text("{}\n"),
    "an empty object in the middle": lambda p: entry(p, 3).write_text("{}\n"),
    "a last entry cut after a line": lambda p: cut_lines(entry(p, 5), 1),
    "an entry in the middle cut after a line": lambda p: cut_lines(entry(p, 3), 1),
    "a last entry without its last line": lambda p: cut_lines(entry(p, 5), 3),
    "an entry in the middle without its last line": lambda p: cut_lines(entry(p, 3), 3),
    "an entry that names another file": lambda p: flip(entry(p, 3), b"data/"),
    "an entry with another sequence": lambda p: flip(entry(p, 3), b'"_seq":"'),
    "a first entry with another column": lambda p: flip(entry(p, 0), b'{\\"name\\":\\"'),
    "a first entry with another type": lambda p: flip(entry(p, 0), b'\\"type\\":\\"'),
    "a last entry of zeroes": lambda p: entry(p, 5).write_bytes(bytes(512)),
    "a missing entry in the middle": lose_entries(3),
    "the newest entry as a link to nothing": lambda p: link_to_nothing(entry(p, 5)),
    "an entry in the middle as a link to nothing": lambda p: link_to_nothing(entry(p, 3)),
    "an entry of a version far above the others": lambda p: entry(p, FAR).write_text("{}\n"),
    "an entry of a version far above a checkpoint": with_checkpoint(lambda p: entry(p, FAR).write_text("{}\n")),
    "a missing first entry": lose_entries(0),
    "an empty entry above a checkpoint": with_cleaned_checkpoint(lambda p: entry(p, 6).write_bytes(b"")),
    "a cut checkpoint whose entries were cleaned": with_cleaned_checkpoint(lambda p: cut(checkpoint(p), 100)),
    "an empty checkpoint whose entries were cleaned": with_cleaned_checkpoint(lambda p: checkpoint(p).write_bytes(b"")),
    "a missing checkpoint whose entries were cleaned": with_cleaned_checkpoint(lambda p: checkpoint(p).unlink()),
    "a cut checkpoint whose own entry is gone": with_checkpoint(cut_checkpoint_and_lose(5)),
    "a cut checkpoint and no entries at all": with_checkpoint(cut_checkpoint_and_lose(0, 1, 2, 3, 4, 5)),
}


def listing(path: Path) -> dict[str, bytes]:
    """Return the log files with their bytes, and the names of all data files."""
    log = {item.name: item.read_bytes() if item.exists() else b"a link to nothing" for item in (path / LOG).iterdir()}
    return log | {item.name: b"" for item in (path / "data").iterdir()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    make_table(tmp_path / "t", appends=APPENDS)
    return tmp_path / "t"


@pytest.mark.parametrize("damage", HEALED)
def test_damage_without_loss_is_repaired(path: Path, damage: str):
    hurt, version = HEALED[damage]
    hurt(path)
    pinned = open_table(path).pin(APP_SEQ)
    assert (pinned.version, pinned.transactions) == (version, {APP_SEQ: version})
    assert append(open_table(path), 99).version == version + 1
    assert ids(path) == [*range(1, version + 1), 99]


@pytest.mark.parametrize("damage", BROKEN)
def test_damage_with_a_possible_loss_is_named_and_nothing_is_written(path: Path, damage: str):
    BROKEN[damage](path)
    before = listing(path)
    with pytest.raises(Corruption, match=str(path)):
        open_table(path).pin()
    with pytest.raises(Corruption, match=str(path)):
        open_table(path).commit(_never)
    with pytest.raises(Corruption, match=str(path)):
        open_table(path).set_properties({"siltstone.test": "x"})
    assert listing(path) == before


LOSSES: dict[str, Damage] = {
    "blank": lambda file: file.write_text("\n"),
    "an empty object": lambda file: file.write_text("{}\n"),
    "cut after a line": lambda file: cut_lines(file, 1),
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("version", [2, 3], ids=["middle", "last"])
def test_a_batch_whose_entry_is_damaged_is_missed_by_every_reader_and_writer(tmp_path: Path, version: int, loss: str):
    root = tmp_path / "lake"
    with Lake.open(root, settings=FAST) as lake:
        people = lake.create("a.b.c", "id BIGINT NOT NULL", key="id")
        for number in range(3):
            people.upsert([{"id": number}])
    LOSSES[loss](entry(people.path / "changes", version))
    with Lake.open(root, settings=FAST) as lake:
        people = lake.dataset("a.b.c")
        for refused in (
            people.to_arrow,
            people.status,
            people.tombstones,
            lambda: people.get([1]),
            lambda: people.upsert([{"id": 9}]),
            lambda: people.changes_to_arrow(since=0),
            lambda: squash(store_of(people), many=2),
            lambda: prune(store_of(people)),
        ):
            with refuses(Corruption, Reason.DAMAGED_FILE):
                refused()


@pytest.mark.parametrize("loss", LOSSES)
def test_a_registry_with_a_damaged_entry_is_refused(tmp_path: Path, loss: str):
    root = tmp_path / "lake"
    with Lake.open(root, settings=FAST) as lake:
        lake.create("a.b.c", "id BIGINT NOT NULL", key="id")
        lake.create("a.b.d", "id BIGINT NOT NULL", key="id")
    LOSSES[loss](entry(root / "_system" / "datasets", 1))
    with Lake.open(root, settings=FAST) as lake:
        for refused in (lake.datasets, lambda: lake.dataset("a.b.c"), lambda: lake.drop("a.b.d")):
            with refuses(Corruption, Reason.DAMAGED_FILE):
                refused()


@pytest.mark.parametrize("loss", LOSSES)
def test_leases_with_a_damaged_entry_are_never_free(tmp_path: Path, loss: str):
    root = lake_at(tmp_path / "lake")
    lease = taken(leases_of(root))
    LOSSES[loss](entry(root / "_system" / "leases", 1))
    with refuses(Corruption, Reason.DAMAGED_FILE):
        leases_of(root).acquire(COMPACTOR, role=Role.ALL)
    with refuses(Corruption, Reason.DAMAGED_FILE):
        lease.renew()


@pytest.mark.parametrize("loss", LOSSES)
def test_an_event_log_with_a_damaged_entry_is_refused(tmp_path: Path, loss: str):
    address = f"delta://{tmp_path / 'log'}"
    with EventLog.open(address) as log:
        log.append(received("a"))
        log.append(received("b"))
    LOSSES[loss](entry(tmp_path / "log", 1))
    with refuses(Corruption, Reason.DAMAGED_FILE):
        EventLog.open(address)


def _never(_parent: ParentVersion) -> Commit:  # the table must be refused before a commit is built
    raise AssertionError("a commit was built on a broken log")


@pytest.mark.parametrize("damage", [name for name in BROKEN if "last entry" in name])
def test_an_open_handle_notices_a_broken_entry_too(path: Path, damage: str):
    table = open_table(path)
    entry(path, 5).rename(path / "kept")
    assert table.pin().version == 4
    (path / "kept").rename(entry(path, 5))
    BROKEN[damage](path)
    with pytest.raises(Corruption):
        table.pin()
    with pytest.raises(Corruption):
        table.pin()


@pytest.mark.parametrize("damage", BROKEN)
def test_no_checkpoint_is_written_over_a_broken_log(path: Path, damage: str):
    """A checkpoint over an empty entry would turn the loss into history."""
    BROKEN[damage](path)
    before = listing(path)
    assert try_checkpoint_and_clean(path, retention=Retention(hours=0), durable=False, clock=SystemClock()) is not None
    assert listing(path) == before


def test_a_damaged_log_is_corruption_for_a_checkpoint_too(path: Path):
    cut(entry(path, 1), 40)
    with refuses(Corruption, Reason.DAMAGED_FILE, entry_name(1)):
        write_checkpoint(path, durable=False)


def test_a_plan_across_a_missing_entry_is_corruption_not_conflict(path: Path):
    table = open_table(path)
    table.pin()
    append(open_table(path), 6)
    append(open_table(path), 7)
    assert table.version() == 7
    entry(path, 6).unlink()
    with refuses(Corruption, Reason.MISSING_FILE, entry_name(6)):
        table.commit(lambda _: Commit(kind=CommitKind.CLUSTER, plan_version=5, removes=table.files()[:1]))
    assert not entry(path, 8).exists()


def test_a_failed_checkpoint_is_reported_and_never_raised(path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(_path: Path, *, durable: bool) -> int:
        del durable
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("siltstone.delta.checkpoints.write_checkpoint", fail)
    error_text = try_checkpoint_and_clean(path, retention=FEW_ENTRIES, durable=False, clock=SystemClock())
    assert error_text is not None
    assert "No space left" in error_text


def test_cleaning_keeps_the_entry_of_the_kept_checkpoint(path: Path):
    """delta-rs cannot commit on top of a version whose own entry is gone."""
    assert checkpoint_and_clean(path, retention=FEW_ENTRIES, durable=False, clock=SystemClock()) == 0
    append(open_table(path), 6)
    deleted = checkpoint_and_clean(path, retention=FEW_ENTRIES, durable=False, clock=SystemClock())
    assert deleted == 5
    assert entry(path, 5).exists()
    assert append(open_table(path), 7).version == 7
    assert ids(path) == [1, 2, 3, 4, 5, 6, 7]


def test_young_entries_are_kept_unless_there_are_too_many(path: Path):
    long = Retention(hours=100)
    assert checkpoint_and_clean(path, retention=long, durable=False, clock=SystemClock()) == 0
    assert all(entry(path, version).exists() for version in range(6))


def test_a_checkpoint_whose_text_is_not_text_is_named(path: Path):
    write_checkpoint(path, durable=False)
    forget_history(path)
    before, after = b"data/", b"dat\xc9/"
    table = pq.read_table(checkpoint(path))
    pq.write_table(table, checkpoint(path), compression="none", use_dictionary=False)
    content = checkpoint(path).read_bytes()
    assert before in content
    checkpoint(path).write_bytes(content.replace(before, after))
    with pytest.raises(Corruption):
        open_table(path).pin()


def test_a_checkpoint_whose_transactions_cannot_be_read_is_corruption_and_no_raw_error(tmp_path: Path):
    lake = Lake.open(tmp_path / "lake", settings=FAST)
    made = lake.create("a.b.c", "id STRING", key="id")
    made.upsert([{"id": "x"}], producer="nightly", sequence=1)
    changes = store_of(made).changes
    write_checkpoint(changes.path, durable=False)
    [file] = (changes.path / LOG).glob("*.checkpoint.parquet")
    content = file.read_bytes()
    named = [found.start() for found in re.finditer(b"\x03txn", content)]
    broken = 0
    for place in [at for start in named for at in range(start, start + 40)]:
        file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        try:
            transactions(changes.path, "producer/")
        except Corruption:
            broken += 1
    assert broken > 20


def test_a_damaged_page_of_a_checkpoint_is_not_called_a_log_that_is_cleaned(tmp_path: Path):
    lake = Lake.open(tmp_path / "lake", settings=FAST)
    made = lake.create("a.b.c", "id STRING", key="id")
    made.upsert([{"id": "x"}])
    changes = store_of(made).changes
    write_checkpoint(changes.path, durable=False)
    forget_history(changes.path)  # otherwise it is rebuilt from its entries
    [file] = (changes.path / LOG).glob("*.checkpoint.parquet")
    for checksum in (changes.path / LOG).glob("*.crc32"):
        checksum.unlink()  # as if another program wrote the checkpoint
    group = pq.read_metadata(file).row_group(0)
    chunks = [group.column(number) for number in range(group.num_columns)]
    [page] = [chunk.data_page_offset for chunk in chunks if chunk.path_in_schema == "txn.version"]
    content = file.read_bytes()
    file.write_bytes(content[:page] + bytes(16) + content[page + 16 :])
    with pytest.raises(Corruption, match=file.name):
        Lake.open(lake.path, settings=FAST).dataset("a.b.c").count()


@pytest.mark.parametrize(("commits", "error"), [(True, Unavailable), (False, Corruption)])
def test_a_log_that_changes_at_every_attempt_to_open_it_is_busy_and_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[SiltstoneError], *, commits: bool
):
    path = tmp_path / "table"
    make_table(path)
    writer = open_table(path)
    append(writer, 1)
    write_checkpoint(path, durable=False)
    append(writer, 2)

    def with_gaps(_path: Path, **_options: int | None) -> None:
        if commits:
            append(writer, 3)
        raise DeltaError("a gap in the listing of delta-rs")

    for module in (table_reader, checkpoints):
        monkeypatch.setattr(module, "DeltaTable", with_gaps)
    with pytest.raises(error):
        open_table(path).version()


def test_a_long_log_is_opened_although_delta_rs_lists_it_with_gaps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """This also happens beside a busy writer, because reading a directory is not atomic.

    Up to a known version the log has no gaps.
    """
    path = tmp_path / "table"
    make_table(path, appends=MAX_ENTRIES + 1)
    opened = listed_with_gaps(monkeypatch)
    assert open_table(path).version() == MAX_ENTRIES + 1
    assert opened == [None, MAX_ENTRIES + 1]


def test_a_table_is_opened_although_a_purge_cleans_the_listed_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """delta-rs then reports that there is no table. Its log still has versions, so it was not dropped."""
    path = tmp_path / "table"
    make_table(path, appends=MAX_ENTRIES + 1)
    writer = open_table(path)
    writer.version()
    opened: list[int | None] = []

    def with_purge(path: Path, version: int | None = None) -> DeltaTable:
        opened.append(version)
        if len(opened) == 1:
            raise DeltaError("a gap in the listing of delta-rs")
        if len(opened) == 2:
            append(writer, 1)
            DeltaTable(path).create_checkpoint()
            forget_history(path)
        return DeltaTable(path, version=version)

    monkeypatch.setattr(table_reader, "DeltaTable", with_purge)
    monkeypatch.setattr(checkpoints, "DeltaTable", with_purge)
    assert open_table(path).version() == MAX_ENTRIES + 2
    assert opened == [None, MAX_ENTRIES + 1, MAX_ENTRIES + 2]


def test_a_long_log_gets_its_checkpoint_although_delta_rs_lists_it_with_gaps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "table"
    make_table(path, appends=MAX_ENTRIES + 1)
    with monkeypatch.context() as patch:
        opened = listed_with_gaps(patch)
        assert write_checkpoint(path, durable=False) == MAX_ENTRIES + 1
    assert opened == [None, MAX_ENTRIES + 1]
    assert list_log(path).newest_checkpoint == MAX_ENTRIES + 1
    assert open_table(path).version() == MAX_ENTRIES + 1


def listed_with_gaps(patch: pytest.MonkeyPatch) -> list[int | None]:
    """Make delta-rs fail to open a table's newest version. Return the list of requested versions."""
    opened: list[int | None] = []

    def with_gaps(path: Path, version: int | None = None) -> DeltaTable:
        opened.append(version)
        if version is None:
            raise DeltaError("a gap in the listing of delta-rs")
        return DeltaTable(path, version=version)

    for module in (table_reader, checkpoints):
        patch.setattr(module, "DeltaTable", with_gaps)
    return opened
