"""Checks of the installation and the lake, and the tour: doctor, demo."""

from pathlib import Path
from typing import Annotated

import typer

from siltstone.cli import render
from siltstone.cli.context import Invocation, invocation
from siltstone.cli.registration import SYSTEM, add
from siltstone.config import Settings
from siltstone.errors import InvalidRequest, SiltstoneError
from siltstone.model.roles import check_may_write


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    add(app, "doctor", doctor, SYSTEM)
    add(app, "demo", demo, SYSTEM)


def doctor(
    context: typer.Context,
    *,
    repair: Annotated[
        bool, typer.Option("--repair", help="List the damages of the lake that can be repaired; --yes repairs them.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --repair: repair what is listed.")] = False,
    drop_missing: Annotated[
        bool,
        typer.Option("--drop-missing", help="With --repair: also drop the names of datasets whose folder is missing."),
    ] = False,
) -> None:
    r"""Check Python, packages, Java, the Delta jars and the lake.

    Also the lake's disk.

    Starts no JVM and downloads nothing. Exits 1 if a check fails, or if a damage is left.

    \b
    silt doctor --lake /data/lake
    silt doctor --repair
    silt doctor --repair --yes
    """
    call = invocation(context)
    if repair:
        _repair(call, yes=yes, drop_missing=drop_missing)
        return
    if yes or drop_missing:
        raise InvalidRequest("--yes and --drop-missing go with --repair.")
    from siltstone.cli.doctor import Verdict, run_checks

    checks = run_checks(call.lake_path, open_lake=call.open)
    good = all(check.verdict is not Verdict.FAILED for check in checks)

    def people() -> None:
        render.write_table(["check", "", "found"], [[c.name, c.verdict.value, c.found] for c in checks])

    plain = [{"name": c.name, "verdict": c.verdict.value, "found": c.found} for c in checks]
    call.answer({"ok": good, "checks": plain}, people)
    if not good:
        raise typer.Exit(SiltstoneError.exit_code)


def _repair(call: Invocation, *, yes: bool, drop_missing: bool) -> None:
    """List the damages and, with `yes`, repair them one by one. A failed repair does not stop the next ones."""
    from siltstone.maintenance.repair import DamageKind

    with call.open() as lake:
        if yes:
            check_may_write(lake.settings.role, doing="repair the lake")
        damages = lake.damages()
        if not damages:
            lake.require_exists()
        chosen = [one for one in damages if one.repairable and (drop_missing or one.kind is not DamageKind.MISSING)]
        outcome: dict[int, str] = {}
        repaired: set[int] = set()
        for one in chosen if yes else []:
            try:
                lake.repair(one, drop_missing=drop_missing)
                outcome[id(one)] = "repaired"
                repaired.add(id(one))
            except SiltstoneError as error:
                outcome[id(one)] = f"failed: {error}"
    for one in damages:
        left = "only with --drop-missing" if one.repairable else "needs a person"
        outcome.setdefault(id(one), "would be repaired" if one in chosen else left)
    good = all(id(one) in repaired for one in damages)

    def people() -> None:
        if not damages:
            render.write_line("No damage was found.")
            return
        rows = [[one.subject, one.kind.value, one.found, one.remedy, outcome[id(one)]] for one in damages]
        render.write_table(["what", "damage", "found", "repair", "state"], rows)
        if chosen and not yes:
            render.write_note("Nothing was changed. Pass --yes to repair what would be repaired.")

    plain = [one.to_dict() | {"state": outcome[id(one)]} for one in damages]
    call.answer({"ok": good, "dry_run": not yes, "damages": plain}, people)
    if not good:
        raise typer.Exit(SiltstoneError.exit_code)


def demo(
    context: typer.Context,
    *,
    candidates: Annotated[int, typer.Option("--candidates", metavar="N", help="How many candidates.")] = 100_000,
    calls: Annotated[int, typer.Option("--calls", metavar="N", help="How many calls.")] = 1_000_000,
    keep: Annotated[Path | None, typer.Option("--keep", metavar="PATH", help="Keep the lake here.")] = None,
) -> None:
    r"""Run a tour on generated data, from load to proven erasure.

    Load, upsert, tombstone, query, fold, purge, reopen, and prove what is gone.

    Works in a temporary folder; exits 1 if one of its claims does not hold.

    \b
    silt demo
    silt demo --candidates 1000 --calls 5000 --keep /tmp/lake
    """
    from siltstone.cli.demo_output import run_demo

    check_may_write(Settings.load().role, doing="run the demo")
    if not run_demo(invocation(context), candidates=candidates, calls=calls, keep=keep):
        raise typer.Exit(SiltstoneError.exit_code)
