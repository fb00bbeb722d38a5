"""Opens an event log on Delta in an object store."""

from contextlib import suppress

from siltstone.clock import Clock
from siltstone.config import Settings
from siltstone.delta.object_store_table import Objects, ObjectTable
from siltstone.errors import Conflict, NotFound
from siltstone.eventlog.address import Address, BackendKind
from siltstone.eventlog.arrow_rows import DAY, FIRST_INDEX, TABLE_SCHEMA
from siltstone.eventlog.event_table import NEW_PROPERTIES


def open_object(address: Address, *, create: bool, settings: Settings, clock: Clock) -> ObjectTable:
    """Open the table of a log in an object store; create it if it does not exist.

    Raises:
        NotFound: there is no log, and `create` is false.
        Unavailable: the store cannot be reached.
    """
    kind = "s3" if address.backend is BackendKind.DELTA_S3 else "azure"
    objects = Objects(kind, address.bucket, address.path, address.options)
    label = f"Event log {address.shown}"
    try:
        return ObjectTable(objects, settings=settings, clock=clock, label=label)
    except NotFound as error:
        if not create:
            raise NotFound(f"There is no event log at {address.shown}.") from error
    with suppress(Conflict):  # another process was faster
        ObjectTable.create(objects, TABLE_SCHEMA, partition_by=[DAY, FIRST_INDEX], properties=NEW_PROPERTIES)
    return ObjectTable(objects, settings=settings, clock=clock, label=label)
