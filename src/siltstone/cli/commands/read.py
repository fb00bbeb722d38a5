"""Reads of rows: head, get."""

import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from siltstone.cli import render
from siltstone.cli.context import complete_name, invocation
from siltstone.cli.registration import READ, add
from siltstone.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    import pyarrow as pa

NAMED_KEYS: Final = 10
"""Most missing keys that are named. The rest is counted."""
Name = Annotated[str, typer.Argument(metavar="NAME", help="catalog.schema.table", autocompletion=complete_name)]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    add(app, "head", head, READ)
    add(app, "get", get, READ)


def head(
    context: typer.Context,
    name: Name,
    *,
    rows: Annotated[int, typer.Option("--rows", "-n", metavar="N", help="How many rows.")] = 10,
    raw: Annotated[bool, typer.Option("--raw", help="Do not apply tombstones.")] = False,
    at: Annotated[
        str | None, typer.Option("--at", metavar="WHEN", help="A sequence, or a time such as 2026-11-16T08:00:00Z.")
    ] = None,
) -> None:
    r"""Show the first rows of the merged view, now or in the past.

    Without Spark.

    \b
    silt head crm.sales.candidates -n 3
    silt head crm.sales.candidates --at 41
    silt head crm.sales.candidates --json | silt upsert crm.sales.copy -
    """
    from siltstone.dataset.read.python_rows import python_rows

    call = invocation(context)
    with call.open() as lake:
        table = lake.dataset(name).head(rows, raw=raw, at=at)
    found = python_rows(table)
    call.answer(found, lambda: render.write_rows(table.column_names, [list(row.values()) for row in found]))


def get(
    context: typer.Context,
    name: Name,
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY", help="Key values; a composite key as a JSON array or object."),
    ] = None,
    *,
    file: Annotated[
        str | None, typer.Option("--file", metavar="FILE", help="Keys, one a line; - is standard input.")
    ] = None,
    columns: Annotated[str | None, typer.Option("--columns", metavar="A,B", help="Only these columns.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Do not apply tombstones.")] = False,
) -> None:
    r"""Show the rows of some keys, in the order of the keys.

    Without Spark.

    Missing keys are named on standard error. If all keys are missing, the exit code is 3.

    \b
    silt get crm.sales.candidates CAND-000007 CAND-000009
    silt get shop.eu.prices '["sku-1", 42]' --columns sku,store,price
    silt get crm.sales.candidates --file keys.txt --json
    """
    from siltstone.cli.input_parsing import read_keys, read_lines
    from siltstone.dataset.read.python_rows import python_rows

    call = invocation(context)
    with call.open() as lake:
        dataset = lake.dataset(name)
        texts = [*(keys or []), *(read_lines(file) if file is not None else [])]
        if not texts:
            raise InvalidRequest("Name at least one key, or a --file with keys.")
        dataset.require_key()
        values = read_keys(texts, dataset.schema, dataset.key)
        wanted = [column.strip() for column in columns.split(",")] if columns is not None else dataset.schema.names
        table = dataset.get(values, columns=_with_key(wanted, dataset.key), raw=raw)
        missing = _missing(texts, dataset.key_table(values), table, dataset.key)
    if not table.num_rows:
        raise NotFound(f"Dataset {name} has no row with {'that key' if len(missing) == 1 else 'any of those keys'}.")
    found = python_rows(table.select(wanted))
    call.answer(found, lambda: render.write_rows(wanted, [list(row.values()) for row in found]))
    if missing and not call.as_json:
        more = f" and {len(missing) - NAMED_KEYS:,} more" if len(missing) > NAMED_KEYS else ""
        sys.stderr.write(f"Not found: {render.printable(', '.join(missing[:NAMED_KEYS]))}{more}.\n")


def _with_key(columns: list[str], key: tuple[str, ...]) -> list[str]:
    """Add the key's columns, which show the keys that were found."""
    return [*columns, *(name for name in key if name not in columns)]


def _missing(texts: list[str], asked: "pa.Table", found: "pa.Table", key: tuple[str, ...]) -> list[str]:
    """Return the keys that were not found, as the user wrote them."""
    from siltstone.dataset.read.point_lookup import plain_keys

    there = set(plain_keys(found, key))
    return [text for text, value in zip(texts, plain_keys(asked, key), strict=True) if value not in there]
