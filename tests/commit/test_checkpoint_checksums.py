"""Checkpoints have a checksum: a flipped bit is never read as another mark, path or column."""

import threading
from pathlib import Path

import pytest

from siltstone.delta import checkpoint_checksums
from siltstone.delta.checkpoint_checksums import checkpoint_lock, checksum_name, matches
from siltstone.delta.checkpoints import forget_history, write_checkpoint
from siltstone.delta.layout import LOG
from siltstone.delta.log_reader import list_log, transactions
from siltstone.errors import Corruption, Reason, Unavailable
from siltstone.lake import Lake
from tests.support.flips import flipped
from tests.support.internals import replace_checkpoint_crc
from tests.support.refusals import refused
from tests.support.tables import FAST, append, ids, make_table, open_table

APPENDS = 5
FLIPS = 60


@pytest.fixture
def path(tmp_path: Path) -> Path:
    make_table(tmp_path / "t", appends=APPENDS)
    write_checkpoint(tmp_path / "t", durable=False)
    return tmp_path / "t"


def checkpoint(path: Path) -> Path:
    return path / LOG / f"{APPENDS:020d}.checkpoint.parquet"


def checksum(path: Path) -> Path:
    return path / LOG / checksum_name(APPENDS)


def test_every_flipped_bit_of_a_checkpoint_is_refused_by_name(path: Path):
    forget_history(path)
    size = checkpoint(path).stat().st_size
    for _ in flipped(checkpoint(path), step=size // FLIPS):
        with refused(Corruption, Reason.DAMAGED_FILE, path):
            open_table(path).pin()
        with refused(Corruption, Reason.DAMAGED_FILE, path):
            transactions(path)
        with pytest.raises((Corruption, Unavailable)):  # it would be copied into the next checkpoint
            write_checkpoint(path, durable=False)
    assert ids(path) == list(range(1, APPENDS + 1))


def test_a_damaged_checkpoint_is_rebuilt_from_the_entries_it_covers(path: Path):
    content = bytearray(checkpoint(path).read_bytes())
    content[len(content) // 2] ^= 4
    checkpoint(path).write_bytes(content)
    append(open_table(path), APPENDS + 1)
    assert ids(path) == list(range(1, APPENDS + 2))
    assert list_log(path).checksums == ()
    write_checkpoint(path, durable=False)
    assert list_log(path).checksums == (APPENDS + 1,)


def test_a_producer_whose_mark_has_a_flipped_bit_writes_nothing_twice(tmp_path: Path):
    dataset = Lake.open(tmp_path / "lake", settings=FAST).create("a.b.c", "at TIMESTAMP, n INT", time="at")
    for sequence in (1, 2):
        dataset.append([{"at": "2026-01-01T00:00:00Z", "n": sequence}], producer="prod", sequence=sequence)
    changes = dataset.path / "changes"
    write_checkpoint(changes, durable=False)
    forget_history(changes)
    (file,) = changes.glob(f"{LOG}/*.checkpoint.parquet")
    file.write_bytes(file.read_bytes().replace(b"prod", b"proe", 1))
    with refused(Corruption, Reason.DAMAGED_FILE):
        Lake.open(tmp_path / "lake", settings=FAST).dataset("a.b.c").append(
            [{"at": "2026-01-01T00:00:00Z", "n": 2}], producer="prod", sequence=2
        )


@pytest.mark.parametrize("content", [b"", b"00000000 00000001\n", b"nonsense", bytes(18)])
def test_a_checksum_that_is_itself_damaged_is_ignored(path: Path, content: bytes):
    checksum(path).write_bytes(content)
    assert ids(path) == list(range(1, APPENDS + 1))


def test_a_checksum_that_changes_while_it_is_read_is_read_again(path: Path, monkeypatch: pytest.MonkeyPatch):
    right = checksum(path).read_bytes()
    checksum(path).write_bytes(b"00000000 00000000\n")

    def compute_late(table: Path, names: tuple[str, ...]) -> int:
        found: int = compute(table, names)
        checksum(path).write_bytes(right)  # the writer of the same checkpoint has finished
        return found

    compute = replace_checkpoint_crc(monkeypatch, compute_late)
    assert matches(path, APPENDS, [checkpoint(path).name])


def test_the_checksum_goes_with_its_checkpoint(path: Path):
    append(open_table(path), APPENDS + 1)
    write_checkpoint(path, durable=False)
    forget_history(path)
    assert list_log(path).checksums == tuple(list_log(path).checkpoints) == (APPENDS + 1,)


def test_one_process_at_a_time_writes_checkpoints(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checkpoint_checksums, "LOCK_SECONDS", 0.05)
    before = checksum(path).read_bytes()
    with checkpoint_lock(path), refused(Unavailable, None, path):
        write_checkpoint(path, durable=False)
    assert checksum(path).read_bytes() == before
    writers = [threading.Thread(target=write_checkpoint, args=(path,), kwargs={"durable": False}) for _ in range(4)]
    monkeypatch.setattr(checkpoint_checksums, "LOCK_SECONDS", 60.0)
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert matches(path, APPENDS, [checkpoint(path).name])
