"""A log without a checkpoint is replayed from its entries: the result equals that of delta-rs, or is an error."""

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from siltstone import Dataset, Lake
from siltstone.config import Settings
from siltstone.delta import table_reader
from siltstone.delta.checkpoints import write_checkpoint
from siltstone.delta.full_replay import MAX_ENTRIES, replay
from siltstone.delta.layout import entry_name
from siltstone.delta.log_replay import live_files
from siltstone.errors import Corruption, Gone, Reason
from siltstone.model.columns import APP_FOLD, APP_PRUNE, APP_SEQ
from siltstone.model.schema import from_struct_json
from tests.support.folds import fold_by_arrow
from tests.support.refusals import refused

FAST = Settings(durable=False, checkpoint_interval_commits=1_000, squash_files=0)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake.open(tmp_path / "lake", settings=FAST)


@pytest.fixture
def dataset(lake: Lake) -> Dataset:
    made = lake.create("a.b.c", "id BIGINT NOT NULL, at TIMESTAMP_NTZ COMMENT 'local'", key="id")
    made.upsert([{"id": 1}, {"id": 2}], producer="feed", sequence=7)
    made.tombstone([1])
    made.alter(add="note STRING", defaults={"note": "none"})
    made.upsert([{"id": 3, "note": "new"}])
    fold_by_arrow(made)
    made.upsert([{"id": 4}])
    made.squash()
    return made


def state_of(opened: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the contents of a table that was just opened."""
    protocol, metadata = opened.protocol(), opened.metadata()
    files = live_files(opened) if isinstance(opened, DeltaTable) else opened.files.values()
    return {
        "version": opened.version(),
        "protocol": (protocol.min_reader_version, protocol.min_writer_version),
        "features": [sorted(found or []) for found in (protocol.reader_features, protocol.writer_features)],
        "id": str(metadata.id),
        "properties": dict(metadata.configuration),
        "partitions": list(metadata.partition_columns),
        "created": metadata.created_time,
        "schema": from_struct_json(json.loads(opened.schema().to_json())),
        "files": sorted(files, key=lambda file: file.path),
        "transactions": {
            app: opened.transaction_version(app) for app in (APP_SEQ, APP_FOLD, APP_PRUNE, "producer/feed", "no")
        },
    }


@pytest.mark.parametrize("table", ["base", "changes"])
def test_a_replayed_table_is_what_delta_rs_opens(dataset: Dataset, table: str):
    path = dataset.path / table
    replayed = replay(path)
    assert replayed is not None
    assert state_of(replayed) == state_of(DeltaTable(path))


def test_a_table_with_a_checkpoint_or_many_entries_is_left_to_delta_rs(lake: Lake, dataset: Dataset):
    path = dataset.path / "changes"
    write_checkpoint(path, durable=False)
    assert replay(path) is None
    assert dataset.to_arrow().num_rows == Lake.open(lake.path, settings=FAST).dataset("a.b.c").to_arrow().num_rows
    other = lake.create("a.b.d", "id BIGINT NOT NULL", key="id")
    for number in range(MAX_ENTRIES):
        other.upsert([{"id": number}])
    assert replay(other.path / "changes") is None
    assert Lake.open(lake.path, settings=FAST).dataset("a.b.d").to_arrow().num_rows == MAX_ENTRIES


def test_a_missing_log_is_left_to_delta_rs(tmp_path: Path):
    assert replay(tmp_path) is None
    (tmp_path / "_delta_log").mkdir()
    assert replay(tmp_path) is None


def test_a_missing_or_damaged_entry_is_corruption(lake: Lake, dataset: Dataset):
    log = dataset.path / "changes" / "_delta_log"
    second = log / entry_name(2)
    content = second.read_bytes()
    for broken in (b"", content[: len(content) // 2], content.replace(b'"add"', b'"bad"')):
        second.write_bytes(broken)
        with pytest.raises(Corruption):
            Lake.open(lake.path, settings=FAST).dataset("a.b.c").to_arrow()
    second.unlink()
    with refused(Corruption, Reason.MISSING_FILE):
        Lake.open(lake.path, settings=FAST).dataset("a.b.c").to_arrow()


def test_a_dropped_dataset_is_gone_for_a_handle_that_opens_it_later(lake: Lake, dataset: Dataset):
    waiting = Lake.open(lake.path, settings=FAST).dataset("a.b.c")
    del dataset
    lake.drop("a.b.c")
    with pytest.raises(Gone):
        waiting.to_arrow()


def test_the_status_of_many_datasets_opens_each_table_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from tests.e2e.silt import silt

    path = tmp_path / "lake"
    with Lake.open(path, settings=FAST) as lake:
        for number in range(5):
            lake.create(f"a.b.t{number}", "id BIGINT NOT NULL", key="id").upsert([{"id": 1}])
    opened: list[Path] = []

    def counting(table: Path) -> Any:  # noqa: ANN401
        opened.append(table)
        return replay(table)

    monkeypatch.setattr(table_reader, "replay", counting)
    assert len(silt("--lake", path, "--json", "status").data) == 5
    assert len([table for table in opened if table.name in ("base", "changes")]) == 10
    opened.clear()
    assert silt("--lake", path, "compact", "--plan").code == 0
    assert len([table for table in opened if table.name in ("base", "changes")]) == 10
