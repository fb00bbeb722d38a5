"""Checks of the installation and the lake, and the tour: doctor, demo."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from siltstone.cli import render
from siltstone.cli.context import Invocation
from siltstone.cli.registration import SYSTEM, Commands
from siltstone.config import Settings
from siltstone.errors import InvalidRequest, SiltstoneError
from siltstone.model.roles import check_may_write

if TYPE_CHECKING:
    from siltstone.lake import Lake
    from siltstone.maintenance.repair import Damage

REPAIRED: Final = "repaired"


def doctor(
    call: Invocation,
    *,
    repair: Annotated[
        bool, typer.Option("--repair", help="List the damages of the lake that can be repaired; --yes repairs them.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --repair: repair the listed damages.")] = False,
    drop_missing: Annotated[
        bool,
        typer.Option("--drop-missing", help="With --repair: also drop the names of datasets whose folder is missing."),
    ] = False,
) -> None:
    r"""Check Python, packages, Java, the Delta jars and the lake.

    It starts no JVM and downloads nothing. The exit code is 1 if a check fails, or if a damage is not repaired.

    \b
    silt doctor --lake /data/lake
    silt doctor --repair
    silt doctor --repair --yes
    """
    if repair:
        _repair(call, yes=yes, drop_missing=drop_missing)
        return
    if yes or drop_missing:
        raise InvalidRequest("--yes and --drop-missing need --repair.")
    from siltstone.cli.doctor import Verdict, run_checks

    checks = run_checks(call.lake_path, open_lake=call.open)
    good = all(check.verdict is not Verdict.FAILED for check in checks)

    plain = [{"name": c.name, "verdict": c.verdict.value, "finding": c.finding} for c in checks]
    rows = [list(check.values()) for check in plain]
    call.answer({"ok": good, "checks": plain}, lambda: render.write_table(["check", "", "finding"], rows))
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
        chosen = [
            damage
            for damage in damages
            if damage.repairable and (drop_missing or damage.kind is not DamageKind.MISSING)
        ]
        states: list[str] = []
        for damage in damages:
            state = "only with --drop-missing" if damage.repairable else "needs manual repair"
            if damage in chosen:
                state = _repair_one(lake, damage, drop_missing=drop_missing) if yes else "would be repaired"
            states.append(state)
    good = all(state == REPAIRED for state in states)

    def people() -> None:
        if not damages:
            render.write_line("No damage was found.")
            return
        rows = [
            [damage.subject, damage.kind.value, damage.finding, damage.remedy, state]
            for damage, state in zip(damages, states, strict=True)
        ]
        render.write_table(["subject", "damage", "finding", "repair", "state"], rows)
        if chosen and not yes:
            render.write_note("Nothing was changed. Pass --yes for the repairs marked 'would be repaired'.")

    plain = [damage.to_dict() | {"state": state} for damage, state in zip(damages, states, strict=True)]
    call.answer({"ok": good, "dry_run": not yes, "damages": plain}, people)
    if not good:
        raise typer.Exit(SiltstoneError.exit_code)


def _repair_one(lake: "Lake", damage: "Damage", *, drop_missing: bool) -> str:
    try:
        lake.repair(damage, drop_missing=drop_missing)
    except SiltstoneError as error:
        return f"failed: {error}"
    return REPAIRED


def demo(
    call: Invocation,
    *,
    candidates: Annotated[int, typer.Option("--candidates", metavar="N", help="The number of candidates.")] = 100_000,
    calls: Annotated[int, typer.Option("--calls", metavar="N", help="The number of calls.")] = 1_000_000,
    keep: Annotated[Path | None, typer.Option("--keep", metavar="PATH", help="Keep the lake here.")] = None,
) -> None:
    r"""Run a tour on generated data, from load to proven erasure.

    It loads, upserts, tombstones, queries, folds, purges, opens the lake in a new process, and checks the erasure. It
    works in a temporary folder. The exit code is 1 if one of its claims does not hold.

    \b
    silt demo
    silt demo --candidates 1000 --calls 5000 --keep /tmp/lake
    """
    from siltstone.cli.demo_output import run_demo

    check_may_write(Settings.load().role, doing="run the demo")
    if not run_demo(call, candidates=candidates, calls=calls, keep=keep):
        raise typer.Exit(SiltstoneError.exit_code)


COMMANDS: Final[Commands] = {SYSTEM: {"doctor": doctor, "demo": demo}}
