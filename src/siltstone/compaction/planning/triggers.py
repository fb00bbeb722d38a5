"""Triggers of all jobs except roll-ups.

Each rule yields at most a few candidates of one table, or the reason why none is due.

A threshold of 0 in the settings turns that trigger off. `force` ignores thresholds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import attrgetter

from siltstone.clock import MS_PER_HOUR, epoch_ms
from siltstone.compaction.planning.model import (
    CLUSTERED,
    OPEN_COST_BYTES,
    FileEntry,
    JobKind,
    JobSpec,
    Shape,
    TableState,
    View,
    by_period,
    files_needed,
    idle,
    total_bytes,
    total_rows,
    unfinished_text,
)
from siltstone.config import Settings
from siltstone.errors import InvalidRequest
from siltstone.model.periods import Granularity, end, granularity_of
from siltstone.model.small_runs import small_change_files, small_event_files
from siltstone.model.tiers import FEWEST_FILES_PER_JOB
from siltstone.model.units import size_text


def _candidate(table: TableState, kind: JobKind, target_bytes: int = 0) -> JobSpec:
    return JobSpec(kind=kind, lane=str(kind), dataset=table.name, target_bytes=target_bytes)


def folds(table: TableState, settings: Settings, view: View) -> Iterator[JobSpec]:
    """Yield the fold of a dataset that has a backlog."""
    backlog = table.backlog
    if table.shape is Shape.EVENTS or not backlog.batches:
        return
    trigger, reason = _fold_due(table, settings, view)
    job = view.under_way.get(JobKind.FOLD)
    busy = f"files of unfinished job {job}" if job else unfinished_text(view.busy, table.change_files)
    cost = backlog.size_bytes  # the bytes that the fold may rewrite
    touched = 0
    if table.shape is not Shape.LOG and table.files:  # in a keyed base each change touches at most one file
        touched = min(len(table.files), backlog.rows)
        cost += total_bytes(table.files) * touched // len(table.files)
    yield replace(
        _candidate(table, JobKind.FOLD, settings.target_file_bytes),
        files=tuple(sorted(table.change_files, key=attrgetter("order", "path"))),
        rows=backlog.rows,
        files_after=max(touched, files_needed(cost, settings.target_file_bytes)),
        cost_bytes=cost,
        saved_bytes=backlog.batches * OPEN_COST_BYTES + backlog.size_bytes,
        waiting_since_ms=backlog.oldest_ms or 0,
        trigger=trigger,
        reason=busy or reason,
    )


def _fold_due(table: TableState, settings: Settings, view: View) -> tuple[str, str]:
    """Return the reason why the fold is due, or why it is not."""
    backlog, base_rows = table.backlog, total_rows(table.files)
    minutes = 0.0 if backlog.oldest_ms is None else max(0.0, (view.now_ms - backlog.oldest_ms) / 60_000)
    share = backlog.rows / base_rows if base_rows else 0.0
    triggers = (
        (backlog.batches, settings.fold_batches, f"{backlog.batches:,} of {settings.fold_batches:,} batches"),
        (
            share,
            settings.fold_share,
            f"changes are {share:.2%} of the base's rows (threshold {settings.fold_share:.2%})",
        ),
        (minutes, settings.fold_minutes, f"{minutes:,.1f} of {settings.fold_minutes:,.1f} minutes"),
    )
    met = [text for value, threshold, text in triggers if threshold and value >= threshold]
    if met:
        return met[0], ""
    if view.force:
        return "forced", ""
    return "", ", ".join(
        text for _, threshold, text in triggers if threshold
    ) or "disabled: every threshold of a fold is 0"


def squashes(table: TableState, settings: Settings, view: View, *, fold_due: bool) -> Iterator[JobSpec]:
    """Yield the squash of a dataset's small change files."""
    if table.shape is Shape.EVENTS or len(table.change_files) < FEWEST_FILES_PER_JOB:
        return
    many = FEWEST_FILES_PER_JOB if view.force else max(FEWEST_FILES_PER_JOB, settings.squash_files)
    run = small_change_files(
        table.change_files, attrgetter("order"), many=many, max_bytes=settings.squash_bytes, busy=view.busy
    )
    spec = _run_candidate(table, JobKind.SQUASH, run.files, target_bytes=settings.squash_bytes)
    under_way = view.under_way.get(JobKind.SQUASH) or view.under_way.get(JobKind.FOLD)
    if not settings.squash_files:
        spec = replace(spec, reason="disabled: squash_files is 0")
    elif under_way:
        spec = replace(spec, reason=f"files of unfinished job {under_way}")
    elif not run.enough:
        spec = replace(spec, trigger="", reason=_too_few(table.change_files, run.files, many, view))
    elif fold_due:
        spec = replace(spec, reason="the fold takes these files")
    yield spec


def event_logs(table: TableState, settings: Settings, view: View) -> Iterator[JobSpec]:
    """Yield the compaction of an event log's small files, by the log's own rule. Events keep their index."""
    if table.shape is not Shape.EVENTS or len(table.files) < FEWEST_FILES_PER_JOB:
        return
    many = FEWEST_FILES_PER_JOB if view.force else max(FEWEST_FILES_PER_JOB, settings.event_log_files)
    run = small_event_files(idle(table.files, view.busy), attrgetter("period"), many=many)
    spec = _run_candidate(table, JobKind.EVENTS, run.files, target_bytes=settings.target_file_bytes)
    spec = replace(spec, files_after=len({file.period for file in run.files}))
    if not settings.event_log_files:
        spec = replace(spec, reason="disabled: event_log_files is 0")
    elif not run.enough:
        spec = replace(spec, trigger="", reason=_too_few(table.files, run.files, many, view))
    yield spec


def _too_few(files: Sequence[FileEntry], run: Sequence[FileEntry], many: int, view: View) -> str:
    busy = unfinished_text(view.busy, files)
    text = f"{len(run):,} of {many:,} small files"
    return f"{text}; {busy} are not counted" if busy else text


def _run_candidate(table: TableState, kind: JobKind, run: Sequence[FileEntry], *, target_bytes: int) -> JobSpec:
    return replace(
        _candidate(table, kind, target_bytes).over(run),
        waiting_since_ms=min((file.modified_ms for file in run), default=0),
        trigger=f"{len(run):,} small files",
    )


def clusterings(
    table: TableState, settings: Settings, view: View, *, taken: frozenset[str], fold_due: bool
) -> Iterator[JobSpec]:
    """Yield the clusterings of a dataset that has cluster columns, one for each period and partition.

    Files in `taken` are rolled up in this cycle. A file that a tier will still move to a coarser period is not
    clustered.
    """
    if table.shape is Shape.EVENTS or not table.cluster_by:
        return
    for (period, partition), files in by_period(table.files):
        if all(file.tier == CLUSTERED for file in files):
            continue
        free = [file for file in idle(files, view.busy) if file.path not in taken]
        chosen = _fitting(sorted(free, key=attrgetter("path")), settings.cycle_bytes)
        loose = [file for file in chosen if file.tier != CLUSTERED]
        spec = _candidate(table, JobKind.CLUSTER, settings.target_file_bytes).over(chosen)
        yield replace(
            spec,
            period=period,
            partition=partition,
            saved_bytes=spec.saved_bytes + total_bytes(loose),
            waiting_since_ms=min((file.modified_ms for file in loose), default=0),
            trigger=f"{size_text(total_bytes(loose))} not clustered",
            reason=_not_ready(table, period, view, fold_due=fold_due) or _too_little(free, files, settings, view),
        )


def _not_ready(table: TableState, period: str, view: View, *, fold_due: bool) -> str:
    if job := view.under_way.get(JobKind.CLUSTER):
        return f"files of unfinished job {job}"
    if table.shape is Shape.KEYED:
        return "the fold runs first" if fold_due or JobKind.FOLD in view.under_way else ""
    try:
        granularity, closed = granularity_of(period), end(period)
    except InvalidRequest as error:
        return str(error)
    last = max((tier.target for tier in table.tiers if tier.enabled), key=attrgetter("rank"), default=Granularity.HOUR)
    if granularity.rank < last.rank:
        return f"will be rolled up into a {last} first"
    return f"closes at {closed:%Y-%m-%d %H:%M} UTC" if closed > view.now else ""


def _too_little(free: Sequence[FileEntry], files: Sequence[FileEntry], settings: Settings, view: View) -> str:
    if not settings.cluster_bytes:
        return "disabled: cluster_bytes is 0"
    loose = total_bytes([file for file in free if file.tier != CLUSTERED])
    if len(free) < FEWEST_FILES_PER_JOB:
        return unfinished_text(view.busy, files) or f"{len(free)} of {FEWEST_FILES_PER_JOB} files"
    if view.force:
        return ""
    if loose < settings.cluster_bytes:
        return f"{size_text(loose)} of {size_text(settings.cluster_bytes)} not clustered"
    share = loose / max(1, total_bytes(free))
    return "" if share >= settings.cluster_share else f"{share:.0%} of {settings.cluster_share:.0%} not clustered"


def _fitting(files: list[FileEntry], budget_bytes: int) -> list[FileEntry]:
    """Return all files if they fit into one cycle. Otherwise return the unclustered files that fit, at least two."""
    if total_bytes(files) <= budget_bytes:
        return files
    loose = sorted((file for file in files if file.tier != CLUSTERED), key=attrgetter("modified_ms", "path"))
    chosen: list[FileEntry] = []
    size = 0
    for file in loose:
        if size + file.size_bytes > budget_bytes and len(chosen) >= FEWEST_FILES_PER_JOB:
            break
        chosen.append(file)
        size += file.size_bytes
    return chosen


def vacuums(table: TableState, settings: Settings, view: View) -> Iterator[JobSpec]:
    """Yield the vacuum of a table: after its interval, and after a clustering.

    If the time of the last vacuum is unknown, the oldest removed file decides. A vacuum leaves no file that is older
    than the retention. So a file that has waited one interval longer proves that the last vacuum is an interval ago.
    After a clustering the vacuum is due as soon as files of the clustering can be deleted. A last vacuum in the future
    is ignored, because the clock was set back since.
    """
    if table.removed_files == 0:
        return
    is_known = table.vacuumed_at is not None and epoch_ms(table.vacuumed_at) <= view.now_ms
    vacuumed_at = table.vacuumed_at if is_known else None
    since = vacuumed_at or table.removed_since
    wait_hours = settings.vacuum_interval_hours + (0.0 if vacuumed_at else settings.vacuum_retention_hours)
    due_ms = epoch_ms(since) + round(wait_hours * MS_PER_HOUR) if since else 0
    if vacuumed_at:
        trigger = f"{settings.vacuum_interval_hours:g} hours since the last one"
    else:
        trigger = f"the oldest file has waited for {wait_hours:g} hours" if since else "the first one"
    if table.clustered_at and (not since or table.clustered_at >= since):
        kept_hours = settings.vacuum_retention_hours if since and not vacuumed_at else 0.0
        after_ms = epoch_ms(table.clustered_at) + round(kept_hours * MS_PER_HOUR)
        due_ms, trigger = min(due_ms, after_ms), "after a clustering"
    spec = replace(_candidate(table, JobKind.VACUUM), waiting_since_ms=due_ms, trigger=trigger)
    if job := view.under_way.get(JobKind.VACUUM):
        yield replace(spec, reason=f"files of unfinished job {job}")
    elif not settings.vacuum_interval_hours:
        yield replace(spec, reason="disabled: vacuum_interval_hours is 0")
    elif due_ms <= view.now_ms:
        yield spec
    elif view.force:
        yield replace(spec, trigger="forced")
    else:
        yield replace(spec, trigger="", reason=f"due in {(due_ms - view.now_ms) / MS_PER_HOUR:,.1f} hours")
