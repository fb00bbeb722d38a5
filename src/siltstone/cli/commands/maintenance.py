"""Maintenance of datasets in this process: compact, cluster, vacuum."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

import siltstone
from siltstone.cli import render
from siltstone.cli.context import Failures, Invocation, confirm, each, raise_failures, select_datasets
from siltstone.cli.job_output import job_text, recovered_line, report_text, result_text, skipped_line
from siltstone.cli.options import Name, OptionalName, names_of
from siltstone.cli.registration import MAINTENANCE, Commands
from siltstone.errors import InvalidRequest, SiltstoneError, Unavailable, named_error
from siltstone.model.compaction_request import CompactionRequest, RequestKind

if TYPE_CHECKING:
    from siltstone.compaction.execution.report import CycleReport
    from siltstone.dataset.dataset import Dataset
    from siltstone.lake import Lake
    from siltstone.model.reports import ClusterEstimate

All = Annotated[bool, typer.Option("--all", help="Every dataset of the lake.")]
WITHOUT_SPARK: Final = frozenset({"squash", "vacuum"})
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and change nothing.")]


def _write_json(name: str | None, reports: list[dict[str, Any]]) -> None:
    """Write one report for one dataset, a list of them for all."""
    if name is None:
        render.write_json(reports)
    elif reports:
        render.write_json(reports[0])


def compact(  # noqa: PLR0913  # one parameter for each way to compact
    call: Invocation,
    name: OptionalName = None,
    *,
    every: All = False,
    purge: Annotated[
        bool, typer.Option("--purge", help="Also delete from disk whatever is no longer part of the dataset.")
    ] = False,
    squash: Annotated[bool, typer.Option("--squash", help="Only merge small files of changes, without Spark.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before a purge.")] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Show what a cycle would do now, and why it leaves out the rest.")
    ] = False,
    cycle: Annotated[bool, typer.Option("--cycle", help="Do what --plan shows.")] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only", metavar="JOB", help="With --plan or --cycle: only this tier or kind of job; may be repeated."
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="With --plan or --cycle: also jobs below their thresholds or too young.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    r"""Fold the changes into base, on Spark.

    With nothing to fold it starts no Spark.

    A purge also deletes history: older versions and tombstoned rows are gone from disk, for good. A squash merges many
    small files of changes into one; writers also do that automatically when there are 32.

    \b
    silt compact crm.sales.candidates --dry-run
    silt compact --all
    silt compact crm.sales.candidates --squash
    silt compact crm.sales.candidates --purge --yes
    silt compact --plan
    silt compact --cycle --only daily --force
    """
    if plan and cycle:
        raise InvalidRequest("--plan and --cycle exclude each other: --plan only shows what --cycle does.")
    if plan or cycle:
        if every or purge or squash or dry_run:
            raise InvalidRequest("--plan or --cycle goes with a name, --only and --force alone.")
        (_plan if plan else _cycle)(call, name, only=only, force=force)
        return
    if only or force:
        raise InvalidRequest("--only and --force go with --plan or --cycle.")
    if squash and purge:
        raise InvalidRequest("--squash and --purge exclude each other.")
    with call.open(spark=not dry_run and not squash) as lake:
        datasets, broken = select_datasets(lake, name, every=every)
        if dry_run and squash:
            reports, failures = each(datasets, lambda dataset: dataset.squash(dry_run=True).to_dict())
            _show_reports(call, name, reports, _squash_line, [*(broken | failures).values()])
            return
        if dry_run:
            _preview(call, name, datasets, broken, purge=purge)
            return
        which = tuple(str(dataset.name) for dataset in datasets)
        if purge:
            confirm(f"Purge {', '.join(which)}: delete its history from disk?", yes=yes)
        kind = RequestKind.SQUASH if squash else RequestKind.COMPACT
        request = CompactionRequest(kind=kind, names=which, purge=purge)
        done = _submit(call, lake, request, "Squashing" if squash else "Compacting on Spark")
    line = _squash_line if squash else _fold_line
    _show_reports(call, name, _reports(done), line, [*broken.values(), *_failures(done)])


def _plan(call: Invocation, name: str | None, *, only: list[str] | None, force: bool) -> None:
    from siltstone.compaction.planning.model import COLUMNS  # loaded with every plan

    with call.open() as lake:
        lake.require_exists()
        plan = lake.plan(None if name is None else [name], only=only, force=force)
    if call.as_json:
        render.write_json(plan.to_dict())
        return
    for dataset, why in plan.unreadable.items():
        render.write_note(f"{dataset} cannot be read and is left out: {why}")
    if not plan.jobs and not plan.left_out:
        render.write_line("There is nothing to plan.")
        return
    render.write_table(list(COLUMNS), [list(line) for line in plan.table()], numbers=["MB", "score"])
    render.write_note(
        f"{render.counted(len(plan.jobs), 'job')} of at most {render.size(plan.budget_bytes)}: {render.size(plan.cost_bytes)}."
    )


def _submit(call: Invocation, lake: "Lake", request: CompactionRequest, text: str) -> "CycleReport":
    with call.showing(text, lake, spark=request.kind not in WITHOUT_SPARK):
        done = lake.submit(request)
    if (recovered := done.recovery.summary()) and not call.as_json:
        render.write_note(recovered_line(recovered))
    return done


def _reports(done: "CycleReport") -> list[dict[str, Any]]:
    """Return the reports of the jobs with their output files, as in the Python API."""
    reports = []
    for result in (job.to_dict() for job in done):
        if result["report"] is not None:
            outputs = {} if result["kind"] == "vacuum" else {"outputs": list(result["outputs"])}
            reports.append(result["report"] | outputs)
    return reports


def _failures(done: "CycleReport") -> list[SiltstoneError]:
    """Return the errors of the jobs, of the datasets that were left out, and of writes to the journal."""
    failed = [named_error(result.error_kind, _error_text(result), reason=result.error_reason) for result in done.failed]
    failed += [SiltstoneError(skipped_line(dataset, why)) for dataset, why in done.unreadable.items()]
    return failed + ([Unavailable(done.trouble)] if done.trouble is not None else [])


def _error_text(failed: "siltstone.JobResult") -> str:
    """Return the error of a job with the name of its dataset."""
    text = str(failed.error)
    return text if failed.dataset in text else f"{failed.dataset}: {text}"


def _show_reports(
    call: Invocation,
    name: str | None,
    reports: list[dict[str, Any]],
    line: Callable[[Mapping[str, Any]], str],
    failures: list[SiltstoneError],
) -> None:
    """Write one report for each dataset, then fail if there were errors."""
    if call.as_json:
        _write_json(name, reports)
    else:
        for report in reports:
            if report.get("recovered"):  # the log has the counts of a job whose worker died before it reported
                render.write_line(f"{report['dataset']}: {report_text(report)}; its worker died after the commit.")
            else:
                render.write_line(line(report))
    raise_failures(call, failures)


def _cycle(call: Invocation, name: str | None, *, only: list[str] | None, force: bool) -> None:
    request = CompactionRequest(
        kind=RequestKind.CYCLE,
        names=None if name is None else (name,),
        only=None if only is None else tuple(only),
        force=force,
    )
    with call.open(spark=True) as lake:
        lake.require_exists()
        done = _submit(call, lake, request, "Compacting")
    if call.as_json:
        render.write_json([result.to_dict() for result in done])
    else:
        for result in done:
            render.write_line(f"{job_text(result)}: {result_text(result)}")
        render.write_note(f"{render.counted(len(done), 'job')}.")
    raise_failures(call, _failures(done))


def _fold_line(data: Mapping[str, Any]) -> str:
    report = siltstone.CompactReport.from_dict(data)
    text = f"{report.dataset}: nothing to fold, {render.counted(report.final_rows, 'row')}"
    if report.batches_folded:
        text = (
            f"{report.dataset}: {render.number(report.base_rows)} → {render.counted(report.final_rows, 'row')}, "
            f"{render.counted(report.batches_folded, 'batch')} folded ({render.counted(report.upserts_applied, 'upsert')}, "
            f"{render.counted(report.tombstones_applied, 'tombstone')}), "
            f"{render.counted(report.files_removed, 'file')} replaced by {report.files_added}, "
            f"{render.size(report.bytes_before)} → {render.size(report.bytes_after)}"
        )
    if report.purged:
        text += f"; purged {render.counted(report.files_deleted, 'file')}, {render.size(report.bytes_deleted)}"
    return f"{text}, {render.seconds(report.seconds)}."


def _squash_line(data: Mapping[str, Any]) -> str:
    report = siltstone.SquashReport(**data)
    if not report.files_removed:
        return f"{report.dataset}: no small files of changes to squash."
    files = f"{render.counted(report.files_removed, 'file')}, {render.counted(report.rows_before, 'row')}"
    if report.dry_run:
        return f"{report.dataset}: {files} would become one file."
    after = f"{render.counted(report.rows_after, 'row')}, {render.size(report.bytes_after)}"
    became = f"{files}, {render.size(report.bytes_before)} became one file: {after}"
    return f"{report.dataset}: {became}, {render.seconds(report.seconds)}."


def _preview(call: Invocation, name: str | None, datasets: "list[Dataset]", broken: Failures, *, purge: bool) -> None:
    """Show the backlog and the most that a fold would rewrite. No Spark."""
    estimates, failures = each(datasets, lambda dataset: dataset.compact_estimate())
    if call.as_json:
        _write_json(name, [estimate.to_dict() for estimate in estimates])
    elif estimates:
        columns = ["dataset", "batches", "change rows", "change size"]
        columns += ["files to rewrite at most", "size to rewrite at most"]
        rows = [
            [
                estimate.dataset,
                estimate.batches,
                render.number(estimate.change_rows),
                render.size(estimate.change_bytes),
                f"{estimate.files_touched_at_most} of {estimate.base_files}",
                f"{render.size(estimate.bytes_touched_at_most)} of {render.size(estimate.base_bytes)}",
            ]
            for estimate in estimates
        ]
        render.write_table(columns, rows, numbers=columns[1:])
        for estimate in estimates if purge else []:
            files = estimate.unreferenced_files + estimate.change_files + estimate.files_touched_at_most
            size = estimate.unreferenced_bytes + estimate.change_bytes + estimate.bytes_touched_at_most
            render.write_line(
                f"{estimate.dataset}: a purge would delete at most {render.counted(files, 'file')}, {render.size(size)}, and the "
                "history: no older version could be read any more."
            )
    raise_failures(call, (broken | failures).values())


def cluster(
    call: Invocation,
    name: Name,
    *,
    by: Annotated[
        str | None, typer.Option("--by", metavar="A,B", help="The columns (default: those of the dataset).")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    r"""Sort the rows of a log by several columns, on Spark.

    A search by any of them then opens few files.

    \b
    silt cluster web.eu.clicks --dry-run
    silt cluster web.eu.clicks
    silt cluster web.eu.clicks --by at,account
    """
    columns = tuple(names_of(by))
    with call.open(spark=not dry_run) as lake:
        dataset = lake.dataset(name)
        if dry_run:
            _preview_cluster(call, dataset.cluster_estimate(columns or None))
            return
        request = CompactionRequest(kind=RequestKind.CLUSTER, names=(name,), by=columns)
        done = _submit(call, lake, request, "Clustering on Spark")
    reports = _reports(done)
    if call.as_json:
        render.write_json(reports)
    else:
        for result in done:
            render.write_line(f"{name} {result.period}: {result_text(result)}")
        render.write_note(f"{render.counted(len(reports), 'period')} clustered.")
    raise_failures(call, _failures(done))


def _preview_cluster(call: Invocation, estimate: "ClusterEstimate") -> None:
    if call.as_json:
        render.write_json(estimate.to_dict())
        return
    columns = ["period", "partition", "files", "files then at most", "rows", "size"]
    rows = [
        [
            period.period,
            ", ".join(f"{name}={render.cell(value)}" for name, value in period.partition.items()),
            period.files,
            period.files_after_at_most,
            render.number(period.rows),
            render.size(period.bytes),
        ]
        for period in estimate.periods
    ]
    if rows:
        render.write_table(columns, rows, numbers=columns[2:])
    files = f"{render.counted(estimate.files, 'file')} of {estimate.base_files}, {render.size(estimate.bytes)}"
    text = f"would rewrite {files}, ordered by {', '.join(estimate.columns)}" if rows else "nothing is left to cluster"
    render.write_line(f"{estimate.dataset}: {text}.")


def vacuum(
    call: Invocation,
    name: OptionalName = None,
    *,
    every: All = False,
    retention_hours: Annotated[
        float | None,
        typer.Option("--retention-hours", metavar="H", help="Keep files that were removed in the last H hours."),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    r"""Delete files past their retention, and orphans.

    Orphans are files that crashed jobs left behind.

    \b
    silt vacuum crm.sales.candidates --dry-run
    silt vacuum --all --retention-hours 24
    """
    with call.open() as lake:
        datasets, broken = select_datasets(lake, name, every=every)
        if dry_run:
            reports, failures = each(
                datasets, lambda dataset: dataset.vacuum(retention_hours=retention_hours, dry_run=True).to_dict()
            )
            _show_reports(call, name, reports, _vacuum_preview, [*(broken | failures).values()])
            return
        which = tuple(str(dataset.name) for dataset in datasets)
        request = CompactionRequest(kind=RequestKind.VACUUM, names=which, retention_hours=retention_hours)
        done = _submit(call, lake, request, "Deleting files")
    _show_reports(call, name, _reports(done), _vacuum_line, [*broken.values(), *_failures(done)])


def _vacuum_preview(report: Mapping[str, Any]) -> str:
    for file in report["files"]:
        render.write_line(file)
    return _vacuum_line(report)


def _vacuum_line(report: Mapping[str, Any]) -> str:
    verb = "would delete" if report["dry_run"] else "deleted"
    files = f"{render.counted(len(report['files']), 'file')}, {render.size(report['bytes'])}"
    return f"{report['dataset']}: {verb} {files}; the last {report['retention_hours']:g} h are retained."


COMMANDS: Final[Commands] = {MAINTENANCE: {"compact": compact, "cluster": cluster, "vacuum": vacuum}}
