"""Writes of rows: upsert, update, append, tombstone, tombstones, ingest."""

import os
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from siltstone.cli import render
from siltstone.cli.context import Invocation, confirm
from siltstone.cli.input_parsing import read_keys, read_lines, read_rows, read_subjects
from siltstone.cli.options import KeysFile, Name, Rows, RowsFile
from siltstone.cli.registration import WRITE, Commands
from siltstone.errors import InvalidRequest

if TYPE_CHECKING:
    from siltstone.model.reports import TombstoneAck

Producer = Annotated[
    str | None,
    typer.Option("--producer", metavar="ID", help="The writer's name; with --sequence a repeated call writes once."),
]
Sequence = Annotated[
    int | None,
    typer.Option("--sequence", metavar="N", help="The producer's number of this write: its last one plus 1."),
]


def upsert(
    call: Invocation,
    name: Name,
    file: RowsFile = None,
    *,
    row: Rows = None,
    order_by: Annotated[
        str | None,
        typer.Option("--order-by", metavar="A,B", help="Of rows with the same key write the last by these columns."),
    ] = None,
    producer: Producer = None,
    sequence: Sequence = None,
) -> None:
    r"""Insert or replace whole rows by key.

    The command returns when they are durable.

    \b
    silt upsert crm.sales.candidates --row '{"candidate_id": "CAND-000007", "name": "Ada"}'
    silt upsert crm.sales.candidates rows.ndjson
    generate | silt upsert crm.sales.candidates - --producer nightly --sequence 17
    """
    with call.open() as lake:
        dataset = lake.dataset(name)
        rows = read_rows(file, row or [])
        ack = dataset.upsert(rows, order_by=_names(order_by), producer=producer, sequence=sequence)

    done = f"Wrote {render.counted(ack.rows, 'row')} to {name}, sequence {ack.sequence}."
    shown = done if ack.applied else _duplicate_text(producer, sequence)
    call.answer(ack.to_dict(), lambda: render.write_line(shown))


def _duplicate_text(producer: str | None, sequence: int | None) -> str:
    return f"Producer {producer} had written sequence {sequence} before; nothing was written again."


def update(
    call: Invocation,
    name: Name,
    file: RowsFile = None,
    *,
    row: Rows = None,
    missing: Annotated[
        str,
        typer.Option("--missing", metavar="error|insert", help="On a key without a row: fail, or insert a new row."),
    ] = "error",
    producer: Producer = None,
    sequence: Sequence = None,
) -> None:
    r"""Change some columns of rows by key.

    Columns that a row leaves out keep their values; null sets a column to null. Concurrent updates of one row do not
    lose each other's columns.

    \b
    silt update crm.sales.candidates --row '{"candidate_id": "CAND-000007", "score": 0.5}'
    silt update crm.sales.candidates scores.ndjson --missing insert
    """
    with call.open() as lake:
        dataset = lake.dataset(name)
        rows = read_rows(file, row or [])
        ack = dataset.update(rows, missing=missing, producer=producer, sequence=sequence)
    done = f"Updated {render.counted(ack.rows, 'row')} of {name}, sequence {ack.sequence}."
    shown = done if ack.applied else _duplicate_text(producer, sequence)
    call.answer(ack.to_dict(), lambda: render.write_line(shown))


def append(
    call: Invocation,
    name: Name,
    file: RowsFile = None,
    *,
    row: Rows = None,
    producer: Producer = None,
    sequence: Sequence = None,
    on_bad_row: Annotated[
        str,
        typer.Option(
            "--on-bad-row",
            metavar="ACTION",
            help="On a bad row reject the whole batch (reject-batch), or skip that row (skip).",
        ),
    ] = "reject-batch",
) -> None:
    r"""Append rows to a log.

    The command returns when they are durable. With --on-bad-row skip, bad rows are named on standard error and the
    others are written.

    \b
    silt append web.eu.clicks --row '{"at": "2026-11-15T14:03:00Z", "visitor": "V-7", "page": "/"}'
    silt append web.eu.clicks clicks.ndjson --on-bad-row skip
    generate | silt append web.eu.clicks - --producer edge-3 --sequence 17
    """
    with call.open() as lake:
        dataset = lake.dataset(name)
        rows = read_rows(file, row or [])
        ack = dataset.append(rows, producer=producer, sequence=sequence, on_bad_row=on_bad_row)

    def people() -> None:
        if ack.applied:
            render.write_line(f"Appended {render.counted(ack.rows, 'row')} to {name}, sequence {ack.sequence}.")
        elif not ack.rows:
            render.write_line("Every row was refused; nothing was written.")
        else:
            render.write_line(_duplicate_text(producer, sequence))
        for refused in ack.refused:
            render.write_note(f"Row {refused.row} was refused: {refused.reason}")

    call.answer(ack.to_dict(), people)


def tombstone(  # noqa: PLR0913  # one parameter for each option
    call: Invocation,
    name: Name,
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY", help="Key or subject values; several columns as a JSON array or object."),
    ] = None,
    *,
    file: KeysFile = None,
    where: Annotated[
        str | None, typer.Option("--where", metavar="SQL", help="A condition instead of keys; Spark finds the rows.")
    ] = None,
    actor: Annotated[
        str | None, typer.Option("--actor", metavar="WHO", help="Who requested it, for the audit record.")
    ] = None,
    reason: Annotated[str | None, typer.Option("--reason", metavar="WHY", help="Why, for the audit record.")] = None,
    producer: Producer = None,
    sequence: Sequence = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before a condition hides rows.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count the rows that --where would hide.")] = False,
) -> None:
    r"""Hide rows by key at once.

    The next compact drops them; compact --purge removes them from disk.

    In a log, a subject value hides every row with that value that was appended before. An object may name some of the
    subject columns.

    One invalid key refuses the whole call, and nothing is written. A key that no row has is accepted; the answer
    counts the rows that match now.

    With --actor or --reason an audit record is written, which silt history shows even after a fold and a purge. It
    has no key; do not name a person in it.

    \b
    silt tombstone crm.sales.candidates CAND-000001 CAND-000002 --actor dpo --reason 'request 17'
    silt tombstone shop.eu.prices '["sku-1", 42]' '{"sku": "sku-2", "store": 7}'
    silt tombstone web.eu.clicks V-7 --actor dpo
    silt tombstone crm.sales.candidates --where "city = 'Bern' AND score < 10" --dry-run
    """
    options: dict[str, Any] = {"actor": actor, "reason": reason, "producer": producer, "sequence": sequence}
    if where is not None:
        if keys or file is not None:
            raise InvalidRequest("Name keys or a condition (--where), one of the two. Nothing was written.")
        _hide_matching(call, name, where, options, yes=yes, dry_run=dry_run)
        return
    if dry_run:
        raise InvalidRequest("--dry-run needs --where. Nothing was written.")
    with call.open() as lake:
        dataset = lake.dataset(name)
        texts = [*(keys or []), *(read_lines(file) if file is not None else [])]
        if not texts:
            raise InvalidRequest("Name at least one key, or a --file with keys. Nothing was written.")
        read = read_subjects if dataset.spec.is_log else read_keys
        values = read(texts, dataset.schema, dataset.spec.found_by)
        ack = dataset.tombstone(values, **options)
    shown = _hidden_text(name, ack) if ack.applied else _duplicate_text(producer, sequence)
    call.answer(ack.to_dict(), lambda: render.write_line(shown))


def _hidden_text(name: str, ack: "TombstoneAck") -> str:
    keys = render.counted(ack.rows, "tombstone")
    if ack.rows_matched is None:
        return f"Wrote {keys} to {name}, sequence {ack.sequence}. The number of hidden rows is unknown."
    if not ack.rows_matched:
        return f"Wrote {keys} to {name}, sequence {ack.sequence}. No row matches now."
    return f"Hid {render.counted(ack.rows_matched, 'row')} of {name}, sequence {ack.sequence} ({keys})."


def _hide_matching(
    call: Invocation, name: str, where: str, options: dict[str, Any], *, yes: bool, dry_run: bool
) -> None:
    with call.open(spark=True) as lake:
        dataset = lake.dataset(name)
        if dry_run or not yes:
            with call.showing("Counting on Spark", lake):
                rows = dataset.count_matching(where)
            if dry_run:
                call.answer(
                    {"dataset": name, "rows": rows, "dry_run": True},
                    lambda: render.write_line(f"Would hide {render.counted(rows, 'row')} of {name}."),
                )
                return
            confirm(f"Hide {render.counted(rows, 'row')} of {name}?", yes=yes)
        with call.showing("Hiding on Spark", lake):
            ack = dataset.tombstone(where=where, **options)
    hidden = f"Hid {render.counted(ack.rows, 'row')} of {name}, sequence {ack.sequence}."
    nothing = "Nothing was written: no row matches, or the producer had written it before."
    call.answer(ack.to_dict(), lambda: render.write_line(hidden if ack.applied else nothing))


def tombstones(call: Invocation, name: Name) -> None:
    r"""List the tombstones that are not folded yet.

    \b
    silt tombstones crm.sales.candidates
    """
    with call.open() as lake:
        rows = lake.dataset(name).tombstones()

    def people() -> None:
        if not rows:
            render.write_line(f"No unfolded tombstones in {name}.")
            return
        render.write_rows(list(rows[0]), [list(row.values()) for row in rows])

    call.answer(rows, people)


def ingest(  # noqa: PLR0913  # one parameter for each option
    call: Invocation,
    name: Name,
    paths: Annotated[list[str] | None, typer.Argument(metavar="PATH", help="Files, folders or globs.")] = None,
    *,
    file_format: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="FORMAT", help="parquet, csv, json or ndjson, if the file names do not show it."
        ),
    ] = None,
    order_by: Annotated[
        str | None,
        typer.Option("--order-by", metavar="A,B", help="Of rows with the same key keep the last by these columns."),
    ] = None,
    quarantine: Annotated[
        str | None,
        typer.Option("--quarantine", metavar="FOLDER", help="Copy bad files and rows there, and load the rest."),
    ] = None,
    reload: Annotated[bool, typer.Option("--reload", help="Load files that were loaded before, too.")] = False,
    delimiter: Annotated[
        str | None,
        typer.Option("--delimiter", metavar="C", help="CSV: the character between fields, or tab; default: a comma."),
    ] = None,
    quote: Annotated[
        str | None,
        typer.Option(
            "--quote", metavar="C", help="CSV: the character around fields, or none; default: the double quote."
        ),
    ] = None,
    encoding: Annotated[
        str | None, typer.Option("--encoding", metavar="NAME", help="CSV: such as latin-1; default: utf-8.")
    ] = None,
    no_header: Annotated[
        bool, typer.Option("--no-header", help="CSV: the first line is a row; columns are in the dataset's order.")
    ] = False,
    null_text: Annotated[
        list[str] | None,
        typer.Option("--null-text", metavar="TEXT", help="CSV: a field that is null; default: an empty one."),
    ] = None,
    date_format: Annotated[
        str | None, typer.Option("--date-format", metavar="FORMAT", help="CSV: such as %d.%m.%Y; default: ISO 8601.")
    ] = None,
    timestamp_format: Annotated[
        str | None,
        typer.Option(
            "--timestamp-format", metavar="FORMAT", help="CSV: such as '%d.%m.%Y %H:%M:%S'; default: ISO 8601."
        ),
    ] = None,
    decimal_comma: Annotated[
        bool, typer.Option("--decimal-comma", help="CSV: numbers have a comma instead of a point.")
    ] = False,
    jdbc: Annotated[
        str | None,
        typer.Option("--jdbc", metavar="URL", help="Load from a database: jdbc:postgresql://host:5432/name."),
    ] = None,
    table: Annotated[str | None, typer.Option("--table", metavar="TABLE", help="The table to read.")] = None,
    query: Annotated[str | None, typer.Option("--query", metavar="SQL", help="A query instead of a table.")] = None,
    user: Annotated[str | None, typer.Option("--user", metavar="USER", help="The database's user.")] = None,
    password_env: Annotated[
        str | None, typer.Option("--password-env", metavar="VAR", help="The variable that holds the password.")
    ] = None,
    partition_column: Annotated[
        str | None, typer.Option("--partition-column", metavar="C", help="Read in parallel by this column.")
    ] = None,
    partitions: Annotated[
        int | None, typer.Option("--partitions", metavar="N", help="The number of parts to read (default: 8).")
    ] = None,
) -> None:
    r"""Load files or a database's table, on Spark.

    Rows go directly to base while the dataset is empty; otherwise they become one batch of changes.

    \b
    silt ingest crm.sales.calls calls/*.parquet
    silt ingest crm.sales.candidates export.csv.gz --order-by updated_at
    silt ingest crm.sales.candidates 'feed/*.ndjson' --quarantine /data/bad
    silt ingest crm.sales.candidates export.csv --delimiter ';' --decimal-comma --date-format %d.%m.%Y
    silt ingest crm.sales.candidates --jdbc jdbc:postgresql://db:5432/crm --table candidates --user silt \
        --password-env CRM_PASSWORD
    """
    order = _names(order_by)
    database: dict[str, Any] = {
        "table": table,
        "query": query,
        "user": user,
        "password": _password(password_env),
        "partition_column": partition_column,
        "partitions": partitions,
    }
    csv: dict[str, Any] = {
        "delimiter": delimiter,
        "quote": quote,
        "encoding": encoding,
        "header": False if no_header else None,
        "null_text": null_text or None,
        "date_format": date_format,
        "timestamp_format": timestamp_format,
        "decimal_comma": decimal_comma or None,
    }
    _check_source(paths, jdbc, database=database, files_only={"format": file_format, "reload": reload or None, **csv})
    with call.working(f"Loading into {name} on Spark") as lake:
        dataset = lake.dataset(name)
        if jdbc is not None:
            report = dataset.ingest_jdbc(jdbc, order_by=order, quarantine=quarantine, **database)
        else:
            report = dataset.ingest(
                paths or [], format=file_format, order_by=order, quarantine=quarantine, reload=reload, **csv
            )

    def people() -> None:
        if report.files_skipped:
            render.write_line(f"{render.counted(report.files_skipped, 'file')} loaded before, left out.")
        if report.quarantine:
            files = render.counted(report.files_quarantined, "file")
            rows = render.counted(report.rows_quarantined, "row")
            render.write_line(f"Quarantined {files} and {rows} in {report.quarantine}.")
        if not report.files:
            render.write_line(f"Nothing new to load into {name}; --reload loads the same files once more.")
            return
        where = "base" if report.first_load else f"changes, sequence {report.sequence}"
        files = f"{render.counted(report.files, 'file')}, {render.size(report.bytes)}"
        rows = render.counted(report.rows, "row")
        render.write_line(f"Loaded {rows} into {name} ({where}): {files}, {render.seconds(report.seconds)}.")

    call.answer(report.to_dict(), people)


def _password(variable: str | None) -> str | None:
    """Return the value of an environment variable, because every user of the machine can see arguments."""
    if variable is None:
        return None
    if variable not in os.environ:
        raise InvalidRequest(f"There is no variable {variable} in the environment. Nothing was loaded.")
    return os.environ[variable]


def _check_source(
    paths: list[str] | None, jdbc: str | None, *, database: dict[str, Any], files_only: dict[str, Any]
) -> None:
    if bool(paths) == (jdbc is not None):
        raise InvalidRequest("Name the files to load, or a database with --jdbc; one of the two.")
    unusable = database if jdbc is None else files_only
    for name, value in unusable.items():
        if value is not None:
            option = {"header": "--no-header", "password": "--password-env"}.get(name, f"--{name.replace('_', '-')}")
            use = "needs --jdbc" if jdbc is None else "is for files and cannot be combined with --jdbc"
            raise InvalidRequest(f"{option} {use}. Nothing was loaded.")


def _names(text: str | None) -> list[str] | None:
    return [column.strip() for column in text.split(",")] if text else None


COMMANDS: Final[Commands] = {
    WRITE: {
        "upsert": upsert,
        "update": update,
        "append": append,
        "tombstone": tombstone,
        "tombstones": tombstones,
        "ingest": ingest,
    }
}
