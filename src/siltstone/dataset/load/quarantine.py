"""Quarantine: a folder of a load's bad files and rows, below the folder that the caller names.

::

    <folder>/<time>-<id>/
      reasons.ndjson     one line for each bad file: file, reason, at, copy
      files/             copies of the bad files
      rows/              the bad rows as Parquet: _reason, _file, _text, and the dataset's columns if readable

Everything is written, and synced if the lake is durable, before the load commits. A crash in between leaves such a
folder, and no load.
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from siltstone.clock import utc_text
from siltstone.dataset.load.file_formats import BadFile
from siltstone.dataset.store import Store
from siltstone.delta.fsync import sync_directory, sync_file
from siltstone.delta.layout import expanded
from siltstone.errors import InvalidRequest, Unavailable

REASONS: Final = "reasons.ndjson"
FILES: Final = "files"
ROWS: Final = "rows"
SHORT_ID_CHARS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """The quarantine folder of one load. It is created with its first content."""

    path: Path
    at: str
    durable: bool

    @classmethod
    def below(cls, folder: str | Path, store: Store, sources: Sequence[str | Path] = ()) -> "Quarantine":
        """Choose a new folder below the given one, which must not be inside the lake or the load's source."""
        root = expanded(folder, what="The quarantine")
        lake = store.layout.root.resolve()
        if root.resolve().is_relative_to(lake):
            raise InvalidRequest(f"The quarantine {root} is inside the lake {lake}. Name a folder outside.")
        for source in (expanded(source, what="The source") for source in sources):
            if source.is_dir() and root.resolve().is_relative_to(source.resolve()):
                raise InvalidRequest(
                    f"The quarantine {root} is inside {source}, which is to be loaded. Name a folder outside."
                )
        if root.exists() and not root.is_dir():
            raise InvalidRequest(f"The quarantine {root} is not a folder.")
        now = store.clock.now()
        name = f"{now:%Y%m%dT%H%M%SZ}-{store.clock.new_id()[:SHORT_ID_CHARS]}"
        return cls(path=root / name, at=utc_text(now, timespec="seconds"), durable=store.settings.durable)

    @property
    def rows(self) -> Path:
        """The folder for Spark's bad rows."""
        return self.path / ROWS

    def make(self) -> None:
        """Create the folder; raise Unavailable if it cannot be written."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unwritable(error) from error

    def put_files(self, bad: Sequence[BadFile]) -> None:
        """Copy bad files, and record the reason of each; raise Unavailable if the folder cannot be written."""
        self.make()
        try:
            (self.path / FILES).mkdir()
            with (self.path / REASONS).open("w", encoding="utf-8") as reasons:
                for number, file in enumerate(bad):
                    copy = f"{FILES}/{number:05d}-{file.path.name}"
                    shutil.copyfile(file.path, self.path / copy)
                    line = {"file": str(file.path), "reason": file.reason, "at": self.at, "copy": copy}
                    reasons.write(json.dumps(line, ensure_ascii=False) + "\n")
        except OSError as error:
            raise self._unwritable(error) from error

    def settle(self) -> None:
        """Remove Spark's side files, and make the quarantined files durable; raise Unavailable if the disk refuses."""
        if not self.path.is_dir():
            return
        try:
            for file in list(self.path.rglob("*")):
                if file.name.startswith((".", "_")) and file.is_file():
                    file.unlink()
            if self.durable:
                for path in self.path.rglob("*"):
                    sync_directory(path) if path.is_dir() else sync_file(path)
                sync_directory(self.path)
                sync_directory(self.path.parent)
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> Unavailable:
        return Unavailable(f"The quarantine {self.path} cannot be written: {error}. Nothing was loaded.")
