"""Output of `silt demo` as text or JSON: steps as they end, then the claims."""

import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from siltstone.cli import render
from siltstone.delta.layout import expanded
from siltstone.demo import Report, Step, Tour, run

if TYPE_CHECKING:
    from siltstone.cli.context import Invocation


def run_demo(call: "Invocation", *, candidates: int, calls: int, keep: Path | None) -> bool:
    """Run the tour, show it, and return whether every claim holds."""
    with ExitStack() as stack:
        if keep is not None:
            root = expanded(keep, what="The folder")
        else:
            root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="silt-demo-"))) / "tour"
        tour = Tour(root=root, candidates=candidates, calls=calls)
        if not call.as_json:
            size = f"{render.number(candidates)} candidates, {render.number(calls)} calls"
            render.write_line(f"Siltstone demo: {size}, in {root}")
            render.flush()
        report = run(tour, on_step=(lambda _: None) if call.as_json else _show_step)
        data = {
            "ok": report.good,
            "lake": str(tour.lake),
            "keys": tour.keys,
            "steps": [asdict(step) for step in report.steps],
            "claims": [{**asdict(claim), "holds": claim.holds} for claim in report.claims],
        }
        call.answer(data, lambda: _show_claims(tour, report))
        return report.good


def _show_step(step: Step) -> None:
    rows = "" if step.rows is None else render.counted(step.rows, "row")
    size = "" if step.bytes is None else render.size(step.bytes)
    took = render.seconds(step.seconds)
    render.write_line(
        f"{step.engine:<9}{took:>8} {rows:>15} {size:>8}  {step.title}{f' ({step.note})' if step.note else ''}"
    )
    render.flush()


def _show_claims(tour: Tour, report: Report) -> None:
    rows = [[c.text, _shown(c.expected), _shown(c.actual), "ok" if c.holds else "FAILED"] for c in report.claims]
    render.write_table(["claim", "expected", "actual", ""], rows, numbers=["expected", "actual"])
    remaining = render.number(tour.candidates - len(tour.keys))
    if report.good:
        render.write_line(
            f"Rows: {render.number(tour.candidates)} → {remaining}. Nothing is left of {', '.join(tour.keys)}."
        )
    else:
        render.write_line("The demo failed: see the claims marked FAILED.")


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return render.number(value) if type(value) is int else str(value)
