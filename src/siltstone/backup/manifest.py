"""The manifest of one backup: which files of the lake it has, and at which versions the tables are.

On disk it is one JSON object a line: the head, one line for each file, and an end that counts them. A manifest without its end
is not a backup. Paths are relative to the lake's folder.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from siltstone.errors import Corruption, InvalidRequest

FORMAT: Final = 1


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
    """Everything that a backup holds."""

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
    """Datasets that could not be read and were left out on request, each with why."""

    @property
    def size_bytes(self) -> int:
        """How many bytes the files have."""
        return sum(file.size_bytes for file in self.files)

    def lines(self) -> Iterator[str]:
        """Return the manifest as text, line by line."""
        head = {name: value for name, value in asdict(self).items() if name != "files"}
        yield json.dumps({"format": FORMAT, **head})
        for file in self.files:
            yield json.dumps(asdict(file))
        yield json.dumps({"end": True, "files": len(self.files), "bytes": self.size_bytes})


def read_manifest(text: str, *, where: str) -> Manifest:
    """Read the text of a manifest.

    Raises:
        Corruption: it is damaged or not complete.
        InvalidRequest: a newer Siltstone wrote it.
    """
    try:
        head, *files, end = [dict(json.loads(line)) for line in text.splitlines()]
        if head["format"] > FORMAT:
            raise InvalidRequest(f"Backup {where} has format {head['format']}. Upgrade Siltstone to restore it.")
        found = _manifest(head, files)
        whole = end == {"end": True, "files": len(found.files), "bytes": found.size_bytes}
    except (KeyError, TypeError, ValueError) as error:
        raise Corruption(f"Backup {where} cannot be read ({error!r}). Use another backup.") from error
    if not whole:
        raise Corruption(f"Backup {where} is not complete. Use another backup.")
    return found


def _manifest(head: dict[str, Any], files: list[dict[str, Any]]) -> Manifest:
    return Manifest(
        id=head["id"],
        taken_at=head["taken_at"],
        lake=head["lake"],
        lake_id=head["lake_id"],
        siltstone=head["siltstone"],
        epoch=int(head["epoch"]),
        datasets=tuple(BackedDataset(**one) for one in head["datasets"]),
        tables={path: int(version) for path, version in head["tables"].items()},
        files=tuple(BackedFile(**one) for one in files),
        left_out=dict(head["left_out"]),
    )
