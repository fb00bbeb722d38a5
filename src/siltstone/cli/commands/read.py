"""Reads of rows: head, get."""

import sys
from typing import Annotated, Final

import typer

from siltstone.cli import render
from siltstone.cli.context import Invocation
from siltstone.cli.input_parsing import read_keys, read_lines
from siltstone.cli.options import At, KeysFile, Name, Raw
from siltstone.cli.registration import READ, Commands
from siltstone.dataset.read.python_rows import python_rows
from siltstone.errors import InvalidRequest, NotFound

NAMED_KEYS: Final = 10
"""Most missing keys that are named. The rest is counted."""


def head(
    call: Invocation,
    name: Name,
    *,
    rows: Annotated[int, typer.Option("--rows", "-n", metavar="N", help="The number of rows.")] = 10,
    raw: Raw = False,
    at: At = None,
) -> None:
    r"""Show the first rows of the merged view, now or in the past.

    No Spark is used.

    \b
    silt head crm.sales.candidates -n 3
    silt head crm.sales.candidates --at 41
    silt head crm.sales.candidates --json | silt upsert crm.sales.copy -
    """
    with call.open() as lake:
        table = lake.dataset(name).head(rows, raw=raw, at=at)
    shown = python_rows(table)
    call.answer(shown, lambda: render.write_rows(table.column_names, [list(row.values()) for row in shown]))


def get(
    call: Invocation,
    name: Name,
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY", help="Key values; a composite key as a JSON array or object."),
    ] = None,
    *,
    file: KeysFile = None,
    columns: Annotated[str | None, typer.Option("--columns", metavar="A,B", help="Only these columns.")] = None,
    raw: Raw = False,
) -> None:
    r"""Show the rows of some keys, in the order of the keys.

    No Spark is used. Missing keys are named on standard error. If all keys are missing, the exit code is 3.

    \b
    silt get crm.sales.candidates CAND-000007 CAND-000009
    silt get shop.eu.prices '["sku-1", 42]' --columns sku,store,price
    silt get crm.sales.candidates --file keys.txt --json
    """
    from siltstone.dataset.read.point_lookup import plain_keys  # loaded with every lookup

    with call.open() as lake:
        dataset = lake.dataset(name)
        texts = [*(keys or []), *(read_lines(file) if file is not None else [])]
        if not texts:
            raise InvalidRequest("Name at least one key, or a --file with keys.")
        dataset.require_key()
        values = read_keys(texts, dataset.schema, dataset.key)
        names = [column.strip() for column in columns.split(",")] if columns is not None else dataset.schema.names
        key_columns = [name for name in dataset.key if name not in names]  # they show which keys have rows
        table = dataset.get(values, columns=[*names, *key_columns], raw=raw)
        present = set(plain_keys(table, dataset.key))
        requested = plain_keys(dataset.key_table(values), dataset.key)
        missing = [text for text, value in zip(texts, requested, strict=True) if value not in present]
    more = f" and {len(missing) - NAMED_KEYS:,} more" if len(missing) > NAMED_KEYS else ""
    named = f"{render.printable(', '.join(missing[:NAMED_KEYS]))}{more}"
    if not table.num_rows:
        raise NotFound(f"Dataset {name} has no row with the key{'s' if len(missing) > 1 else ''} {named}.")
    rows = python_rows(table.select(names))
    call.answer(rows, lambda: render.write_rows(names, [list(row.values()) for row in rows]))
    if missing and not call.as_json:
        sys.stderr.write(f"Not found: {named}.\n")


COMMANDS: Final[Commands] = {READ: {"head": head, "get": get}}
