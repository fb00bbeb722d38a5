"""Records of loaded files: the SHA-256 of their bytes, recorded in the same commit that loads their rows.

A loaded file has a mark ``loaded/<sha256>`` on `changes`, or on `base` after a first load (`idempotency_marks`). Both
tables are looked up before a load, and `changes` again inside the commit. So if two processes load one file at the
same time, one load becomes a no-op.

One window of milliseconds remains for keyed datasets. A first load and a load as changes that commit at the same moment
do not see each other. Their rows are then stored twice, once in base and again as a batch, with the same values.
For logs see `Loader._close_base`.
"""

import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from siltstone.dataset.store import Store
from siltstone.dataset.write.idempotency_marks import loaded_marks
from siltstone.errors import InvalidRequest
from siltstone.model.columns import APP_LOADED

MAX_REMEMBERED_FILES: Final = 10_000
"""Most files that a load looks up and records. Each is an action in the log until its mark is forgotten."""
HASHING_THREADS: Final = 4


def hash_files(files: Sequence[Path]) -> dict[Path, str]:
    """Return the SHA-256 of each file's bytes in hexadecimal, read by a few threads."""
    with ThreadPoolExecutor(HASHING_THREADS) as pool:
        return dict(zip(files, pool.map(_hash, files), strict=True))


def _hash(file: Path) -> str:
    try:
        with file.open("rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest()
    except OSError as error:
        raise InvalidRequest(f"{file} cannot be read: {error}. Nothing was loaded.") from error


def loaded_before(store: Store, hashes: Mapping[Path, str]) -> set[Path]:
    """Return the files whose bytes were loaded into the dataset before."""
    marks = loaded_marks(store.changes) | loaded_marks(store.base)
    return {file for file, digest in hashes.items() if APP_LOADED + digest in marks}


def apps_of(hashes: Mapping[Path, str]) -> frozenset[str]:
    """Return the app transactions that record these files."""
    return frozenset(APP_LOADED + digest for digest in hashes.values())
