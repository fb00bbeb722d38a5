"""Siltstone: a self-maintaining lakehouse on Spark and Delta Lake."""

from siltstone.config import Settings
from siltstone.dataset.dataset import Dataset
from siltstone.errors import (
    CommitUnknown,
    Conflict,
    Corruption,
    Fenced,
    Gone,
    InvalidRequest,
    NotFound,
    SiltstoneError,
    Unavailable,
)
from siltstone.lake import Lake
from siltstone.model.results import Ack, CompactReport, ExportReport, HistoryEntry, LoadReport, Status, VacuumReport

__all__ = [
    "Ack",
    "CommitUnknown",
    "CompactReport",
    "Conflict",
    "Corruption",
    "Dataset",
    "ExportReport",
    "Fenced",
    "Gone",
    "HistoryEntry",
    "InvalidRequest",
    "Lake",
    "LoadReport",
    "NotFound",
    "Settings",
    "SiltstoneError",
    "Status",
    "Unavailable",
    "VacuumReport",
]
__version__ = "0.1.0"
