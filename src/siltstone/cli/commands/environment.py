"""The machine and the tour: doctor, demo."""

from pathlib import Path
from typing import Annotated

import typer

from siltstone.cli import render
from siltstone.cli.invocation import invocation
from siltstone.cli.registration import add
from siltstone.errors import SiltstoneError


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    add(app, "doctor", doctor)
    add(app, "demo", demo)


def doctor(context: typer.Context) -> None:
    r"""Check what Siltstone needs: Python, packages, Java, the Delta jars, the lake and its disk.

    Starts no JVM and downloads nothing. Exits 1 if a check fails.

    \b
    silt doctor --lake /data/lake
    """
    from siltstone.cli.checks import Verdict, run_checks

    call = invocation(context)
    checks = run_checks(call.lake_path, open_lake=call.open)
    good = all(check.verdict is not Verdict.FAILED for check in checks)

    def people() -> None:
        render.write_table(["check", "", "found"], [[c.name, c.verdict.value, c.found] for c in checks])

    plain = [{"name": c.name, "verdict": c.verdict.value, "found": c.found} for c in checks]
    call.answer({"ok": good, "checks": plain}, people)
    if not good:
        raise typer.Exit(SiltstoneError.exit_code)


def demo(
    context: typer.Context,
    *,
    candidates: Annotated[int, typer.Option("--candidates", metavar="N", help="How many candidates.")] = 100_000,
    calls: Annotated[int, typer.Option("--calls", metavar="N", help="How many calls.")] = 1_000_000,
    keep: Annotated[Path | None, typer.Option("--keep", metavar="PATH", help="Keep the lake here.")] = None,
) -> None:
    r"""Show it all on generated data: load, upsert, tombstone, query, fold, purge, reopen, and prove what is gone.

    Works in a temporary folder; exits 1 if one of its claims does not hold.

    \b
    silt demo
    silt demo --candidates 1000 --calls 5000 --keep /tmp/lake
    """
    from siltstone.cli.tour import run_demo
    from siltstone.config import Settings
    from siltstone.model.roles import check_may_write

    check_may_write(Settings.load().role, doing="run the demo")
    if not run_demo(invocation(context), candidates=candidates, calls=calls, keep=keep):
        raise typer.Exit(SiltstoneError.exit_code)
