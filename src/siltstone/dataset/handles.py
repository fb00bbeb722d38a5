"""Handles of the datasets of one lake: open one, list all, load the first rows of a new one."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from siltstone.dataset.dataset import Dataset
from siltstone.dataset.description import info_of
from siltstone.dataset.ports import Conditions, Maintenance
from siltstone.dataset.registry import Registration, Registry
from siltstone.errors import Corruption, Gone, InvalidRequest, SiltstoneError
from siltstone.model.names import DatasetName
from siltstone.model.preview import html_table
from siltstone.model.reports import DatasetInfo

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_HTML_DATASETS: Final = 50
"""Datasets of a lake that a notebook shows."""


class DatasetHandles:
    """Builds handles from registrations."""

    def __init__(
        self,
        registry: Registry,
        *,
        spark: "Callable[[], SparkSession]",
        maintenance: Callable[[], Maintenance],
        conditions: Callable[[], Conditions],
    ) -> None:
        self._registry = registry
        self._spark = spark
        self._maintenance = maintenance
        self._conditions = conditions

    def find(self, name: str) -> Dataset:
        """Return the handle of a dataset by name. NotFound if no dataset has this name."""
        return self.open(self._registry.find(DatasetName.parse(name)))

    def open(self, row: Registration) -> Dataset:
        """Return the handle of a registration; nothing is opened yet."""
        return Dataset(
            row,
            self._registry.store(row),
            spark=self._spark,
            maintenance=self._maintenance,
            conditions=self._conditions,
        )

    def all(self) -> tuple[list[Dataset], dict[str, Corruption]]:
        """Return all handles by name, and the errors of datasets whose tables are not on disk."""
        datasets: list[Dataset] = []
        broken: dict[str, Corruption] = {}
        for row in self._registry.all():
            if error := self._registry.broken(row):
                broken[str(row.name)] = error
            else:
                datasets.append(self.open(row))
        return datasets, broken

    def infos(self) -> list[DatasetInfo]:
        """Describe all datasets by name; `broken` has the error of one that cannot be read."""
        return [info for row in self._registry.all() if (info := self._info(row)) is not None]

    def _info(self, row: Registration) -> DatasetInfo | None:
        """Describe one dataset; None if it was dropped since it was listed."""
        if error := self._registry.broken(row):
            return info_of(row, row.schema, broken=error)
        try:
            return self.open(row).info()
        except Gone:
            return None
        except SiltstoneError as error:
            return info_of(row, row.schema, broken=error)

    def html(self, title: str) -> str:
        """Return a table of the registered datasets for a notebook, or the error that hides them."""
        columns = ("dataset", "kind", "key or time")
        try:
            rows = self._registry.all()
        except (SiltstoneError, OSError) as error:
            return html_table(columns, (), caption=f"{title}: {error}")
        shown = [
            [str(row.name), str(row.spec.kind), row.spec.time or ", ".join(row.spec.key)]
            for row in rows[:MAX_HTML_DATASETS]
        ]
        return html_table(columns, shown, caption=f"{title}, {len(rows):,} datasets")

    def load_new(self, dataset: Dataset, source: Any) -> Dataset:  # noqa: ANN401
        """Load the rows of a file or a frame into a dataset that was just created, and return the dataset.

        If they are refused, the dataset is dropped, unless it existed before or has a commit (`Registry.drop_unused`).
        """
        try:
            if isinstance(source, str | Path):
                dataset.ingest(source)
            elif dataset.spec.is_log:
                dataset.append(source)
            else:
                dataset.upsert(source)
        except InvalidRequest:
            self._registry.drop_unused(dataset.registration)
            raise
        return dataset
