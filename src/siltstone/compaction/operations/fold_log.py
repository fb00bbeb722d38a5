"""The fold of a log: writes visible appends to base, by their hour, and removes hidden rows from base.

Flow (see `commit` for what a crash leaves behind at each step):

1. plan: take a snapshot and the tombstones of its changes. Spark counts the visible appends of each group, and the
   rows of each base file that a tombstone hides. A *group* is a period and values of the user's partition columns: its
   rows may share a file. Files without a hidden row are not touched. Duplicates (`dedup`) that do not survive are left
   out, or removed from base.
2. run: Spark writes the appends into their groups, and each touched file without its hidden rows into its group. After
   a roll-up that group may be a day or a month. Rows are sorted inside files of the target size.
3. verify: every footer is read back, and each group must hold exactly the counted rows.
4. commit, prune.

No row passes through the driver, which receives only names and counts. Groups are numbered, and Spark partitions by
number, so that no value of a user becomes part of a path.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from siltstone.compaction.operations.fold import estimate_of, initial_plan
from siltstone.compaction.operations.fold_plan import FoldPlan, Matched, by_file_name
from siltstone.dataset.load.partition_groups import (
    GROUP,
    GROUP_TASKS,
    Group,
    described,
    file_rows,
    group_columns,
    group_of,
    group_texts,
    moved_files,
    spread,
    with_period,
    write_groups,
)
from siltstone.dataset.read.arrow_view import unfolded_rows
from siltstone.dataset.read.dedup import near_files, without_equal
from siltstone.dataset.read.log_view import (
    TombstoneFilter,
    append_frame,
    is_small,
    tombstone_filters,
    tombstone_frames,
    tombstone_rows,
    without_hidden,
)
from siltstone.dataset.read.spark_frames import changes_frame, scan
from siltstone.dataset.snapshot import Snapshot
from siltstone.dataset.store import Store
from siltstone.delta.layout import is_squashed
from siltstone.delta.parquet import key_ranges
from siltstone.errors import Corruption
from siltstone.failpoints import reach
from siltstone.model.files import DataFile, may_contain
from siltstone.model.reports import FoldEstimate
from siltstone.model.spec import Survivor
from siltstone.spark.output_files import writer_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NAME: Final = "_name"
_ROWS: Final = "_rows"
MANY_GROUPS: Final = 10_000
"""Highest number of groups in one fold that are sent to every task. More groups are joined by a shuffle."""


@dataclass(frozen=True, kw_only=True)
class LogFold:
    """The changes of a snapshot as frames, and the steps to write them to base."""

    spark: "SparkSession"
    store: Store
    snapshot: Snapshot

    @cached_property
    def _filters(self) -> "tuple[tuple[TombstoneFilter, DataFrame], ...]":
        return tombstone_frames(self.spark, tombstone_filters(self.store, self.snapshot))

    @cached_property
    def _appends(self) -> "DataFrame":
        """The visible appends as base stores them, with their period."""
        columns = self.store.base_schema.names
        frame = append_frame(self.spark, self.store, self.snapshot, self._filters, columns=columns)
        return with_period(frame, self.store)

    def plan(self) -> FoldPlan:
        """Return the plan: the files to rewrite, and the exact row counts to expect."""
        snapshot = self.snapshot
        with writer_settings(self.spark):
            dropped = self.dropped
            files = sorted(snapshot.base.files, key=lambda file: file.path)
            return replace(
                initial_plan(snapshot),
                touched=tuple(file for file in files if file.path in dropped),
                change_rows=self._change_rows(),
                upserts=sum(self.appended.values()),
                tombstones=tombstone_rows(self.store, snapshot).num_rows,
                replaced=sum(counts.replaced for counts in dropped.values()),
                dropped=sum(counts.dropped for counts in dropped.values()),
            )

    def _change_rows(self) -> int:
        """Return the number of folded change rows. Some rows of a squashed file may already be in base."""
        if not any(is_squashed(file.path) for file in self.snapshot.unfolded):
            return self.snapshot.unfolded_rows
        if is_small(self.store, self.snapshot):
            return int(unfolded_rows(self.store, self.snapshot, columns=[]).num_rows)
        return changes_frame(self.spark, self.store, self.snapshot).count()

    @cached_property
    def appended(self) -> dict[Group, int]:
        """Number of visible appends of each group. Only counts leave Spark."""
        from pyspark.sql import functions as F

        names = group_columns(self.store)
        counted = self._appends.groupBy(*group_texts(self.store)).agg(F.count(F.lit(1)).alias(_ROWS)).toArrow()
        groups = [counted.column(name).to_pylist() for name in names]
        return dict(zip(zip(*groups, strict=True), counted.column(_ROWS).to_pylist(), strict=True))

    @cached_property
    def dropped(self) -> dict[str, Matched]:
        """Rows per base file that a tombstone hides or a later duplicate replaces. Only counts leave Spark."""
        from pyspark.sql import functions as F

        hiding = touched_at_most(self.store, self.snapshot, [tombstone_filter for tombstone_filter, _ in self._filters])
        near = near_files(self.store, self.snapshot) if self._replacing is not None else []
        files = list({file.path: file for file in (*hiding, *near)}.values())
        if not files:
            return {}
        names = by_file_name(files, dataset=str(self.store.name))
        columns = dict.fromkeys((*self.store.spec.subject, *self.store.spec.dedup_by))
        rows = self._scan(files).select(*columns, F.col("_metadata.file_name").alias(_NAME))
        visible = self._counted(self._without_hidden(rows))
        hidden = {file.path: file.rows - visible.get(name, 0) for name, file in names.items()}
        replaced = dict.fromkeys(hidden, 0)
        if self._replacing is not None:
            remaining = self._counted(self._without_replaced(self._without_hidden(rows)))
            replaced = {file.path: visible.get(name, 0) - remaining.get(name, 0) for name, file in names.items()}
        return {
            path: Matched(dropped=count, replaced=replaced[path])
            for path, count in hidden.items()
            if count or replaced[path]
        }

    def _counted(self, rows: "DataFrame") -> dict[str, int]:
        """Count rows by the name of their file. Only counts leave Spark."""
        from pyspark.sql import functions as F

        counts = rows.groupBy(_NAME).agg(F.count(F.lit(1)).alias(_ROWS)).toArrow().to_pylist()
        return {row[_NAME]: int(row[_ROWS]) for row in counts}

    @cached_property
    def _replacing(self) -> "DataFrame | None":
        """The appends that replace equal rows of base, if the last duplicate survives."""
        spec = self.store.spec
        return self._appends if spec.dedup_by and spec.survivor is Survivor.LAST else None

    def _without_replaced(self, rows: "DataFrame") -> "DataFrame":
        if self._replacing is None:
            return rows
        return without_equal(rows, self._replacing, self.store, few=is_small(self.store, self.snapshot))

    def _scan(self, files: Sequence[DataFile]) -> "DataFrame":
        paths = [self.store.base.path / file.path for file in files]
        return scan(self.spark, self.store, self.store.base_schema, paths)

    def _without_hidden(self, rows: "DataFrame") -> "DataFrame":
        for tombstone_filter, frame in self._filters:
            rows = without_hidden(rows, tombstone_filter, frame, self.store)
        return rows

    @cached_property
    def _groups(self) -> list[Group]:
        """All groups that get rows. The number of a group is its index in this list."""
        touched = [group_of(file, self.store) for file in self.snapshot.base.files if file.path in self.dropped]
        return sorted({*self.appended, *touched}, key=lambda group: [text or "" for text in group])

    def written(self, plan: FoldPlan, folder: str) -> tuple[DataFile, ...]:
        """Write and verify the files of the fold."""
        with writer_settings(self.spark):
            self._write(plan, folder)
        reach("fold.after_write")
        return self._collected(plan, folder)

    def _write(self, plan: FoldPlan, folder: str) -> None:
        """Write the groups with Spark, each into a separate folder, sorted."""
        rows = self._numbered(self._appends)
        if plan.touched:
            rows = rows.unionByName(self._rewritten(plan.touched))
        size = sum(file.size_bytes for file in (*plan.touched, *self.snapshot.unfolded))
        count = plan.change_rows + sum(file.rows for file in plan.touched)
        parts = max(1, -(-size // self.store.settings.target_file_bytes))
        ordered = spread(rows, self.store, parts=parts, tasks=min(len(self._groups), GROUP_TASKS))
        rows_per_file = file_rows(self.store, rows=count, size_bytes=size)
        write_groups(ordered, self.store, folder, rows_per_file=rows_per_file)

    def _numbered(self, rows: "DataFrame") -> "DataFrame":
        """Add the number of its group to each append."""
        from pyspark.sql import functions as F

        names = group_columns(self.store)
        columns = [f"_in{place}" for place in range(len(names))]
        listed = [(number, *group) for number, group in enumerate(self._groups)]
        schema = ", ".join([f"{GROUP} int", *[f"{column} string" for column in columns]])
        groups = self.spark.createDataFrame(listed, schema)
        same = F.lit(True)  # noqa: FBT003
        for name, column in zip(names, columns, strict=True):
            same = same & F.col(f"`{name}`").cast("string").eqNullSafe(F.col(column))
        side = F.broadcast(groups) if len(listed) <= MANY_GROUPS else groups
        return rows.join(side, same).select(*self.store.base_schema.names, GROUP)

    def _rewritten(self, touched: Sequence[DataFile]) -> "DataFrame":
        """Return the remaining rows of touched files, each with the number of its file's group."""
        from pyspark.sql import functions as F

        numbers = {group: number for number, group in enumerate(self._groups)}
        listed = [(file.path.rsplit("/", 1)[-1], numbers[group_of(file, self.store)]) for file in touched]
        names = self.spark.createDataFrame(listed, f"{_NAME} string, {GROUP} int")
        rows = self._scan(touched).withColumn(_NAME, F.col("_metadata.file_name"))
        remaining = self._without_replaced(self._without_hidden(rows)).join(F.broadcast(names), _NAME)
        return remaining.select(*self.store.base_schema.names, GROUP)

    def _collected(self, plan: FoldPlan, folder: str) -> tuple[DataFile, ...]:
        """Check that each group has the counted rows, and return the files for the commit."""
        files = [
            described(self.store, path, self._groups[int(number)]) for path, number in moved_files(self.store, folder)
        ]
        expected: Counter[Group] = Counter(self.appended)
        for file in plan.touched:
            matched = self.dropped[file.path]
            expected[group_of(file, self.store)] += file.rows - matched.dropped - matched.replaced
        written: Counter[Group] = Counter()
        for file in files:
            written[group_of(file, self.store)] += file.rows
        if +expected != +written:
            wrong = next(iter({**(expected - written), **(written - expected)}))
            raise Corruption(
                f"Dataset {self.store.name}: the fold wrote {written[wrong]} rows into {'/'.join(map(str, wrong))} and should "
                f"have written {expected[wrong]}; nothing was committed. Check the disk, and fold again."
            )
        return tuple(files)


def touched_at_most(store: Store, snapshot: Snapshot, filters: Sequence[TombstoneFilter]) -> list[DataFile]:
    """Return the base files that may have a row which a tombstone hides, by their footers."""
    named: list[tuple[str, list[Any] | None]] = []  # a column and the values that a tombstone names, in order
    try:
        for tombstone_filter in filters:
            for name in tombstone_filter.columns[:1]:
                column = tombstone_filter.rows.column(name)
                is_boolean = pa.types.is_boolean(column.type)  # then footers cannot be used
                named.append((name, None if is_boolean else sorted(column.unique().to_pylist())))
    except OverflowError:  # a date that Python cannot hold
        return list(snapshot.base.files)
    return [file for file in snapshot.base.files if _may_hide(store, file, named)]


def _may_hide(store: Store, file: DataFile, named: Sequence[tuple[str, list[Any] | None]]) -> bool:
    metadata = store.footer(store.base.path / file.path)
    return any(
        values is None or may_contain(group, values) for name, values in named for group in key_ranges(metadata, name)
    )


def estimate_log(store: Store, snapshot: Snapshot) -> FoldEstimate:
    """Estimate the work of a fold of a log from logs and footers alone. Spark is not used, and nothing is written."""
    touched = touched_at_most(store, snapshot, tombstone_filters(store, snapshot)) if snapshot.unfolded else []
    if store.spec.survivor is Survivor.LAST:
        touched = list({file.path: file for file in (*touched, *near_files(store, snapshot))}.values())
    return estimate_of(store, snapshot, touched)
