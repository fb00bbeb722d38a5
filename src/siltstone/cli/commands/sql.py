"""Queries: sql."""

import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from siltstone.cli import render
from siltstone.cli.context import Invocation
from siltstone.cli.input_parsing import STANDARD_INPUT, read_parameter
from siltstone.cli.registration import READ, Commands
from siltstone.cli.result_files import print_rows, write_rows
from siltstone.errors import InvalidRequest
from siltstone.model.numbers import MAX_RESULT_ROWS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow as pa

    from siltstone.lake import Lake


class Form(StrEnum):
    """The output format of rows."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"


SHORTEST_SECONDS: Final = 0.001
"""Shortest time limit of a stream, in seconds, if the call before it used up the limit. 0 would mean no limit."""
FACTS: Final = ("row_count", "truncated", "engine", "reason", "seconds")
"""Fields of a result that are shown beside its rows."""
ENDINGS: Final = {".json": Form.JSON, ".csv": Form.CSV, ".parquet": Form.PARQUET}


def sql(  # noqa: PLR0913  # one parameter for each option
    call: Invocation,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="One SELECT; - reads it from standard input.")],
    *,
    params: Annotated[
        list[str] | None,
        typer.Option(
            "--param", metavar="NAME=VALUE", help="A value for :NAME; NAME:TYPE=VALUE sets its type; may be repeated."
        ),
    ] = None,
    engine: Annotated[str, typer.Option("--engine", metavar="NAME", help="auto, hot (in memory) or spark.")] = "auto",
    explain: Annotated[
        bool, typer.Option("--explain", help="Show the engine that would answer, why, and its plan; run nothing.")
    ] = False,
    max_rows: Annotated[
        int | None,
        typer.Option(
            "--max-rows",
            metavar="N",
            help="Rows to return at most, up to 100,000. Default: 1,000 for a table, all for csv, json and --out.",
        ),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", metavar="SECONDS", help="End the query after this time (0: no limit).")
    ] = None,
    form: Annotated[
        str | None,
        typer.Option("--format", metavar="FORM", help="table, json, csv or parquet (default: by the ending of --out)."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write the rows to a file: .parquet, .csv or .json.")
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Short for --format csv.")] = False,
) -> None:
    r"""Run one SELECT over datasets by their three-part names.

    It runs in memory where that gives the same answer, on Spark otherwise. A table named __raw__NAME shows a dataset
    without its tombstones applied. Ctrl-C ends the query.

    \b
    silt sql 'SELECT region, count(*) AS n FROM crm.sales.calls GROUP BY region'
    silt sql 'SELECT * FROM crm.sales.calls WHERE at >= :since' --out calls.parquet \
        --param since:timestamp=2026-11-01T00:00:00Z
    silt sql 'SELECT count(*) FROM crm.sales.__raw__candidates' --csv
    silt sql 'SELECT max(at) AS last FROM crm.sales.calls' --explain
    """
    chosen = _form(call, form, out, as_csv=as_csv)
    text = sys.stdin.read() if query == STANDARD_INPUT else query
    values = _values(params or [])
    with call.open(spark=engine == "spark") as lake, call.showing("Querying", lake):
        if explain:
            info = lake.explain_sql(text, params=values, engine=engine, timeout=timeout)
            data = {"engine": info.engine, "reason": info.reason, "datasets": dict(info.datasets), "plan": info.plan}

            def people() -> None:
                render.write_facts({"engine": info.engine, "reason": info.reason, **info.datasets})
                render.write_text(f"\n{info.plan}")

            call.answer(data, people)
            return
        if out is not None and out.resolve().is_relative_to(lake.path.resolve()):
            raise InvalidRequest(f"{out} is inside the lake, where no purge deletes it. Name a file outside.")
        whole = max_rows is None and chosen is not Form.TABLE
        most = MAX_RESULT_ROWS if whole else lake.settings.max_rows if max_rows is None else max_rows
        started = time.monotonic()
        result = lake.sql(text, params=values, engine=engine, max_rows=most, timeout=timeout)
        facts = {name: getattr(result, name) for name in FACTS}
        if chosen is Form.TABLE:
            render.write_rows(result.columns, result.rows)
        elif whole and result.truncated:
            del result  # the stream has these rows, too
            reader = _all_rows(lake, text, values, engine, timeout, started=started)
            facts |= {"truncated": False, "engine": "spark", "reason": "There are more rows than one answer has."}
            facts = _write_result(
                reader.schema, reader, out, chosen, lambda: facts | {"seconds": time.monotonic() - started}
            )
        else:
            facts = _write_result(result.table.schema, result.table.to_batches(), out, chosen, lambda: facts)
    _show_facts(call, facts, chosen, out)


def _all_rows(
    lake: "Lake", text: str, values: dict[str, object], engine: str, timeout: float | None, *, started: float
) -> "pa.RecordBatchReader":
    """Return all rows of a query with more rows than one call returns. `timeout` counts from `started`."""
    if engine == "hot":
        raise InvalidRequest(
            f"The query has more than {MAX_RESULT_ROWS:,} rows, and only Spark streams them. Nothing was written. "
            "Use --engine auto, or take fewer rows with --max-rows or LIMIT."
        )
    limit = lake.settings.query_seconds if timeout is None else timeout
    remaining = max(limit - (time.monotonic() - started), SHORTEST_SECONDS) if limit else 0.0
    return lake.stream_sql(text, params=values, timeout=remaining)


def _write_result(
    schema: "pa.Schema",
    batches: "Iterable[pa.RecordBatch]",
    out: Path | None,
    form: Form,
    facts: "Callable[[], dict[str, Any]]",
) -> dict[str, Any]:
    """Write rows to a file or to standard output, and return the facts to report."""
    if out is not None:
        rows = write_rows(schema, batches, out, form)
    else:
        rows = print_rows(schema, batches, form, facts=lambda count: facts() | {"row_count": count})
    return facts() | {"row_count": rows}


def _form(call: Invocation, form: str | None, out: Path | None, *, as_csv: bool) -> Form:
    if as_csv and (call.as_json or form not in (None, Form.CSV)):
        raise InvalidRequest(f"--csv and {'--json' if call.as_json else f'--format {form}'} exclude each other.")
    try:
        chosen = Form.CSV if as_csv else Form(form) if form is not None else None
    except ValueError as error:
        raise InvalidRequest(f"A --format is one of {', '.join(Form)}, not {form!r}.") from error
    if out is None:
        if chosen is Form.PARQUET:
            raise InvalidRequest("Parquet needs a file: name it with --out.")
        return chosen or (Form.JSON if call.as_json else Form.TABLE)
    file_form = chosen or ENDINGS.get(out.suffix.lower())
    if file_form is None or file_form is Form.TABLE:
        raise InvalidRequest(
            f"--out takes a file that ends in {', '.join(ENDINGS)}, or a --format json, csv or parquet."
        )
    return file_form


def _values(params: list[str]) -> dict[str, object]:
    values: dict[str, object] = {}
    for text in params:
        name, value = read_parameter(text)
        if name in values:
            raise InvalidRequest(f"Parameter {name!r} was given twice.")
        values[name] = value
    return values


def _show_facts(call: Invocation, facts: dict[str, Any], form: Form, out: Path | None) -> None:
    if out is not None and call.as_json:
        render.write_json(facts | {"file": str(out)})
    elif not call.as_json and (out is not None or facts["truncated"] or form is Form.TABLE):
        where = f" to {out}" if out is not None else ""
        rows = render.counted(facts["row_count"], "row")
        render.write_note(f"{rows}{where} ({facts['engine']}, {render.seconds(facts['seconds'])})")
        if facts["truncated"]:
            render.write_note(
                "NOT ALL ROWS: the query has more. Choose how many with --max-rows N; --csv, --json and --out FILE write all."
            )
        if facts["engine"] == "spark" and facts["reason"] and sys.stderr.isatty():
            render.write_note(f"Spark: {facts['reason']}")


COMMANDS: Final[Commands] = {READ: {"sql": sql}}
