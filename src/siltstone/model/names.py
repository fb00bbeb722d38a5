"""Dataset names: ``catalog.schema.table``, each part a folder name on disk and an identifier in SQL."""

import re
from dataclasses import dataclass
from typing import Final

from siltstone.errors import InvalidRequest

PARTS: Final = 3
MAX_PART_CHARS: Final = 128
"""Longest part of a name, in characters. File systems allow 255 bytes for a folder, engines 128 characters."""
_PART: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*\Z")
RAW_PREFIX: Final = "__raw__"


@dataclass(frozen=True, slots=True, order=True)
class DatasetName:
    """The three-part name of a dataset.

    >>> DatasetName.parse("crm.sales.candidates").table
    'candidates'
    """

    catalog: str
    schema: str
    table: str

    @classmethod
    def parse(cls, text: str) -> "DatasetName":
        """Parse a name.

        Raises:
            InvalidRequest: it does not have three parts, or a part cannot be a folder name and an identifier.
        """
        if not isinstance(text, str):
            raise InvalidRequest(f"A dataset name is text, catalog.schema.table, not {type(text).__name__}.")
        parts = text.split(".")
        if len(parts) != PARTS:
            raise InvalidRequest(f"Dataset name {text!r} must have three parts: catalog.schema.table.")
        for part in parts:
            if not _PART.match(part) or len(part) > MAX_PART_CHARS:
                raise InvalidRequest(
                    f"Dataset name {text!r}: the part {part!r} must be 1 to {MAX_PART_CHARS} letters, digits, '_' or "
                    "'-', and start with a letter or a digit."
                )
        return cls(*parts)

    def __str__(self) -> str:
        return f"{self.catalog}.{self.schema}.{self.table}"
