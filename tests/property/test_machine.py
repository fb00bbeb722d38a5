"""A state machine against a dict: after any operations in any order, a dataset returns the dict's rows."""

import contextlib
import random
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from siltstone import Lake
from siltstone.config import Settings
from siltstone.dataset.dataset import Dataset
from siltstone.errors import InvalidRequest, SiltstoneError
from siltstone.failpoints import arm
from siltstone.model.reports import Ack
from tests.support.children import Child
from tests.support.kinds import KINDS, Kind, Row, plain, plain_rows, random_values, to_table
from tests.support.model import Model

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "property.test.machine"
WRITE_PLACES = [
    "upsert.after_stage",
    "commit.before_entry",
    "commit.after_draft",
    "commit.after_entry",
    "upsert.after_commit",
]
FOLD_PLACES = [
    "fold.after_plan",
    "fold.after_write",
    "fold.before_commit",
    "commit.before_entry",
    "fold.after_commit",
    "fold.after_prune",
]
PURGE_PLACES = [
    "purge.after_fold",
    "purge.before_delete",
    "purge.during_delete",
    "purge.after_delete",
    "checkpoint.before_write",
    "checkpoint.after_write",
    "purge.after_checkpoint",
    "purge.after_log_clean",
]
SQUASH_PLACES = ["squash.after_write", "commit.before_entry", "commit.after_entry", "squash.after_commit"]
INDEXES = st.lists(st.integers(min_value=0, max_value=99), min_size=1, max_size=6)
SEEDS = st.integers(min_value=0, max_value=2**32)


def upsert_file(path: str, source: str) -> int | None:
    """Runs in a child: upsert the rows of an Arrow file."""
    with pa.memory_map(source) as file, Lake.open(path) as lake:
        return lake.dataset(NAME).upsert(pa.ipc.open_file(file).read_all()).sequence


class DatasetMachine(RuleBasedStateMachine):
    """Rules are the actions of users, schedulers and crashes."""

    spark_actions = 3
    children = 1

    session: "SparkSession"
    root: Path

    def __init__(self) -> None:
        """Each example has its own lake."""
        super().__init__()
        self._folder = Path(tempfile.mkdtemp(dir=self.root))
        self._left = self.spark_actions
        self._children_left = self.children
        self._producer: tuple[int, Ack, list[Row]] | None = None

    @initialize(
        kind=st.sampled_from(KINDS),
        way=st.sampled_from([{}, {"arrow_changes_rows": 0}, {"positions_from_rows": 0}]),
    )
    def start(self, kind: Kind, way: dict[str, Any]) -> None:
        self._settings = Settings(durable=False, vacuum_floor_hours=0, checkpoint_interval_commits=3, **way)
        self.kind = kind
        self.model = Model(kind)
        self.lake = self._open()
        self.lake.create(NAME, kind.schema, key=kind.key)
        self.dataset: Dataset = self.lake.dataset(NAME)

    def _open(self) -> Lake:
        return Lake.open(self._folder / "lake", settings=self._settings, spark=self.session)

    def _keys(self, indexes: list[int]) -> list[tuple[Any, ...]]:
        return [self.kind.keys[index % len(self.kind.keys)] for index in indexes]

    def _rows(self, indexes: list[int], seed: int) -> list[Row]:
        rng = random.Random(seed)
        return [self.kind.row(key, random_values(rng)) for key in self._keys(indexes)]

    # ---- writes --------------------------------------------------------------------------------------------------

    @rule(indexes=INDEXES, seed=SEEDS)
    def upsert(self, indexes: list[int], seed: int) -> None:
        rows = self._rows(indexes, seed)
        ack = self.dataset.upsert(to_table(self.kind, rows))
        self.model.upsert(rows)
        assert ack == Ack(sequence=self.model.sequence, rows=len(rows))

    @rule(indexes=INDEXES, reason=st.sampled_from([None, "", "asked"]))
    def tombstone(self, indexes: list[int], reason: str | None) -> None:
        keys = self._keys(indexes)
        ack = self.dataset.tombstone([dict(zip(self.kind.key, key, strict=True)) for key in keys], reason=reason)
        self.model.tombstone(keys, reason)
        assert (ack.sequence, ack.rows, ack.applied) == (self.model.sequence, len(keys), True)

    @rule(indexes=INDEXES, seed=SEEDS, step=st.integers(min_value=1, max_value=3))
    def producer_writes(self, indexes: list[int], seed: int, step: int) -> None:
        rows = self._rows(indexes, seed)
        number = self._producer[0] + 1 if self._producer else step
        ack = self.dataset.upsert(to_table(self.kind, rows), producer="feed", sequence=number)
        self.model.upsert(rows)
        assert ack == Ack(sequence=self.model.sequence, rows=len(rows))
        self._producer = (number, ack, rows)

    @precondition(lambda self: self._producer is not None)
    @rule(away=st.integers(min_value=-2, max_value=3).filter(lambda away: away != 1))
    def producer_repeats_or_loses_its_place(self, away: int) -> None:
        assert self._producer is not None
        number, first, rows = self._producer
        table = to_table(self.kind, rows)
        if away == 0:
            ack = self.dataset.upsert(table, producer="feed", sequence=number)
            assert ack == Ack(sequence=first.sequence, rows=len(rows), applied=False)
            return
        with pytest.raises(InvalidRequest):
            self.dataset.upsert(table, producer="feed", sequence=number + away)

    @rule(indexes=INDEXES, seed=SEEDS, place=st.sampled_from(WRITE_PLACES))
    def upsert_on_a_failing_disk(self, indexes: list[int], seed: int, place: str) -> None:
        rows = self._rows(indexes, seed)
        with arm(place, "raise"), contextlib.suppress(SiltstoneError, OSError):
            self.dataset.upsert(to_table(self.kind, rows))
        self._landed_or_not(rows)

    @precondition(lambda self: self._children_left > 0)
    @rule(indexes=INDEXES, seed=SEEDS, place=st.sampled_from(WRITE_PLACES))
    def upsert_in_a_process_that_is_killed(self, indexes: list[int], seed: int, place: str) -> None:
        self._children_left -= 1
        rows = self._rows(indexes, seed)
        source = self._folder / "rows.arrow"
        table = to_table(self.kind, rows)
        with pa.OSFile(str(source), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        arguments = {"path": str(self._folder / "lake"), "source": str(source)}
        assert Child(f"{__name__}:upsert_file", arguments, failpoint=f"{place}:kill").wait().killed
        self._landed_or_not(rows)

    def _landed_or_not(self, rows: list[Row]) -> None:
        """Update the model if the upsert landed; the invariants check the rest."""
        if self.dataset.status().sequence > self.model.sequence:
            self.model.upsert(rows)

    # ---- maintenance ---------------------------------------------------------------------------------------------

    def _take_spark(self) -> None:
        """Count a fold that has work: each costs a second. An empty fold costs nothing."""
        if self.model.pending:
            self._left -= 1

    @precondition(lambda self: self._left > 0 or not self.model.pending)
    @rule(purge=st.booleans())
    def compact(self, purge: bool) -> None:  # noqa: FBT001
        self._take_spark()
        report = self.dataset.compact(purge=purge).to_dict()
        expected = self.model.report()
        assert {name: report[name] for name in expected} == expected
        self.model.fold()
        if purge:
            assert self.dataset.status().unreferenced_files == 0

    @precondition(lambda self: self._left > 0 or not self.model.pending)
    @rule(place=st.sampled_from(FOLD_PLACES + PURGE_PLACES))
    def compact_on_a_failing_disk(self, place: str) -> None:
        self._take_spark()
        with arm(place, "raise"), contextlib.suppress(SiltstoneError, OSError):
            self.dataset.compact(purge=place in PURGE_PLACES)
        if self.dataset.status().watermark > self.model.watermark:
            self.model.fold()

    @rule()
    def squash(self) -> None:
        report = self.dataset.squash()
        if report.files_removed:
            self.model.squash()
            assert (report.files_added, report.rows_after) == (1, len(self.model.pending))

    @rule(place=st.sampled_from(SQUASH_PLACES))
    def squash_on_a_failing_disk(self, place: str) -> None:
        before = self.dataset.status().backlog_files
        with arm(place, "raise"), contextlib.suppress(SiltstoneError, OSError):
            self.dataset.squash()
        if self.dataset.status().backlog_files < before:
            self.model.squash()

    @rule()
    def vacuum(self) -> None:
        self.dataset.vacuum(retention_hours=0)
        assert self.dataset.status().unreferenced_files == 0

    @rule()
    def reopen(self) -> None:
        self.lake.close()
        self.lake = self._open()
        self.dataset = self.lake.dataset(NAME)

    # ---- invariants after every step -----------------------------------------------------------------------------

    @invariant()
    def readers_without_spark_give_the_rows_of_the_dict(self) -> None:
        assert plain_rows(self.dataset.to_arrow().to_pylist()) == plain_rows(list(self.model.rows.values()))
        assert plain_rows(self.dataset.to_arrow(raw=True).to_pylist()) == plain_rows(list(self.model.raw.values()))

    @invariant()
    def tombstones_are_those_of_the_dict(self) -> None:
        found = sorted(
            (tuple(plain(row[name]) for name in self.kind.key), row["sequence"], row["reason"])
            for row in self.dataset.tombstones()
        )
        assert found == self.model.tombstones

    @invariant()
    def sequences_have_no_gap_and_the_status_counts_exactly(self) -> None:
        status = self.dataset.status()
        assert (status.sequence, status.watermark) == (self.model.sequence, self.model.watermark)
        assert status.rows_in_base == len(self.model.base)
        assert status.backlog_rows == len(self.model.pending)
        assert status.backlog_batches == self.model.sequence - self.model.watermark

    def teardown(self) -> None:
        """At the end Spark reads the same rows, from a handle without any earlier state."""
        try:
            if hasattr(self, "dataset"):
                self.lake.close()
                fresh = self._open().dataset(NAME)
                assert plain_rows(fresh.read().toArrow().to_pylist()) == plain_rows(list(self.model.rows.values()))
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)


def machine(spark: "SparkSession", folder: Path) -> type[DatasetMachine]:
    """Return the machine for one session and one folder."""

    class Machine(DatasetMachine):
        session = spark
        root = folder

    return Machine


SHORT = hypothesis_settings(
    max_examples=4,
    stateful_step_count=14,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
DEEP = hypothesis_settings(SHORT, max_examples=60, stateful_step_count=30)


@pytest.mark.spark
def test_a_dataset_equals_a_dict_after_every_step(spark: "SparkSession", tmp_path: Path):
    run_state_machine_as_test(machine(spark, tmp_path), settings=SHORT)


@pytest.mark.deep
@pytest.mark.spark
def test_a_dataset_equals_a_dict_after_many_long_histories(spark: "SparkSession", tmp_path: Path):
    run_state_machine_as_test(machine(spark, tmp_path), settings=DEEP)
