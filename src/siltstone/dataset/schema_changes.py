"""Changes a dataset's columns beside writers, readers and folds.

Flow:

1. `changes` gets the new columns: from now on a file with them can be written;
2. `base` gets them: base's columns are the dataset's, so from now on they are visible and written.

Each step is a commit of its own, based on the table's current columns. So two concurrent alterations both take effect.
Old files are not rewritten. A reader shows the default for a column that a file lacks, and widens a narrower one. A
write that was staged before and is committed after is one more old file. A fold that was planned before is refused and
replanned. A crash between 1 and 2 leaves columns that no reader sees; `finish` executes the second step.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from siltstone.dataset.schema_compat import all_fit
from siltstone.dataset.store import Store
from siltstone.errors import InvalidRequest
from siltstone.failpoints import reach
from siltstone.model.columns import RESERVED_PREFIX
from siltstone.model.evolution import Alteration, alterations, altered
from siltstone.model.reports import AlterReport
from siltstone.model.schema import a_type, describe, own_columns
from siltstone.spark_tasks.values import accepted, shown


def alter(store: Store, alteration: Alteration, *, dry_run: bool = False) -> AlterReport:
    """Change the columns; a dry run only returns what would change. After InvalidRequest nothing was changed."""
    with _dataset_named(store, "This alteration changed nothing."):
        _check_defaults(alteration)
        finish(store)
        fixed = {*store.spec.subject, *store.spec.partition_by} if store.spec.is_log else set()
        for name in alteration.widen:
            if name in fixed:
                raise InvalidRequest(
                    f"Column {name!r} is a subject or partition column of the log, whose type cannot change."
                )
        before = own_columns(store.base.pin().schema)
        after = altered(before, alteration, key=store.spec.key)
    if not dry_run and not after.equals(before, check_metadata=True):
        with _dataset_named(store, "Another process altered it meanwhile. This alteration changed nothing."):
            store.changes.evolve(lambda columns: _evolved(columns, alteration, store, nullable=True))
        reach("alter.after_changes")
        with _dataset_named(store, "Another process altered it meanwhile. Check its columns."):
            store.base.evolve(lambda columns: _evolved(columns, alteration, store))
        reach("alter.after_base")
    return AlterReport(
        dataset=str(store.name), changed=alterations(before, after), columns=describe(after), dry_run=dry_run
    )


@contextmanager
def _dataset_named(store: Store, outcome: str) -> Iterator[None]:
    """Add the dataset's name and the outcome to an InvalidRequest about a column."""
    try:
        yield
    except InvalidRequest as error:
        raise InvalidRequest(
            f"Dataset {store.name}: {error} {outcome}", reason=error.stated_reason, paths=error.paths
        ) from error


def _check_defaults(alteration: Alteration) -> None:
    """Validate defaults of added columns like other values, because Arrow and Spark read some texts differently."""
    added = {field.name: field.type for field in alteration.add}
    for name, default in alteration.defaults.items():
        kind = added.get(name)
        if default is None or kind is None or pa.types.is_nested(kind) or pa.types.is_binary(kind):
            continue  # rejected by name, if it has to be rejected
        if not all_fit([default], kind, as_text=isinstance(default, str)):
            raise InvalidRequest(
                f"Column {name!r}: the default {shown(default)} is not {a_type(kind)}. Accepted: {accepted(kind)}."
            )


def finish(store: Store) -> bool:
    """Execute the second step of an alteration that was interrupted after the first; return whether there was one."""
    ahead = own_columns(store.changes.pin().schema)
    here = own_columns(store.base.pin().schema)
    existing = set(here.names)
    new = pa.schema([f for f in ahead if f.name not in existing])
    wider = {f.name: f.type for f in ahead if f.name in existing and f.type != here.field(f.name).type}
    if not new.names and not wider:
        return False
    step = Alteration(add=new, widen=wider)
    store.base.evolve(lambda columns: _evolved(columns, step, store))
    return True


def _evolved(columns: pa.Schema, alteration: Alteration, store: Store, *, nullable: bool = False) -> pa.Schema:
    """Return a table's columns after the alteration: the user's, then our own.

    In `changes` they are `nullable`, because a tombstone has only the key.
    """
    key = store.spec.key
    user_columns = altered(own_columns(columns), alteration, key=key)
    fields = [f.with_nullable(True) if nullable and f.name not in key else f for f in user_columns]  # noqa: FBT003
    return pa.schema([*fields, *[f for f in columns if f.name.startswith(RESERVED_PREFIX)]])
