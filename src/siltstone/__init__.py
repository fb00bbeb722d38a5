"""Siltstone: a self-maintaining lakehouse on Spark and Delta Lake.

This module exports the public names: the classes that a user opens, and every value that their methods return. A name
imports its module on first use. So a short command or a child process imports only what it needs. The documentation is
in the folder ``docs`` beside this file; in the repository it is at the root.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from siltstone.compaction.execution.report import CycleEntry, CycleReport
    from siltstone.compaction.journal.records import JobRecord
    from siltstone.compaction.journal.recovery import RecoveryReport
    from siltstone.compaction.journal.totals import Totals
    from siltstone.compaction.planning.model import Plan
    from siltstone.compactor.service import CompactorService
    from siltstone.compactor.tasks import SchedulerCycle, SchedulerStatus
    from siltstone.config import Settings
    from siltstone.dataset.adoption import Unregistered
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
    from siltstone.eventlog.event_store import Appended
    from siltstone.eventlog.events import Indexed
    from siltstone.eventlog.log import EventLog
    from siltstone.eventlog.queries import Build, JobRun, LimitedList, Page, Partition, Summary
    from siltstone.eventlog.spark_report import EventLogReport
    from siltstone.lake import Lake
    from siltstone.maintenance.repair import Damage
    from siltstone.model.compaction_request import CompactionRequest, RequestKind
    from siltstone.model.names import DatasetName
    from siltstone.model.reports import (
        Ack,
        AlterReport,
        AppendAck,
        AuditRecord,
        BackupReport,
        ClusterEstimate,
        CompactReport,
        DatasetInfo,
        ExportReport,
        FoldEstimate,
        HistoryEntry,
        JobResult,
        LoadReport,
        RefusedRow,
        RestoreReport,
        RollUpReport,
        SquashReport,
        Status,
        TombstoneAck,
        VacuumReport,
    )
    from siltstone.model.spec import Spec
    from siltstone.model.tiers import Tier
    from siltstone.query.hot.admission import AdmissionDecision
    from siltstone.query.hot.cache import HotCache
    from siltstone.query.hot.directives import CacheDirective, DirectiveStore
    from siltstone.query.hot.stats import CacheEntry, CacheStats
    from siltstone.query.result import QueryResult
    from siltstone.query.router import QueryPlanInfo, QueryRequest, Router

__all__ = [
    "Ack",
    "AdmissionDecision",
    "AlterReport",
    "AppendAck",
    "Appended",
    "AuditRecord",
    "BackupReport",
    "Build",
    "CacheDirective",
    "CacheEntry",
    "CacheStats",
    "ClusterEstimate",
    "CommitUnknown",
    "CompactReport",
    "CompactionRequest",
    "CompactorService",
    "Conflict",
    "Corruption",
    "CycleEntry",
    "CycleReport",
    "Damage",
    "Dataset",
    "DatasetInfo",
    "DatasetName",
    "DirectiveStore",
    "EventLog",
    "EventLogReport",
    "ExportReport",
    "Fenced",
    "FoldEstimate",
    "Gone",
    "HistoryEntry",
    "HotCache",
    "Indexed",
    "InvalidRequest",
    "JobRecord",
    "JobResult",
    "JobRun",
    "Lake",
    "LimitedList",
    "LoadReport",
    "NotFound",
    "Page",
    "Partition",
    "Plan",
    "Producer",
    "QueryPlanInfo",
    "QueryRequest",
    "QueryResult",
    "Reason",
    "RecoveryReport",
    "RefusedRow",
    "RequestKind",
    "RestoreReport",
    "RollUpReport",
    "Router",
    "SchedulerCycle",
    "SchedulerStatus",
    "Settings",
    "SiltstoneError",
    "Spec",
    "SquashReport",
    "Status",
    "Summary",
    "Tier",
    "TombstoneAck",
    "Totals",
    "Unavailable",
    "Unregistered",
    "VacuumReport",
]
__version__ = "0.1.0"

_HOMES: Final = {
    "siltstone.compaction.planning.model": "Plan",
    "siltstone.compaction.execution.report": "CycleEntry CycleReport",
    "siltstone.compaction.journal.records": "JobRecord",
    "siltstone.compaction.journal.recovery": "RecoveryReport",
    "siltstone.compaction.journal.totals": "Totals",
    "siltstone.compactor.service": "CompactorService",
    "siltstone.compactor.tasks": "SchedulerCycle SchedulerStatus",
    "siltstone.config": "Settings",
    "siltstone.dataset.adoption": "Unregistered",
    "siltstone.dataset.dataset": "Dataset",
    "siltstone.dataset.write.buffered_producer": "Producer",
    "siltstone.errors": (
        "CommitUnknown Conflict Corruption Fenced Gone InvalidRequest NotFound Reason SiltstoneError Unavailable "
    ),
    "siltstone.eventlog.events": "Indexed",
    "siltstone.eventlog.event_store": "Appended",
    "siltstone.eventlog.log": "EventLog",
    "siltstone.eventlog.queries": "Build JobRun LimitedList Page Partition Summary",
    "siltstone.eventlog.spark_report": "EventLogReport",
    "siltstone.maintenance.repair": "Damage",
    "siltstone.lake": "Lake",
    "siltstone.model.compaction_request": "CompactionRequest RequestKind",
    "siltstone.model.names": "DatasetName",
    "siltstone.model.reports": (
        "Ack AlterReport AppendAck AuditRecord BackupReport ClusterEstimate CompactReport DatasetInfo "
        "ExportReport FoldEstimate HistoryEntry JobResult LoadReport RefusedRow RestoreReport RollUpReport SquashReport "
        "Status TombstoneAck VacuumReport "
    ),
    "siltstone.model.spec": "Spec",
    "siltstone.model.tiers": "Tier",
    "siltstone.query.hot.admission": "AdmissionDecision",
    "siltstone.query.hot.cache": "HotCache",
    "siltstone.query.hot.directives": "CacheDirective DirectiveStore",
    "siltstone.query.hot.stats": "CacheEntry CacheStats",
    "siltstone.query.result": "QueryResult",
    "siltstone.query.router": "QueryPlanInfo QueryRequest Router",
}
_HOME_OF: Final = {name: module for module, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
