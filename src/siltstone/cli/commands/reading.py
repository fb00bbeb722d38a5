"""Reading: head, sql."""

import sys
from typing import Annotated

import typer

from siltstone.cli import render
from siltstone.cli.entered import STANDARD_INPUT
from siltstone.cli.invocation import invocation
from siltstone.cli.registration import add
from siltstone.errors import InvalidRequest

Name = Annotated[str, typer.Argument(metavar="NAME", help="catalog.schema.table")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    add(app, "head", head)
    add(app, "sql", sql)


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
    r"""Show the first rows of the merged view, as it is now or was at an earlier moment, without Spark.

    \b
    silt head crm.sales.candidates -n 3
    silt head crm.sales.candidates --at 41
    silt head crm.sales.candidates --json | silt upsert crm.sales.copy -
    """
    call = invocation(context)
    with call.open() as lake:
        table = lake.dataset(name).head(rows, raw=raw, at=at)
    found = table.to_pylist()
    call.answer(found, lambda: render.write_table(table.column_names, [list(row.values()) for row in found]))


def sql(
    context: typer.Context,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="One SELECT; - reads it from standard input.")],
    *,
    max_rows: Annotated[int | None, typer.Option("--max-rows", metavar="N", help="Rows to return at most.")] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Answer in CSV.")] = False,
) -> None:
    r"""Answer one SELECT over datasets by their three-part names, on Spark.

    A table named __raw__NAME shows a dataset without its tombstones applied.

    \b
    silt sql 'SELECT region, count(*) AS n FROM crm.sales.calls GROUP BY region'
    silt sql 'SELECT count(*) FROM crm.sales.__raw__candidates' --csv
    """
    call = invocation(context)
    if as_csv and call.as_json:
        raise InvalidRequest("--csv and --json exclude each other.")
    text = sys.stdin.read() if query == STANDARD_INPUT else query
    with call.working("Asking Spark") as lake:
        result = lake.sql(text, max_rows=max_rows)
    if as_csv:
        render.write_csv(result.columns, result.rows)
    else:
        facts = {"row_count": result.row_count, "engine": result.engine, "truncated": result.truncated}
        call.answer(
            {"columns": result.columns, "rows": result.rows, **facts, "seconds": result.seconds},
            lambda: render.write_table(result.columns, result.rows),
        )
    if not call.as_json and (result.truncated or not as_csv):
        more = "; there are more, see --max-rows" if result.truncated else ""
        took = render.seconds(result.seconds)
        sys.stderr.write(f"{render.counted(result.row_count, 'row')}{more} ({result.engine}, {took})\n")
