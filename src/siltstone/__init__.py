"""Siltstone: a self-maintaining lakehouse on Spark and Delta Lake.

What is public is here, and each name brings its module along only when it is asked for: a command that shows its help, or a
child that needs one room, does not wait for the others.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from siltstone.compaction.execution.report import CycleReport
    from siltstone.compactor.service import CompactorService
    from siltstone.config import Settings
    from siltstone.dataset.dataset import Dataset
    from siltstone.dataset.write.buffered_producer import Producer
    from siltstone.errors import (
        CommitUnknown,
        Conflict,
        Corruption,
        Fenced,
        Gone,
        InvalidRequest,
        NotFound,
        Reason,
        SiltstoneError,
        Unavailable,
    )
    from siltstone.lake import Lake
    from siltstone.model.compaction_request import CompactionRequest, RequestKind
    from siltstone.model.reports import (
        Ack,
        AlterReport,
        AppendAck,
        AuditRecord,
        CompactReport,
        ExportReport,
        HistoryEntry,
        JobResult,
        LoadReport,
        RefusedRow,
        SquashReport,
        Status,
        TombstoneAck,
        VacuumReport,
    )

__all__ = [
    "Ack",
    "AlterReport",
    "AppendAck",
    "AuditRecord",
    "CommitUnknown",
    "CompactReport",
    "CompactionRequest",
    "CompactorService",
    "Conflict",
    "Corruption",
    "CycleReport",
    "Dataset",
    "ExportReport",
    "Fenced",
    "Gone",
    "HistoryEntry",
    "InvalidRequest",
    "JobResult",
    "Lake",
    "LoadReport",
    "NotFound",
    "Producer",
    "Reason",
    "RefusedRow",
    "RequestKind",
    "Settings",
    "SiltstoneError",
    "SquashReport",
    "Status",
    "TombstoneAck",
    "Unavailable",
    "VacuumReport",
]
__version__ = "0.1.0"

_HOMES: Final = {
    "siltstone.compaction.execution.report": ("CycleReport",),
    "siltstone.compactor.service": ("CompactorService",),
    "siltstone.config": ("Settings",),
    "siltstone.dataset.dataset": ("Dataset",),
    "siltstone.dataset.write.buffered_producer": ("Producer",),
    "siltstone.lake": ("Lake",),
    "siltstone.model.compaction_request": ("CompactionRequest", "RequestKind"),
    "siltstone.model.reports": (
        "Ack",
        "AlterReport",
        "AppendAck",
        "AuditRecord",
        "CompactReport",
        "ExportReport",
        "HistoryEntry",
        "JobResult",
        "LoadReport",
        "RefusedRow",
        "SquashReport",
        "Status",
        "TombstoneAck",
        "VacuumReport",
    ),
}
_HOME_OF: Final = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(_HOME_OF.get(name, "siltstone.errors")), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
