"""Asking: sql."""

import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from siltstone.cli import render
from siltstone.cli.entered import STANDARD_INPUT
from siltstone.cli.invocation import Invocation, invocation
from siltstone.cli.registration import add
from siltstone.cli.rows_file import write_rows
from siltstone.errors import InvalidRequest

if TYPE_CHECKING:
    import pyarrow as pa

    from siltstone.lake import Lake
    from siltstone.query.result import QueryResult


class Form(StrEnum):
    """How rows are written."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"


MAX_ROWS: Final = 100_000
"""The most rows that one call returns; a file with more of them is read as a stream."""
ENDINGS: Final = {".json": Form.JSON, ".csv": Form.CSV, ".parquet": Form.PARQUET}


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    add(app, "sql", sql)


def sql(  # noqa: PLR0913  # one parameter for each option
    context: typer.Context,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="One SELECT; - reads it from standard input.")],
    *,
    params: Annotated[
        list[str] | None,
        typer.Option(
            "--param", metavar="NAME=VALUE", help="A value for :NAME; NAME:TYPE=VALUE says its type. Repeatable."
        ),
    ] = None,
    engine: Annotated[str, typer.Option("--engine", metavar="NAME", help="auto, hot (in memory) or spark.")] = "auto",
    explain: Annotated[
        bool, typer.Option("--explain", help="Show who would answer, why and how; ask nothing.")
    ] = False,
    max_rows: Annotated[
        int | None,
        typer.Option(
            "--max-rows", metavar="N", help="Rows to return at most: 1,000 unless set, up to 100,000; all with --out."
        ),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", metavar="SECONDS", help="End the query after so long; 0 means never.")
    ] = None,
    form: Annotated[
        str | None,
        typer.Option("--format", metavar="FORM", help="table, json, csv or parquet; by the ending of --out."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write the rows to a file: .parquet, .csv or .json.")
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Short for --format csv.")] = False,
) -> None:
    r"""Answer one SELECT over datasets by their three-part names: in memory where that gives the same answer, on Spark otherwise.

    A table named __raw__NAME shows a dataset without its tombstones applied. Ctrl-C ends the query.

    \b
    silt sql 'SELECT region, count(*) AS n FROM crm.sales.calls GROUP BY region'
    silt sql 'SELECT * FROM crm.sales.calls WHERE at >= :since' --param since:timestamp=2026-11-01T00:00:00Z --out calls.parquet
    silt sql 'SELECT count(*) FROM crm.sales.__raw__candidates' --csv
    silt sql 'SELECT max(at) AS last FROM crm.sales.calls' --explain
    """
    call = invocation(context)
    chosen = _form(call, form, out, as_csv=as_csv)
    text = sys.stdin.read() if query == STANDARD_INPUT else query
    values = _values(params or [])
    with call.open(spark=engine == "spark") as lake, call.showing("Asking", lake):
        if explain:
            _show_plan(call, lake, text, values, engine)
            return
        if out is not None and out.resolve().is_relative_to(lake.path.resolve()):
            raise InvalidRequest(f"{out} lies inside the lake, where no purge would find it. Name a file outside.")
        whole = out is not None and max_rows is None
        most = MAX_ROWS if whole else max_rows
        result = lake.sql(text, params=values, engine=engine, max_rows=most, timeout=timeout)
        facts = _facts(result)
        if out is not None and whole and result.truncated:
            del result  # the stream brings these rows, too
            facts |= _streamed(lake.stream_sql(text, params=values, timeout=timeout or 0.0), out, chosen)
        elif out is not None:
            write_rows(result.table.schema, result.table.to_batches(), out, chosen)
        else:
            _write(result, chosen)
    _note(call, facts, chosen, out)


def _streamed(reader: "pa.RecordBatchReader", out: Path, form: Form) -> dict[str, object]:
    """Write an answer that is longer than one call returns, and return what is to be said of it."""
    started = time.monotonic()
    rows = write_rows(reader.schema, reader, out, form)
    reason = "There are more rows than one answer has."
    return {
        "row_count": rows,
        "truncated": False,
        "engine": "spark",
        "reason": reason,
        "seconds": time.monotonic() - started,
    }


def _form(call: Invocation, form: str | None, out: Path | None, *, as_csv: bool) -> Form:
    """Say how rows are written.

    Raises:
        InvalidRequest: options contradict each other, or there is no such form.
    """
    if as_csv and (call.as_json or form not in (None, Form.CSV)):
        raise InvalidRequest(f"--csv and {'--json' if call.as_json else f'--format {form}'} exclude each other.")
    try:
        chosen = Form.CSV if as_csv else Form(form) if form is not None else None
    except ValueError as error:
        raise InvalidRequest(f"A --format is one of {', '.join(Form)}, not {form!r}.") from error
    if out is None:
        if chosen is Form.PARQUET:
            raise InvalidRequest("Parquet goes into a file: name one with --out.")
        return chosen or (Form.JSON if call.as_json else Form.TABLE)
    found = chosen or ENDINGS.get(out.suffix.lower())
    if found is None or found is Form.TABLE:
        raise InvalidRequest(
            f"--out takes a file that ends in {', '.join(ENDINGS)}, or a --format json, csv or parquet."
        )
    return found


def _values(params: list[str]) -> dict[str, object]:
    from siltstone.cli.entered import read_parameter

    found: dict[str, object] = {}
    for text in params:
        name, value = read_parameter(text)
        if name in found:
            raise InvalidRequest(f"Parameter {name!r} was given twice.")
        found[name] = value
    return found


def _show_plan(call: Invocation, lake: "Lake", text: str, values: dict[str, object], engine: str) -> None:
    found = lake.explain_sql(text, params=values, engine=engine)
    data = {"engine": found.engine, "reason": found.reason, "datasets": dict(found.datasets), "plan": found.plan}

    def people() -> None:
        render.write_facts({"engine": found.engine, "reason": found.reason, **found.datasets})
        render.write_text(f"\n{found.plan}")

    call.answer(data, people)


def _write(result: "QueryResult", form: Form) -> None:
    if form is Form.CSV:
        render.write_csv(result.columns, result.rows)
    elif form is Form.JSON:
        render.write_json(_facts(result) | {"columns": result.columns, "rows": result.rows})
    else:
        render.write_table(result.columns, result.rows)


def _facts(result: "QueryResult") -> dict[str, Any]:
    return {
        "row_count": result.row_count,
        "truncated": result.truncated,
        "engine": result.engine,
        "reason": result.reason,
        "seconds": result.seconds,
    }


def _note(call: Invocation, facts: dict[str, Any], form: Form, out: Path | None) -> None:
    if out is not None and call.as_json:
        render.write_json(facts | {"file": str(out)})
    elif not call.as_json and (out is not None or facts["truncated"] or form is Form.TABLE):
        more = "; there are more, see --max-rows" if facts["truncated"] else ""
        where = f" to {out}" if out is not None else ""
        why = f"{facts['engine']}, {render.seconds(facts['seconds'])}"
        render.write_note(f"{render.counted(facts['row_count'], 'row')}{where}{more} ({why})")
        if facts["engine"] == "spark" and facts["reason"] and sys.stderr.isatty():
            render.write_note(f"Spark: {facts['reason']}")
