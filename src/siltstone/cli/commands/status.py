"""Status of datasets and their last compaction: status."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from siltstone.cli import render
from siltstone.cli.context import Invocation, each, raise_failures, select_datasets
from siltstone.cli.options import OptionalName
from siltstone.cli.registration import DATASETS, Commands
from siltstone.errors import Corruption, SiltstoneError, Unavailable, named_error

if TYPE_CHECKING:
    from siltstone.compaction.journal.recovery import RecoveryReport
    from siltstone.compaction.journal.totals import Totals
    from siltstone.model.reports import Status


SHOWN: Final = 5
"""Most broken files that are named in a message. `--json` names them all."""
_SOUND: Final = {"broken": None, "broken_kind": None, "broken_reason": None}


def status(call: Invocation, name: OptionalName = None) -> None:
    r"""Show size, lag behind writes and last compaction of datasets.

    \b
    silt status
    silt status crm.sales.candidates --json
    """
    with call.open() as lake:
        datasets, broken = select_datasets(lake, name, every=name is None)
        statuses, failed = each(datasets, lambda dataset: dataset.status())
        failed = dict(sorted({**broken, **failed}.items()))
        unregistered = lake.unregistered() if name is None else []
        failures = [*failed.values(), *(error for status in statuses for error in broken_files(status))]
        failures += [Corruption(folder.described()) for folder in unregistered]
        journal = _JournalRecords()
        try:
            if lake.has_journal():
                journal = _JournalRecords(lake.totals(), lake.unfinished_jobs())
        except SiltstoneError as error:  # the datasets are still shown
            failures.append(error)
    if call.as_json:
        plain = [status.to_dict() | journal.of(status.dataset) | _SOUND for status in statuses]
        if name is not None:
            for entry in plain:
                render.write_json(entry)
        else:
            plain += [_broken(dataset, why) for dataset, why in failed.items()]
            for folder in unregistered:
                damage = Corruption(folder.described())
                plain.append(_broken(folder.dataset, damage) | {"unregistered": folder.to_dict()})
            render.write_json(plain)
    elif name is None:
        _show_statuses(statuses, journal)
    elif statuses:
        _show_status(statuses[0], journal)
    raise_failures(call, failures)


def _broken(dataset: str, error: SiltstoneError) -> dict[str, Any]:
    return {"dataset": dataset, "broken": str(error), "broken_kind": error.kind, "broken_reason": error.reason}


def broken_files(status: "Status") -> list[SiltstoneError]:
    """Return one error for damaged files, and one for files that are only out of reach.

    An error has the reason of its files if they all have the same one.
    """
    advice = {
        Corruption.kind: "Restore the damaged files from a copy.",
        Unavailable.kind: "Remove the cause and try again; the files may be sound.",
    }
    errors: list[SiltstoneError] = []
    for kind, next_step in advice.items():
        paths = [path for path in status.unreadable if status.unreadable_kinds[path] == kind]
        files = [f"{path} ({status.unreadable[path]})" for path in paths]
        reasons = {status.unreadable_reasons[path] for path in paths}
        reason = reasons.pop() if len(reasons) == 1 else None
        more = f" and {len(files) - SHOWN} more" if len(files) > SHOWN else ""
        text = f"{'; '.join(files[:SHOWN])}{more} cannot be read. Their rows cannot be read either. {next_step}"
        errors += [named_error(kind, f"Dataset {status.dataset}: {text}", reason=reason)] if files else []
    return errors


@dataclass(frozen=True, slots=True)
class _JournalRecords:
    """The journal's records on datasets, shown beside their own status."""

    totals: "Totals | None" = None
    unfinished: "RecoveryReport | None" = None

    def of(self, dataset: str) -> dict[str, Any]:
        """Return the records on one dataset as plain data."""
        totals = self.totals
        statistics = totals.datasets.get(dataset) if totals is not None else None
        return {
            "last_job": statistics.last_job if statistics else None,
            "last_job_kind": statistics.last_lane if statistics else None,
            "last_job_status": statistics.last_status if statistics else None,
            "last_job_message": statistics.last_message if statistics else None,
            "last_job_at": statistics.last_ended_at if statistics else None,
            "jobs": statistics.jobs if statistics else 0,
            "failures": statistics.failures if statistics else 0,
            "last_cycle": totals.last_cycle if totals is not None else None,
            "last_cycle_status": totals.last_cycle_status if totals is not None else None,
            "last_cycle_at": totals.last_cycle_at if totals is not None else None,
        }

    def last_job(self, dataset: str) -> str | None:
        """Return the outcome of a dataset's last job as one line."""
        facts = self.of(dataset)
        if not facts["last_job"]:
            return None
        failed = f"; {facts['failures']} of {facts['jobs'] + facts['failures']} failed" if facts["failures"] else ""
        outcome = f"{facts['last_job_kind']} {facts['last_job_status']} at {render.moment(facts['last_job_at'])}"
        return f"{outcome}: {facts['last_job_message']}{failed}"


def _show_statuses(statuses: "list[Status]", journal: _JournalRecords) -> None:
    if not statuses:
        render.write_line("No datasets to show.")
        return
    columns = ["dataset", "base rows", "base files", "base size", "backlog rows", "batches", "since", "unreferenced"]
    columns.append("last job")
    rows = [
        [
            status.dataset,
            render.number(status.rows_in_base),
            status.base_files,
            render.size(status.base_bytes),
            render.number(status.backlog_rows),
            status.backlog_batches,
            render.moment(status.oldest_unfolded_at),
            render.size(status.unreferenced_bytes),
            journal.last_job(status.dataset),
        ]
        for status in statuses
    ]
    render.write_table(columns, rows, numbers=[*columns[1:6], columns[7]])
    totals, unfinished = journal.totals, journal.unfinished
    if totals is not None and totals.last_cycle is not None:
        failed = f" {totals.cycles_failed} of {totals.cycles} cycles had failures." if totals.cycles_failed else ""
        render.write_note(
            f"The last cycle {totals.last_cycle_status} at {render.moment(totals.last_cycle_at)}.{failed}"
        )
    for job in unfinished.running if unfinished is not None else ():
        render.write_note(f"Under way: {job.kind} of {job.dataset} (job {job.job}).")
    for problem in unfinished.problems if unfinished is not None else ():
        render.write_note(f"Cannot be read: {problem.subject}: {problem.error}")


def _show_status(status: "Status", journal: _JournalRecords) -> None:
    base = f"{render.counted(status.rows_in_base, 'row')} in {render.counted(status.base_files, 'file')}"
    backlog, fold, staleness = "none", "has nothing to do", "base is up to date"
    if status.backlog_rows:
        files = f"{render.counted(status.backlog_files, 'file')}, {render.size(status.backlog_bytes)}"
        backlog = f"{render.counted(status.backlog_rows, 'row')} in {render.counted(status.backlog_batches, 'batch')}, {files}"
        rewrites = f"{render.counted(status.fold_files_at_most, 'file')}, {render.size(status.fold_bytes_at_most)}"
        relief = f"takes {render.counted(status.backlog_files, 'change file')} out of every read"
        fold = f"rewrites at most {rewrites}; {relief}"
    if status.oldest_unfolded_at:
        lag = render.seconds(status.stale_seconds)
        staleness = f"base lags {lag} behind, since {render.moment(status.oldest_unfolded_at)}"
    render.write_facts(
        {
            "dataset": status.dataset,
            "base": f"{base}, {render.size(status.base_bytes)}",
            "backlog": backlog,
            "staleness": staleness,
            "a fold": fold,
            "sequence": f"{status.sequence}, folded up to {status.watermark}",
            "unreferenced": f"{render.counted(status.unreferenced_files, 'file')}, {render.size(status.unreferenced_bytes)}",
            "last job": journal.last_job(status.dataset) or "none yet",
        }
    )


COMMANDS: Final[Commands] = {DATASETS: {"status": status}}
