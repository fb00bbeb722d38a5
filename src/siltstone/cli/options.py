"""Arguments and options that several commands share."""

import os
from typing import Annotated

import typer

import siltstone
from siltstone.errors import SiltstoneError


def complete_name(context: typer.Context, incomplete: str) -> list[str]:
    """Return datasets whose names start with `incomplete`, for shell completion; none if the lake cannot be read."""
    path = context.find_root().params.get("lake") or os.environ.get("SILT_LAKE")
    if not path:
        return []
    try:
        with siltstone.Lake.open(path) as lake:
            return [name for name in lake.names() if name.startswith(incomplete)]
    except (SiltstoneError, OSError):
        return []


Name = Annotated[str, typer.Argument(metavar="NAME", help="catalog.schema.table", autocompletion=complete_name)]
OptionalName = Annotated[
    str | None, typer.Argument(metavar="NAME", help="catalog.schema.table", autocompletion=complete_name)
]
RowsFile = Annotated[
    str | None, typer.Argument(metavar="FILE", help="A JSON array, or one object a line; - is standard input.")
]
Rows = Annotated[list[str] | None, typer.Option("--row", metavar="JSON", help="A row; may be repeated.")]
KeysFile = Annotated[str | None, typer.Option("--file", metavar="FILE", help="Keys, one a line; - is standard input.")]
Raw = Annotated[bool, typer.Option("--raw", help="Do not apply tombstones.")]
At = Annotated[
    str | None, typer.Option("--at", metavar="WHEN", help="A sequence, or a time such as 2026-11-16T08:00:00Z.")
]


def names_of(text: str | None) -> list[str]:
    """Parse the column names of an option, as in ``A,B``."""
    return [name.strip() for name in (text or "").split(",") if name.strip()]
