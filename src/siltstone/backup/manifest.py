"""The manifest of one backup: its files of the lake, and the versions of its tables.

It has one JSON object per line: the head, one for each file, and an end with their number. A manifest without its end
is not a backup. Paths are relative to the lake's folder.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Final

from siltstone.errors import Corruption, InvalidRequest, Reason

FORMAT: Final = 1
_SHA256: Final = re.compile(r"[0-9a-f]{64}\Z")
_LATEST_NS: Final = 2**63 - 1
"""Latest time that a file system can store, in nanoseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackedFile:
    """One file of the lake in a backup; `sha256` names its bytes in the pool."""

    path: str
    size_bytes: int
    sha256: str
    modified_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BackedDataset:
    """One dataset in a backup: its snapshot, as (changes version, base version, watermark)."""

    name: str
    incarnation: str
    sequence: int
    watermark: int
    changes_version: int
    base_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The content of a backup."""

    id: str
    taken_at: str
    lake: str
    lake_id: str
    """The Delta table id of the registry: it stays the same when a lake is moved or restored."""
    siltstone: str
    epoch: int
    """The highest epoch of the lake's leases and datasets. A restore fences every job up to it."""
    datasets: tuple[BackedDataset, ...]
    tables: Mapping[str, int]
    """The version of each Delta table, by its path."""
    files: tuple[BackedFile, ...]
    left_out: Mapping[str, str]
    """Datasets that could not be read and were left out on request, each with its reason."""

    @property
    def size_bytes(self) -> int:
        """Size of the files in bytes."""
        return sum(file.size_bytes for file in self.files)

    def lines(self) -> Iterator[str]:
        """Return the manifest as text, line by line."""
        head = {name: value for name, value in asdict(self).items() if name != "files"}
        yield json.dumps({"format": FORMAT, **head})
        for file in self.files:
            yield json.dumps(asdict(file))
        yield json.dumps({"end": True, "files": len(self.files), "bytes": self.size_bytes})


def read_manifest(content: bytes, *, where: str) -> Manifest:
    """Read the content of a manifest. Every value is checked, because another program may have written it.

    Raises:
        Corruption: it is damaged or not complete.
        InvalidRequest: a newer Siltstone wrote it.
    """
    try:
        head, *files, end = [dict(json.loads(line)) for line in content.splitlines()]
        if head["format"] > FORMAT:
            raise InvalidRequest(f"Backup {where} has format {head['format']}. Upgrade Siltstone to restore it.")
        manifest = Manifest(
            id=head["id"],
            taken_at=head["taken_at"],
            lake=head["lake"],
            lake_id=head["lake_id"],
            siltstone=head["siltstone"],
            epoch=int(head["epoch"]),
            datasets=tuple(BackedDataset(**values) for values in head["datasets"]),
            tables={path: int(version) for path, version in head["tables"].items()},
            files=tuple(_file(**values) for values in files),
            left_out=dict(head["left_out"]),
        )
        is_complete = end == {"end": True, "files": len(manifest.files), "bytes": manifest.size_bytes}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise Corruption(
            f"Backup {where} cannot be read ({error!r}). Use another backup.", reason=Reason.DAMAGED_FILE
        ) from error
    if not is_complete:
        raise Corruption(f"Backup {where} is not complete. Use another backup.", reason=Reason.DAMAGED_FILE)
    return manifest


def _file(*, path: str, size_bytes: int, sha256: str, modified_ns: int) -> BackedFile:
    """Return one file. Its hash names a file of the pool, and must not be a path to another one."""
    if not _SHA256.match(sha256) or not 0 <= modified_ns <= _LATEST_NS or not isinstance(path, str):
        raise ValueError(f"the line of {path!r} is not that of a file")
    return BackedFile(path=path, size_bytes=size_bytes, sha256=sha256, modified_ns=modified_ns)
