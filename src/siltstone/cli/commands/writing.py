"""Writing: upsert, tombstone, tombstones, ingest."""

from typing import Annotated

import typer

from siltstone.cli import render
from siltstone.cli.invocation import invocation
from siltstone.cli.registration import add
from siltstone.errors import InvalidRequest

Name = Annotated[str, typer.Argument(metavar="NAME", help="catalog.schema.table")]
Producer = Annotated[
    str | None, typer.Option("--producer", metavar="ID", help="Who writes; with --sequence, only once.")
]
Sequence = Annotated[int | None, typer.Option("--sequence", metavar="N", help="The producer's number of this write.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    add(app, "upsert", upsert)
    add(app, "tombstone", tombstone)
    add(app, "tombstones", tombstones)
    add(app, "ingest", ingest)


def upsert(  # one parameter for each option
    context: typer.Context,
    name: Name,
    file: Annotated[
        str | None, typer.Argument(metavar="FILE", help="A JSON array, or one object a line; - is standard input.")
    ] = None,
    *,
    row: Annotated[list[str] | None, typer.Option("--row", metavar="JSON", help="A row; may be repeated.")] = None,
    producer: Producer = None,
    sequence: Sequence = None,
) -> None:
    r"""Insert or replace whole rows by key; the answer comes when they are durable.

    \b
    silt upsert crm.sales.candidates --row '{"candidate_id": "CAND-000007", "name": "Ada"}'
    silt upsert crm.sales.candidates rows.ndjson
    generate | silt upsert crm.sales.candidates - --producer nightly --sequence 17
    """
    from siltstone.cli.entered import read_rows

    call = invocation(context)
    with call.open() as lake:
        dataset = lake.dataset(name)
        rows = read_rows(file, row or [], dataset.schema, limit=lake.settings.upsert_rows)
        ack = dataset.upsert(rows, producer=producer, sequence=sequence)

    def people() -> None:
        if ack.applied:
            render.write_line(f"Wrote {render.counted(ack.rows, 'row')} to {name}, sequence {ack.sequence}.")
        else:
            render.write_line(f"Producer {producer} had written sequence {sequence} before; nothing was written again.")

    call.answer(ack.to_dict(), people)


def tombstone(  # one parameter for each option
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
    actor: Annotated[str | None, typer.Option("--actor", metavar="WHO", help="Who asked for it.")] = None,
    reason: Annotated[str | None, typer.Option("--reason", metavar="WHY", help="Why.")] = None,
    producer: Producer = None,
    sequence: Sequence = None,
) -> None:
    r"""Hide rows by key at once; the next compact drops them, compact --purge removes them from disk.

    One key that does not fit refuses the whole call, and nothing is written. A key that no row has is accepted, and counted
    like the others.

    \b
    silt tombstone crm.sales.candidates CAND-000001 CAND-000002 --actor dpo --reason 'request 17'
    silt tombstone shop.eu.prices '["sku-1", 42]' '{"sku": "sku-2", "store": 7}'
    """
    from siltstone.cli.entered import read_keys, read_lines

    call = invocation(context)
    with call.open() as lake:
        dataset = lake.dataset(name)
        texts = [*(keys or []), *(read_lines(file) if file is not None else [])]
        if not texts:
            raise InvalidRequest("Name at least one key, or a --file with keys. Nothing was written.")
        values = read_keys(texts, dataset.schema, dataset.key)
        ack = dataset.tombstone(values, actor=actor, reason=reason, producer=producer, sequence=sequence)
    call.answer(
        ack.to_dict(),
        lambda: render.write_line(
            f"Hid {render.counted(ack.rows, 'key')} of {name}, sequence {ack.sequence}."
            if ack.applied
            else f"Producer {producer} had written sequence {sequence} before; nothing was written again."
        ),
    )


def tombstones(context: typer.Context, name: Name) -> None:
    r"""List the tombstones that are not folded yet.

    \b
    silt tombstones crm.sales.candidates
    """
    call = invocation(context)
    with call.open() as lake:
        found = lake.dataset(name).tombstones()

    def people() -> None:
        if not found:
            render.write_line(f"No unfolded tombstones in {name}.")
            return
        render.write_table(list(found[0]), [list(row.values()) for row in found], numbers=["sequence"])

    call.answer(found, people)


def ingest(
    context: typer.Context,
    name: Name,
    paths: Annotated[list[str], typer.Argument(metavar="PATH", help="Files, folders or globs.")],
    *,
    file_format: Annotated[
        str | None, typer.Option("--format", metavar="FORMAT", help="parquet or csv, if the names do not tell.")
    ] = None,
    order_by: Annotated[
        str | None,
        typer.Option("--order-by", metavar="A,B", help="Of rows with one key keep the last by these columns."),
    ] = None,
) -> None:
    r"""Load files on Spark: straight to base while the dataset is empty, as one batch of changes otherwise.

    \b
    silt ingest crm.sales.calls calls/*.parquet
    silt ingest crm.sales.candidates export.csv --order-by updated_at
    """
    call = invocation(context)
    order = [column.strip() for column in order_by.split(",")] if order_by else None
    with call.working(f"Loading into {name} on Spark") as lake:
        report = lake.dataset(name).ingest(paths, format=file_format, order_by=order)

    def people() -> None:
        where = "base" if report.first_load else f"changes, sequence {report.sequence}"
        files = f"{render.counted(report.files, 'file')}, {render.size(report.bytes)}"
        rows = render.counted(report.rows, "row")
        render.write_line(f"Loaded {rows} into {name} ({where}): {files}, {render.seconds(report.seconds)}.")

    call.answer(report.to_dict(), people)
