"""Changes a dataset's columns beside writers, readers and folds.

Flow:

1. `changes` gets the new columns: from now on a file with them can be written;
2. `base` gets them: base's columns are the dataset's, so from now on they are visible and written.

Each step is a commit of its own, based on the table's current columns, so two concurrent alterations both take effect.
Old files are not rewritten. A reader shows the default for a column that a file lacks, and widens a narrower one. A
write that was staged before and is committed after is one more old file. A fold that was planned before is refused and
replanned. A crash between 1 and 2 leaves columns that no reader sees; `finish` executes the second step.
"""

import pyarrow as pa

from siltstone.dataset.store import Store
from siltstone.errors import InvalidRequest
from siltstone.failpoints import reach
from siltstone.model.columns import RESERVED_PREFIX
from siltstone.model.evolution import Alteration, alterations, altered
from siltstone.model.reports import AlterReport
from siltstone.model.schema import a_type, describe, own_columns
from siltstone.spark_tasks.values import MISFITS, accepted, reader, shown, text_reader


def alter(store: Store, alteration: Alteration, *, dry_run: bool = False) -> AlterReport:
    """Change the columns; a dry run only returns what would change.

    Raises:
        InvalidRequest: the alteration is not possible. Nothing was changed.
    """
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
        store.changes.evolve(
            lambda found: _with_nullable(found, altered(own_columns(found), alteration, key=store.spec.key), store)
        )
        reach("alter.after_changes")
        store.base.evolve(lambda found: _with_ours(found, altered(own_columns(found), alteration, key=store.spec.key)))
        reach("alter.after_base")
    return AlterReport(
        dataset=str(store.name), changed=alterations(before, after), columns=describe(after), dry_run=dry_run
    )


def _check_defaults(alteration: Alteration) -> None:
    """Validate defaults of added columns like other values, because Arrow and Spark read some texts differently."""
    added = {field.name: field.type for field in alteration.add}
    for name, default in alteration.defaults.items():
        kind = added.get(name)
        if default is None or kind is None or pa.types.is_nested(kind) or pa.types.is_binary(kind):
            continue  # rejected by name, if it has to be rejected
        read = text_reader(kind) if isinstance(default, str) else reader(kind)
        try:
            pa.array([read(default)], kind)
        except MISFITS as error:
            raise InvalidRequest(
                f"Column {name!r}: the default {shown(default)} is not {a_type(kind)}. Accepted: {accepted(kind)}. "
                "Nothing was changed."
            ) from error


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
    store.base.evolve(lambda found: _with_ours(found, altered(own_columns(found), step, key=store.spec.key)))
    return True


def _with_ours(found: pa.Schema, user_columns: pa.Schema) -> pa.Schema:
    """Return a table's columns with these user columns before our own."""
    return pa.schema([*user_columns, *[f for f in found if f.name.startswith(RESERVED_PREFIX)]])


def _with_nullable(found: pa.Schema, user_columns: pa.Schema, store: Store) -> pa.Schema:
    """Return the columns of `changes` with these user columns, nullable because a tombstone has only the key."""
    nullable = [f if f.name in store.spec.key else f.with_nullable(True) for f in user_columns]  # noqa: FBT003
    return _with_ours(found, pa.schema(nullable))
