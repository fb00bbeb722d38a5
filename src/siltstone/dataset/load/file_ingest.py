"""Loads files or a database table: selects new files, checks them, and quarantines bad ones.

Flow of `load_files`:

1. find the files and hash them; leave out files that were loaded before (default; `reload` loads them too);
2. check each file; bad files reject the whole load, or are copied into the quarantine;
3. the rest becomes one frame, which the loader writes and commits together with the files' hashes.

If another process loads one of the files meanwhile, the loader commits nothing. Then the flow restarts with the
files that are left.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from siltstone.dataset.load.file_formats import ValidatedFiles, check_files, read_files
from siltstone.dataset.load.jdbc import JdbcSource
from siltstone.dataset.load.latest_row import check_order
from siltstone.dataset.load.loaded_files import MAX_REMEMBERED_FILES, apps_of, hash_files, loaded_before
from siltstone.dataset.load.loader import LoadedMeanwhile, Loader
from siltstone.dataset.load.quarantine import Quarantine
from siltstone.dataset.load.sorted_write import Size
from siltstone.dataset.load.source_files import Format, IngestRequest, SourceFiles, find_source, is_compressed
from siltstone.dataset.load.staged_load import LoadRequest
from siltstone.dataset.read.spark_frames import persisted_on_disk
from siltstone.dataset.schema_compat import check_frame
from siltstone.dataset.store import Store
from siltstone.delta.log_reader import Mark, file_mark
from siltstone.errors import InvalidRequest, Unavailable
from siltstone.model.reports import LoadReport
from siltstone.spark.errors import away, error_line, is_away, spark_errors
from siltstone.spark.jars import fetch_driver
from siltstone.spark_tasks.csv_rows import PLAIN

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TRIES: Final = 5
"""Tries of one load. A further try means that another process loaded some of the files, so fewer are left each time."""
TEXT_RATIO: Final = 4
"""Ratio of text size to compressed Parquet size of the same rows. It sets the number of output files."""


class FileIngest:
    """Loads files into one dataset."""

    def __init__(self, store: Store, loader: Loader, spark: "Callable[[], SparkSession]") -> None:
        """Use the dataset's loader. Spark starts after every file was checked."""
        self._store = store
        self._loader = loader
        self._spark = spark

    def load_files(self, request: IngestRequest) -> LoadReport:
        """Load the new files (see `Dataset.ingest`)."""
        source = find_source(request.paths, format_name=request.format_name)
        if request.form is not None and source.format is not Format.CSV:
            raise InvalidRequest(
                f"The files are {source.format}; options of CSV do not concern them. Nothing was loaded."
            )
        quarantine = self.quarantine(request.quarantine, sources=request.paths)
        check_order(self._store, request.order_by)
        for _ in range(TRIES):
            try:
                return self._ingest_new(source, request, quarantine)
            except LoadedMeanwhile:
                quarantine = self.quarantine(request.quarantine, sources=request.paths)
        raise Unavailable(f"Dataset {self._store.name}: other processes keep loading the same files. Try again.")

    def quarantine(self, folder: str | Path | None, *, sources: Sequence[str | Path] = ()) -> Quarantine | None:
        """Choose the quarantine folder, if the caller requests one."""
        return Quarantine.below(folder, self._store, sources) if folder is not None else None

    def _ingest_new(self, source: SourceFiles, request: IngestRequest, quarantine: Quarantine | None) -> LoadReport:
        started = self._store.clock.monotonic_seconds()
        remember = not request.reload and len(source.files) <= MAX_REMEMBERED_FILES
        marks = {file: file_mark(file) for file in source.files}
        hashes = hash_files(source.files) if remember else {}
        skipped = loaded_before(self._store, hashes)
        first = {digest: file for file, digest in reversed(hashes.items())}
        left_out = skipped | {file for file, digest in hashes.items() if first[digest] != file}
        new = replace(source, files=tuple(file for file in source.files if file not in left_out))
        form = request.form or PLAIN
        checked = check_files(new, self._store.schema, dataset=str(self._store.name), form=form)
        self._quarantine_files(checked, quarantine, all_new=not skipped)
        loaded = apps_of({file: hashes[file] for file in checked.files if file in hashes})
        if checked.files:
            report = self._load(checked, request, quarantine, loaded, marks)
        else:
            sequence = self._store.snapshot().sequence
            report = LoadReport(rows=0, files=0, bytes=0, sequence=sequence, first_load=False, seconds=0)
        return replace(
            report,
            seconds=self._store.clock.monotonic_seconds() - started,
            files_skipped=len(source.files) - len(new.files),
            files_quarantined=len(checked.bad),
            quarantine=str(quarantine.path) if quarantine is not None and checked.bad else report.quarantine,
        )

    def load_jdbc(self, source: JdbcSource, *, order_by: tuple[str, ...], quarantine: str | Path | None) -> LoadReport:
        """Load the rows of a database table or query (see `Dataset.ingest_jdbc`)."""
        source.check()
        check_order(self._store, order_by)
        target = self.quarantine(quarantine)
        if source.is_postgres:
            with contextlib.suppress(Unavailable):  # a session that has the driver does not need ours
                fetch_driver(self._store.settings)
        name = str(self._store.name)
        spark = self._spark()
        with source.readable_errors(spark, name):
            frame = check_frame(source.frame(spark), self._store.schema, dataset=name)
            return load_once(self._loader, LoadRequest(frame=frame, order_by=order_by, quarantine=target))

    def _quarantine_files(self, checked: ValidatedFiles, quarantine: Quarantine | None, *, all_new: bool) -> None:
        if quarantine is None:
            checked.refuse_bad()
        elif checked.bad:
            quarantine.put_files(checked.bad)
            if not checked.files:
                quarantine.settle()
            if not checked.files and all_new:
                raise InvalidRequest(
                    f"None of {len(checked.bad)} files can be loaded; they are in {quarantine.path} with the reasons. "
                    "Nothing was loaded."
                )

    def _load(
        self,
        checked: ValidatedFiles,
        request: IngestRequest,
        quarantine: Quarantine | None,
        loaded: frozenset[str],
        marks: Mapping[Path, Mark],
    ) -> LoadReport:
        def check_source() -> None:
            for file in checked.files:
                if file_mark(file) != marks[file]:
                    raise InvalidRequest(f"{file} was changed or removed while it was loaded. Nothing was loaded.")

        try:
            frame = read_files(self._spark, checked, self._store.schema)
        except spark_errors() as error:
            if is_away(error):
                raise away(error) from error
            raise InvalidRequest(f"Spark cannot read the files: {error_line(error)} Nothing was loaded.") from error
        size_bytes = sum(
            file.stat().st_size // (TEXT_RATIO if checked.format.is_text and not is_compressed(file) else 1)
            for file in checked.files
        )
        load = LoadRequest(
            frame=frame,
            size=Size(size_bytes=size_bytes, rows=checked.rows),
            files=checked.plain_files,
            order_by=request.order_by,
            quarantine=quarantine,
            loaded=loaded,
            encoding=checked.form.encoding,
            check_source=check_source,
        )
        return load_once(self._loader, load) if checked.format.is_text else self._loader.load(load)


def load_once(loader: Loader, load: LoadRequest) -> LoadReport:
    """Load a frame that is costly to compute, or may differ when computed again: Spark caches it on its disks."""
    with persisted_on_disk(load.frame) as persisted:
        return loader.load(replace(load, frame=persisted))
