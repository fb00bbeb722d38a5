"""Backups of a lake: backup, restore."""

from typing import Annotated, Final

import typer

import siltstone
from siltstone.cli import render
from siltstone.cli.context import Invocation
from siltstone.cli.registration import MAINTENANCE, Commands
from siltstone.errors import InvalidRequest

Folder = Annotated[str, typer.Argument(metavar="PATH", help="The folder of backups.")]


def backup(
    call: Invocation,
    path: Folder,
    *,
    keep: Annotated[
        int | None, typer.Option("--keep", metavar="N", help="Remove all but the N newest backups afterwards.")
    ] = None,
    verify: Annotated[
        str, typer.Option("--verify", metavar="sizes|full", help="Check sizes and logs, or every page and hash, too.")
    ] = "sizes",
    skip_broken: Annotated[
        bool, typer.Option("--skip-broken", help="Leave out datasets that cannot be read, instead of failing.")
    ] = False,
    show: Annotated[bool, typer.Option("--list", help="List the backups in PATH, without a new one.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be copied, and write nothing.")] = False,
) -> None:
    r"""Copy the lake into a folder of backups.

    Readers and writers go on meanwhile. Files of an earlier backup in PATH are not copied again.

    Each dataset is copied at one sequence. An interrupted backup leaves the earlier ones as they were.

    \b
    silt backup /backups/lake
    silt backup /backups/lake --keep 7 --verify full
    silt backup /backups/lake --list
    """
    if show:
        _list(call, path)
        return
    with call.open() as lake, render.working("Copying", as_json=call.as_json) as progress:
        report = lake.backup(path, keep=keep, verify=verify, skip_broken=skip_broken, dry_run=dry_run, show=progress)

    def people() -> None:
        new = f"{render.counted(report.files_copied, 'file')}, {render.size(report.bytes_copied)}"
        files = f"{render.counted(report.files, 'file')}, {render.size(report.bytes)}"
        whole = f"{render.counted(report.datasets, 'dataset')}, {files}"
        if dry_run:
            render.write_line(f"Would copy {new}, for a backup of {whole}.")
        else:
            took = render.seconds(report.seconds)
            render.write_line(f"Backup {report.id}: {whole}, of which {new} were copied, {took}.")
        for name in report.left_out:
            render.write_note(f"{name} cannot be read and was left out.")
        if report.removed:
            render.write_note(f"{render.counted(len(report.removed), 'older backup')} removed.")

    call.answer(report.to_dict(), people)


def _list(call: Invocation, path: str) -> None:
    from siltstone.backup.restore import list_backups

    backups = list_backups(path)
    rows = [
        [
            backup["id"],
            render.moment(backup.get("taken_at")),
            len(backup.get("datasets", ())),
            render.size(backup.get("bytes", 0)),
            backup["broken"],
        ]
        for backup in backups
    ]
    columns = ["backup", "taken at", "datasets", "size", "broken"]
    call.answer(backups, lambda: render.write_table(columns, rows, numbers=["datasets", "size"]))


def restore(
    call: Invocation,
    path: Folder,
    *,
    backup: Annotated[
        str | None,
        typer.Option("--backup", metavar="ID", help="Which backup, by the beginning of its id (default: newest)."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Verify the backup with every hash, and write nothing to the lake.")
    ] = False,
) -> None:
    r"""Restore a lake from a backup into the folder of --lake.

    That folder must be empty or not exist.

    \b
    silt restore /backups/lake --lake /data/lake
    silt restore /backups/lake --lake /data/lake --dry-run
    silt restore /backups/lake --lake /data/lake --backup 3f2a
    """
    if not call.lake_path:
        raise InvalidRequest("No target was named. Pass --lake PATH or set SILT_LAKE.")
    with render.working("Restoring", as_json=call.as_json) as progress:
        report = siltstone.Lake.restore(path, call.lake_path, backup=backup, dry_run=dry_run, show=progress)

    def people() -> None:
        what = f"{render.counted(len(report.datasets), 'dataset')}, {render.counted(report.files, 'file')}"
        verb = "Would restore" if dry_run else "Restored"
        render.write_line(
            f"{verb} {what}, {render.size(report.bytes)}, of {render.moment(report.taken_at)} to {report.target}."
        )
        for name in report.left_out:
            render.write_note(f"{name} was left out of the backup; silt drop removes its name.")

    call.answer(report.to_dict(), people)


COMMANDS: Final[Commands] = {MAINTENANCE: {"backup": backup, "restore": restore}}
