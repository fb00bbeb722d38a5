"""Keeping datasets in shape: status, compact, vacuum."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from siltstone.cli import render
from siltstone.cli.invocation import Invocation, chosen, confirm, each, invocation, settle
from siltstone.cli.registration import add

if TYPE_CHECKING:
    from siltstone.dataset.dataset import Dataset
    from siltstone.model.results import CompactReport, FoldEstimate, Status, VacuumReport

OptionalName = Annotated[str | None, typer.Argument(metavar="NAME", help="catalog.schema.table")]
All = Annotated[bool, typer.Option("--all", help="Every dataset of the lake.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and change nothing.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    add(app, "status", status)
    add(app, "compact", compact)
    add(app, "vacuum", vacuum)


def _write_json(name: str | None, reports: list[Any]) -> None:
    """Write one report for one dataset, a list of them for all."""
    plain = [report.to_dict() for report in reports]
    if name is None:
        render.write_json(plain)
    elif plain:
        render.write_json(plain[0])


# ---- status ------------------------------------------------------------------------------------------------------


def status(context: typer.Context, name: OptionalName = None) -> None:
    r"""Show how datasets stand: rows and bytes in base, and how far it lags behind what was written.

    \b
    silt status
    silt status crm.sales.candidates --json
    """
    call = invocation(context)
    with call.open() as lake:
        found, failures = each(chosen(lake, name, every=name is None), lambda dataset: dataset.status())
    if call.as_json:
        _write_json(name, found)
    elif name is None:
        _show_statuses(found)
    elif found:
        _show_status(found[0])
    settle(call, failures)


def _show_statuses(found: "list[Status]") -> None:
    if not found:
        render.write_line("No datasets to show.")
        return
    columns = ["dataset", "base rows", "base files", "base size", "backlog rows", "batches", "since", "unreferenced"]
    rows = [
        [
            one.dataset,
            render.number(one.rows_in_base),
            one.base_files,
            render.size(one.base_bytes),
            render.number(one.backlog_rows),
            one.backlog_batches,
            one.oldest_unfolded_at,
            render.size(one.unreferenced_bytes),
        ]
        for one in found
    ]
    render.write_table(columns, rows, numbers=[*columns[1:6], columns[7]])


def _show_status(one: "Status") -> None:
    base = f"{render.counted(one.rows_in_base, 'row')} in {render.counted(one.base_files, 'file')}"
    backlog = f"{render.counted(one.backlog_rows, 'row')} in {render.counted(one.backlog_batches, 'batch')}"
    render.write_facts(
        {
            "dataset": one.dataset,
            "base": f"{base}, {render.size(one.base_bytes)}",
            "backlog": f"{backlog}, {render.size(one.backlog_bytes)}, since {one.oldest_unfolded_at}"
            if one.backlog_rows
            else "none",
            "sequence": f"{one.sequence}, folded up to {one.watermark}",
            "unreferenced": f"{render.counted(one.unreferenced_files, 'file')}, {render.size(one.unreferenced_bytes)}",
        }
    )


# ---- compact -----------------------------------------------------------------------------------------------------


def compact(
    context: typer.Context,
    name: OptionalName = None,
    *,
    every: All = False,
    purge: Annotated[
        bool, typer.Option("--purge", help="Also delete from disk whatever is no longer part of the dataset.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before a purge.")] = False,
    dry_run: DryRun = False,
) -> None:
    r"""Fold what was written into base, on Spark. Nothing to fold starts no Spark.

    A purge also deletes history: older versions and tombstoned rows are gone from disk, for good.

    \b
    silt compact crm.sales.candidates --dry-run
    silt compact --all
    silt compact crm.sales.candidates --purge --yes
    """
    call = invocation(context)
    with call.open(spark=not dry_run) as lake:
        datasets = chosen(lake, name, every=every)
        if dry_run:
            _preview(call, name, datasets)
            return
        if purge:
            which = ", ".join(str(dataset.name) for dataset in datasets)
            confirm(f"Purge {which}: delete its history from disk?", yes=yes)
        with call.showing("Compacting on Spark", lake):
            done, failures = each(datasets, lambda dataset: dataset.compact(purge=purge))
    if call.as_json:
        _write_json(name, done)
    else:
        for report in done:
            render.write_line(_told(report))
    settle(call, failures)


def _told(report: "CompactReport") -> str:
    text = f"{report.dataset}: nothing to fold, {render.counted(report.final_rows, 'row')}"
    if report.batches_folded:
        text = (
            f"{report.dataset}: {render.number(report.base_rows)} → {render.counted(report.final_rows, 'row')}, "
            f"{render.counted(report.batches_folded, 'batch')} folded ({render.counted(report.upserts_applied, 'upsert')}, "
            f"{render.counted(report.tombstones_applied, 'tombstone')}), "
            f"{render.counted(report.files_removed, 'file')} replaced by {report.files_added}, "
            f"{render.size(report.bytes_before)} → {render.size(report.bytes_after)}"
        )
    purged = (
        f"; purged {render.counted(report.files_deleted, 'file')}, {render.size(report.bytes_deleted)}"
        if report.purged
        else ""
    )
    return f"{text}{purged}, {render.seconds(report.seconds)}."


def _preview(call: Invocation, name: str | None, datasets: "list[Dataset]") -> None:
    """Show the backlog and what a fold would rewrite at most; no Spark."""
    found, failures = each(datasets, lambda dataset: dataset.compact_estimate())
    if call.as_json:
        _write_json(name, found)
    elif found:
        _show_estimates(found)
    settle(call, failures)


def _show_estimates(found: "list[FoldEstimate]") -> None:
    columns = [
        "dataset",
        "batches",
        "change rows",
        "change size",
        "files to rewrite at most",
        "size to rewrite at most",
    ]
    rows = [
        [
            one.dataset,
            one.batches,
            render.number(one.change_rows),
            render.size(one.change_bytes),
            f"{one.files_touched_at_most} of {one.base_files}",
            f"{render.size(one.bytes_touched_at_most)} of {render.size(one.base_bytes)}",
        ]
        for one in found
    ]
    render.write_table(columns, rows, numbers=columns[1:])


# ---- vacuum ------------------------------------------------------------------------------------------------------


def vacuum(
    context: typer.Context,
    name: OptionalName = None,
    *,
    every: All = False,
    retention_hours: Annotated[
        float | None, typer.Option("--retention-hours", metavar="H", help="Keep what was removed later than this.")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    r"""Delete files that were removed longer ago than the retention, and what crashed jobs left behind.

    \b
    silt vacuum crm.sales.candidates --dry-run
    silt vacuum --all --retention-hours 24
    """
    call = invocation(context)
    with call.open() as lake:
        done, failures = each(
            chosen(lake, name, every=every),
            lambda dataset: dataset.vacuum(retention_hours=retention_hours, dry_run=dry_run),
        )
    if call.as_json:
        _write_json(name, done)
    else:
        for report in done:
            _show_vacuum(report)
    settle(call, failures)


def _show_vacuum(report: "VacuumReport") -> None:
    if report.dry_run:
        for file in report.files:
            render.write_line(file)
    verb = "would delete" if report.dry_run else "deleted"
    files = f"{render.counted(len(report.files), 'file')}, {render.size(report.bytes)}"
    render.write_line(f"{report.dataset}: {verb} {files}; the last {report.retention_hours:g} h are kept.")
