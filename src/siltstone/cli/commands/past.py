"""A dataset's past and its way out of the lake: history, changes, export."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from siltstone.cli import render
from siltstone.cli.invocation import confirm, invocation
from siltstone.cli.registration import add

if TYPE_CHECKING:
    from siltstone.model.results import HistoryEntry

Name = Annotated[str, typer.Argument(metavar="NAME", help="catalog.schema.table")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    add(app, "history", history)
    add(app, "changes", changes)
    add(app, "export", export)


# ---- history -----------------------------------------------------------------------------------------------------


def history(
    context: typer.Context,
    name: Name,
    *,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", help="The newest N commits.")] = None,
) -> None:
    r"""Show what happened to a dataset and which process did it, newest first, without Spark.

    The logs of `changes` are kept for minutes, those of `base` for days; a purge forgets both.

    \b
    silt history crm.sales.candidates --limit 20
    silt history crm.sales.candidates --json
    """
    call = invocation(context)
    with call.open() as lake:
        found = lake.dataset(name).history(limit)
    call.answer([entry.to_dict() for entry in found], lambda: _show_history(found))


def _show_history(found: "Iterable[HistoryEntry]") -> None:
    columns = ["time", "table", "version", "what", "sequence", "rows", "files", "bytes", "who"]
    rows = [
        [
            entry.at.replace("+00:00", "Z"),
            entry.table,
            entry.version,
            f"{entry.what} (another program)" if entry.foreign else entry.what,
            _sequence(entry),
            _moved(render.number(entry.rows_added), _count(entry.rows_removed)),
            _moved(render.number(entry.files_added), render.number(entry.files_removed)),
            _moved(render.size(entry.bytes_added), render.size(entry.bytes_removed)),
            _who(entry),
        ]
        for entry in found
    ]
    render.write_table(columns, rows, numbers=[columns[2], *columns[4:8]])


def _sequence(entry: "HistoryEntry") -> str | None:
    if entry.folded_to is not None:
        return f"to {entry.folded_to}"
    if entry.first_sequence == entry.last_sequence:
        return None if entry.last_sequence is None else str(entry.last_sequence)
    return f"{entry.first_sequence} to {entry.last_sequence}"


def _count(count: int | None) -> str:
    return "?" if count is None else render.number(count)


def _moved(added: str, removed: str) -> str:
    """Return what came and what went, as ``+3 -1``; what did not move is left out."""
    parts = [f"+{added}" if added not in ("0", "0 B") else "", f"-{removed}" if removed not in ("0", "0 B") else ""]
    return " ".join(filter(None, parts))


def _who(entry: "HistoryEntry") -> str | None:
    if entry.who is None:
        return entry.engine
    return entry.who if entry.pid is None else f"{entry.who}, process {entry.pid}"


# ---- changes -----------------------------------------------------------------------------------------------------


def changes(
    context: typer.Context,
    name: Name,
    *,
    since: Annotated[int, typer.Option("--since", metavar="N", help="The changes above this sequence.")] = 0,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", help="About so many rows: whole sequences, at least one.")
    ] = None,
) -> None:
    r"""Show the changes above a sequence in their order, without Spark.

    To follow a dataset, go on from the last _seq. If what you ask for is not kept any more it is an error that says from
    where on it is: read the dataset anew and follow from there.

    \b
    silt changes crm.sales.candidates --since 42
    silt changes crm.sales.candidates --since 42 --limit 10000 --json
    """
    call = invocation(context)
    with call.open() as lake:
        table = lake.dataset(name).changes_to_arrow(since=since, limit=limit)
    found = table.to_pylist()
    call.answer(found, lambda: render.write_table(table.column_names, [list(row.values()) for row in found]))


# ---- export ------------------------------------------------------------------------------------------------------


def export(  # noqa: PLR0913  # the options of a command
    context: typer.Context,
    name: Name,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A folder that does not exist, or is empty.")],
    *,
    format_name: Annotated[str, typer.Option("--format", metavar="FORMAT", help="parquet, csv or delta.")] = "parquet",
    at: Annotated[
        str | None, typer.Option("--at", metavar="WHEN", help="A sequence, or a time such as 2026-11-16T08:00:00Z.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Do not apply tombstones.")] = False,
    files: Annotated[int | None, typer.Option("--files", metavar="N", help="How many files to write.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before an export is replaced.")] = False,
) -> None:
    r"""Write the merged view into a folder outside the lake, on Spark: whole, or not at all.

    \b
    silt export crm.sales.candidates /exports/candidates
    silt export crm.sales.candidates /exports/then --format delta --at 2026-11-16T08:00:00Z
    silt export crm.sales.candidates /exports/candidates --format csv --files 1 --overwrite --yes
    """
    call = invocation(context)
    with call.open(spark=True) as lake:
        dataset = lake.dataset(name)
        if overwrite and Path(target).is_dir() and any(Path(target).iterdir()):
            confirm(f"Replace what is in {target}?", yes=yes)
        with call.showing("Exporting on Spark", lake):
            done = dataset.export(target, format=format_name, at=at, raw=raw, files=files, overwrite=overwrite)
    written = f"{render.counted(done.rows, 'row')} in {render.counted(done.files, 'file')}, {render.size(done.bytes)}"
    call.answer(
        done.to_dict(),
        lambda: render.write_line(
            f"{done.dataset}: {written}, as of sequence {done.sequence}, to {done.path}, {render.seconds(done.seconds)}."
        ),
    )
