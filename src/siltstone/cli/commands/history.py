"""History and export of datasets, history of cycles: history, changes, export."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from siltstone.cli import render
from siltstone.cli.context import Invocation, confirm
from siltstone.cli.options import At, Name, OptionalName, Raw
from siltstone.cli.registration import READ, Commands
from siltstone.dataset.read.python_rows import python_rows
from siltstone.errors import InvalidRequest

if TYPE_CHECKING:
    from siltstone.compaction.execution.report import CycleEntry
    from siltstone.compaction.journal.records import JobRecord
    from siltstone.compaction.journal.totals import Statistics, Totals
    from siltstone.lake import Lake
    from siltstone.model.reports import AuditRecord, HistoryEntry

SHOWN: Final = 20
"""Default number of cycles and jobs to show."""


def history(
    call: Invocation,
    name: OptionalName = None,
    *,
    cycles: Annotated[bool, typer.Option("--cycles", help="Show compaction cycles (default without NAME).")] = False,
    jobs: Annotated[bool, typer.Option("--jobs", help="Show the jobs of cycles, of the lake or the dataset.")] = False,
    totals: Annotated[
        bool, typer.Option("--totals", help="Show sums over all cycles, by tier and kind of job, and by dataset.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", help="The newest N (default: 20 cycles or jobs, all commits).")
    ] = None,
) -> None:
    r"""Show a dataset's commits, or the lake's compaction cycles.

    The newest is first. No Spark is used.

    For a dataset the output has its commits, and the process that made each. The log of changes is retained for minutes,
    that of base for days; a purge deletes both. Actor and reason of tombstones stay. Cycles and jobs are in the lake's
    journal, which is never shortened and holds no values of rows.

    \b
    silt history crm.sales.candidates --limit 20
    silt history
    silt history --jobs crm.sales.candidates
    silt history --totals --json
    """
    if cycles + jobs + totals > 1:
        raise InvalidRequest("--cycles, --jobs and --totals exclude each other.")
    if cycles and name is not None:
        raise InvalidRequest("A cycle is of the whole lake: leave the name out, or use --jobs.")
    if totals and limit is not None:
        raise InvalidRequest("--totals counts all that was done: leave --limit out.")
    with call.open() as lake:
        lake.require_exists()
        if jobs:
            records = lake.jobs(_limit(limit), dataset=name)
            if name is not None and not records:  # a dropped dataset may have jobs, too
                lake.dataset(name)
            _answer_jobs(call, records)
        elif totals:
            _answer_totals(call, lake.totals(), lake, name)
        elif name is None:
            _answer_cycles(call, lake.history(_limit(limit)))
        else:
            entries = lake.dataset(name).history(limit)
            call.answer([entry.to_dict() for entry in entries], lambda: _show_commits(entries))


def _limit(limit: int | None) -> int:
    if limit is not None and limit < 1:
        raise InvalidRequest(f"--limit must be at least 1, not {limit}.")
    return SHOWN if limit is None else limit


def _answer_cycles(call: Invocation, cycles: "list[CycleEntry]") -> None:
    columns = ["cycle", "began", "seconds", "status", "message"]
    rows: list[list[object]] = [
        [
            entry.cycle,
            render.moment(entry.began_at),
            "" if entry.seconds is None else f"{entry.seconds:,.1f}",
            entry.status,
            entry.message,
        ]
        for entry in cycles
    ]
    call.answer([entry.to_dict() for entry in cycles], lambda: _show_table(columns, rows, numbers=["cycle", "seconds"]))


def _answer_jobs(call: Invocation, records: "list[JobRecord]") -> None:
    columns = ["cycle", "job", "dataset", "period", "status", "began", "seconds", "files", "bytes", "rows", "message"]
    rows: list[list[object]] = []
    for record in records:
        data, done = record.to_dict(), record.done
        rows.append(
            [
                record.cycle,
                record.lane,
                record.dataset,
                record.period,
                f"{data['status']}, recovered" if record.recovered else data["status"],
                render.moment(data["began_at"]),
                f"{done.seconds:,.1f}" if record.ended_at else "",
                f"{done.files_before:,} → {done.files_after:,}" if done.files_before or done.files_after else "",
                f"{render.size(done.bytes_before)} → {render.size(done.bytes_after)}" if done.bytes_after else "",
                render.number(done.rows) if done.rows else "",
                record.message,
            ]
        )
    numbers = ["cycle", *columns[6:10]]
    call.answer([record.to_dict() for record in records], lambda: _show_table(columns, rows, numbers=numbers))


def _answer_totals(call: Invocation, totals: "Totals", lake: "Lake", name: str | None) -> None:
    from siltstone.compaction.journal.totals import Statistics  # loaded with the journal's event log

    if name is not None:
        if name not in totals.datasets:
            lake.dataset(name)  # NotFound for an unknown dataset
        statistics = totals.datasets.get(name, Statistics())
        call.answer({"dataset": name, **statistics.to_dict()}, lambda: _show_statistics({name: statistics}))
        return
    by_name = dict(sorted(totals.lanes.items())) | dict(sorted(totals.datasets.items())) | {"all": totals.all}

    def people() -> None:
        _show_statistics(by_name)
        render.write_note(f"{render.counted(totals.cycles, 'cycle')}, {totals.cycles_failed} with failures.")

    call.answer(totals.to_dict(), people)


def _show_statistics(by_name: "dict[str, Statistics]") -> None:
    columns = ["of", "jobs", "failed", "recovered", "files", "bytes", "deleted", "rows", "seconds"]
    columns += ["longest wait", "written per byte"]
    rows: list[list[object]] = [
        [
            name,
            render.number(statistics.jobs),
            statistics.failures,
            statistics.recovered,
            f"{statistics.files_before:,} → {statistics.files_after:,}",
            f"{render.size(statistics.bytes_before)} → {render.size(statistics.bytes_after)}",
            render.size(statistics.bytes_deleted) if statistics.files_deleted else "",
            render.number(statistics.rows),
            f"{statistics.seconds:,.1f}",
            render.seconds(statistics.longest_wait_seconds) if statistics.longest_wait_seconds else "",
            "" if statistics.write_amplification is None else f"{statistics.write_amplification:.2f}",
        ]
        for name, statistics in by_name.items()
    ]
    _show_table(columns, rows, numbers=columns[1:])


def _show_table(columns: list[str], rows: list[list[object]], *, numbers: list[str]) -> None:
    if rows:
        render.write_table(columns, rows, numbers=numbers)
    else:
        render.write_line("Nothing to show yet: silt compact --cycle runs a cycle.")


def _show_commits(entries: "list[HistoryEntry]") -> None:
    columns = [
        "time",
        "table",
        "version",
        "operation",
        "sequence",
        "rows",
        "files",
        "bytes",
        "writer",
        "actor and reason",
    ]
    rows: list[list[object]] = [
        [
            render.moment(entry.at),
            entry.table,
            entry.version,
            f"{entry.operation} (another program)" if entry.foreign else entry.operation,
            _sequence(entry),
            _moved(
                render.number(entry.rows_added),
                "?" if entry.rows_removed is None else render.number(entry.rows_removed),
            ),
            _moved(render.number(entry.files_added), render.number(entry.files_removed)),
            _moved(render.size(entry.bytes_added), render.size(entry.bytes_removed)),
            _writer(entry),
            "; ".join(map(_audit_text, entry.audit)),
        ]
        for entry in entries
    ]
    if not any(entry.audit for entry in entries):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    render.write_table(columns, rows, numbers=[columns[2], *columns[4:8]])


def _audit_text(record: "AuditRecord") -> str:
    who = ": ".join(filter(None, (record.actor, record.reason)))
    hid = "" if record.rows is None else f", hid {render.counted(record.rows, 'row')}"
    return f"{who} ({render.counted(record.keys, 'tombstone')}{hid})"


def _sequence(entry: "HistoryEntry") -> str | None:
    if entry.folded_to is not None:
        return f"to {entry.folded_to}"
    if entry.first_sequence == entry.last_sequence:
        return None if entry.last_sequence is None else str(entry.last_sequence)
    return f"{entry.first_sequence} to {entry.last_sequence}"


def _moved(added: str, removed: str) -> str:
    """Return added and removed counts as ``+3 -1``; zero counts are left out."""
    parts = [f"+{added}" if added not in ("0", "0 B") else "", f"-{removed}" if removed not in ("0", "0 B") else ""]
    return " ".join(filter(None, parts))


def _writer(entry: "HistoryEntry") -> str | None:
    if entry.user is None:
        return entry.engine
    return entry.user if entry.pid is None else f"{entry.user}, process {entry.pid}"


def changes(
    call: Invocation,
    name: Name,
    *,
    since: Annotated[int, typer.Option("--since", metavar="N", help="The changes above this sequence.")] = 0,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", help="About N rows: whole sequences, at least one.")
    ] = None,
) -> None:
    r"""Show the changes above a sequence, in order.

    No Spark is used. To follow a dataset, continue from the last _seq. If changes after that are no longer stored, the
    command fails and names the first sequence that is: read the whole dataset again and continue from there.

    \b
    silt changes crm.sales.candidates --since 42
    silt changes crm.sales.candidates --since 42 --limit 10000 --json
    """
    with call.open() as lake:
        table = lake.dataset(name).changes_to_arrow(since=since, limit=limit)
    rows = python_rows(table)
    call.answer(rows, lambda: render.write_rows(table.column_names, [list(row.values()) for row in rows]))


def export(  # noqa: PLR0913  # the options of a command
    call: Invocation,
    name: Name,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A folder that does not exist, or is empty.")],
    *,
    format_name: Annotated[str, typer.Option("--format", metavar="FORMAT", help="parquet, csv or delta.")] = "parquet",
    at: At = None,
    raw: Raw = False,
    files: Annotated[int | None, typer.Option("--files", metavar="N", help="The number of files to write.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before an export is replaced.")] = False,
) -> None:
    r"""Write the merged view into a folder outside the lake.

    Spark writes all rows, or the folder does not appear.

    \b
    silt export crm.sales.candidates /exports/candidates
    silt export crm.sales.candidates /exports/then --format delta --at 2026-11-16T08:00:00Z
    silt export crm.sales.candidates /exports/candidates --format csv --files 1 --overwrite --yes
    """
    with call.open(spark=True) as lake:
        dataset = lake.dataset(name)
        if overwrite and Path(target).is_dir() and any(Path(target).iterdir()):
            confirm(f"Replace the files in {target}?", yes=yes)
        with call.showing("Exporting on Spark", lake):
            done = dataset.export(target, format=format_name, at=at, raw=raw, files=files, overwrite=overwrite)
    written = f"{render.counted(done.rows, 'row')} in {render.counted(done.files, 'file')}, {render.size(done.bytes)}"
    text = f"{done.dataset}: {written}, as of sequence {done.sequence}, to {done.path}, {render.seconds(done.seconds)}."
    call.answer(done.to_dict(), lambda: render.write_line(text))


COMMANDS: Final[Commands] = {READ: {"history": history, "changes": changes, "export": export}}
