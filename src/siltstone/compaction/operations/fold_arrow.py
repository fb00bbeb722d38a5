"""A fold of few changes: Arrow inside Spark's tasks rewrites the touched files one by one.

Spark assigns files to tasks. The rows never pass through its row format, because that is what makes a rewrite slow.
The driver holds the changes (they are few), and learns from the tasks which changes are in which file. It sends each
task the changes of its files. New keys go into the file whose range contains them, and the remaining ones into a
separate file.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from siltstone.compaction.operations.fold_plan import FoldPlan, Matched, grouped
from siltstone.dataset.store import Store
from siltstone.model.arrays import Numbers
from siltstone.model.columns import OP, Op
from siltstone.model.files import DataFile, KeyRange
from siltstone.model.schema import default_of
from siltstone.spark.arrow_tasks import in_numbered_tasks
from siltstone.spark_tasks import fold as fold_task
from siltstone.spark_tasks.io import packed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, kw_only=True)
class ArrowMerge:
    """The last change of each key, sorted by key, and the steps to apply them to base files."""

    spark: "SparkSession"
    store: Store
    change_rows: int
    changes: pa.Table
    files: Sequence[DataFile]
    ranges: Mapping[str, KeyRange]

    @cached_property
    def _is_upsert(self) -> Numbers:
        return np.asarray(pc.equal(self.changes.column(OP), Op.UPSERT.value).to_numpy(zero_copy_only=False))

    def counts(self) -> tuple[int, int, int]:
        """Return the number of change rows, of keys that end as upsert, and of keys that end as tombstone."""
        upserts = int(self._is_upsert.sum())
        return self.change_rows, upserts, self.changes.num_rows - upserts

    @cached_property
    def _matches(self) -> dict[str, Numbers]:
        """The numbers of the changes in each base file that has changed keys."""
        spans = [self._span(self.ranges[file.path]) for file in self.files]
        keys = self.changes.select(list(self.store.spec.key))
        sent = [
            (str(self.store.base.path / file.path), packed(keys.slice(first, last - first)))
            for file, (first, last) in zip(self.files, spans, strict=True)
        ]
        finder = fold_task.finder(sent, verify=self.store.settings.verify_checksums)
        matches: dict[str, Numbers] = {}
        for number, data in self._run_tasks(len(sent), finder):
            numbers = np.frombuffer(data, dtype="<i8") + spans[number][0]
            if len(numbers):
                matches[self.files[number].path] = numbers
        return matches

    def matched(self) -> dict[str, Matched]:
        """Count the rows that are replaced and dropped, file by file."""
        return {
            path: Matched(replaced=int(self._is_upsert[numbers].sum()), dropped=int((~self._is_upsert[numbers]).sum()))
            for path, numbers in self._matches.items()
        }

    def _span(self, keys: KeyRange) -> tuple[int, int]:
        """Return the slice of the changes that can be in a file with this range of keys."""
        if not keys.known:
            return 0, self.changes.num_rows
        return bisect_left(self._first_column, keys.low), bisect_right(self._first_column, keys.high)

    @cached_property
    def _first_column(self) -> list[Any]:
        return list(self.changes.column(self.store.spec.key[0]).to_pylist())

    def write(self, plan: FoldPlan, folder: str) -> list[str]:
        """Rewrite the touched files. Return the valid names: a task that Spark runs twice may leave other files."""
        target = self.store.base.make_folder(folder, exist_ok=False)
        job = fold_task.FoldJob(
            target=self.store.task_target(self.store.schema, target),
            defaults={field.name: default_of(field) for field in self.store.schema},
            key=self.store.spec.key,
            op=OP,
            upsert=Op.UPSERT.value,
        )
        tasks = list(self._tasks(plan))
        answers = self._run_tasks(len(tasks), fold_task.rewriter(tasks, job))
        return [name for _, data in answers if data for name in data.decode().split("\n")]

    def _tasks(self, plan: FoldPlan) -> Iterator[fold_task.Task]:
        new = self._is_upsert.copy()
        for replaced in self._matches.values():
            new[replaced] = False
        target = self.store.settings.target_file_bytes
        for group in grouped(plan.touched, self.ranges, target_bytes=target):
            numbers = [self._matches[file.path] for file in group if file.path in self._matches]
            for file in group:
                first, last = self._span(self.ranges[file.path]) if self.ranges[file.path].known else (0, 0)
                numbers.append(first + np.flatnonzero(new[first:last]))
                new[first:last] = False
            yield self._task(group, np.sort(np.concatenate(numbers)))
        if new.any():
            yield self._task((), np.flatnonzero(new))

    def _task(self, files: Sequence[DataFile], numbers: Numbers) -> fold_task.Task:
        """Describe the rewrite of some files. A file that would grow far beyond the target size is split."""
        rows_in = sum(file.rows for file in files)
        rows = rows_in + len(numbers)
        size = sum(file.size_bytes for file in files) * rows // max(1, rows_in)
        count = max(1, round(size / self.store.settings.target_file_bytes))
        return fold_task.Task(
            inputs=tuple(str(self.store.base.path / file.path) for file in files),
            changes=packed(self.changes.take(pa.array(numbers))),
            rows_per_file=max(1, -(-rows // count)),
        )

    def _run_tasks(self, count: int, work: Callable[[int], bytes]) -> Iterator[tuple[int, bytes]]:
        """Run `work` on the numbers below `count`, one number per task, and yield the small results."""
        if count:
            yield from in_numbered_tasks(self.spark, count, work)
