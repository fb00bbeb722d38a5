"""Delta tables with one row for each name, such as the registry and the leases.

The live file of a name, a partition of its own, holds its row. An app transaction for each name counts its rows, so that exactly
one of several writers replaces a row. A file is staged first; until a commit names it, it belongs to the owner in its path.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from siltstone.delta.layout import DATA
from siltstone.delta.parquet import small_file
from siltstone.delta.table import Parent, Table
from siltstone.errors import Corruption
from siltstone.model.files import Commit, CommitKind, DataFile
from siltstone.model.spec import FIRST_FORMAT, PROPERTY_FORMAT

NAME: Final = "name"


def create_table(path: Path, row: pa.Schema, *, durable: bool) -> None:
    """Create the table; `row` are the columns of its files.

    Raises:
        Conflict: another process has created it.
    """
    Table.create(
        path,
        pa.schema([pa.field(NAME, pa.string(), nullable=False), *row]),
        partition_by=[NAME],
        properties={PROPERTY_FORMAT: str(FIRST_FORMAT)},
        durable=durable,
    )


def stage_row(table: Path, owner: str, name: str, values: Mapping[str, Any], row: pa.Schema) -> DataFile:
    """Write the file of a new row; the file name begins with its owner."""
    relative = f"{DATA}/{owner}.parquet"
    path = table / relative
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(small_file(pa.Table.from_pylist([dict(values)], schema=row)))
    return DataFile(
        path=relative,
        size_bytes=path.stat().st_size,
        rows=1,
        partition={NAME: name},
        stats=json.dumps({"numRecords": 1}),
    )


def file_of(files: Iterable[DataFile], name: str, *, label: str) -> DataFile | None:
    """Return the live file of a name; None if it has none.

    Raises:
        Corruption: it has several.
    """
    found = [file for file in files if file.partition[NAME] == name]
    if len(found) > 1:
        raise Corruption(f"{label}: {name!r} has {len(found)} rows. Restore the table from a copy.")
    return found[0] if found else None


def replacement(
    parent: Parent, file: DataFile, old: DataFile | None, *, kind: CommitKind, app: str, number: int
) -> Commit:
    """Return the commit that puts a staged row in the place of the old one, with its `number` as the app transaction."""
    return Commit(
        kind=kind,
        plan_version=parent.version,
        adds=(file,),
        removes=(old,) if old is not None else (),
        transactions={app: number},
        depends=frozenset({app}),
    )
