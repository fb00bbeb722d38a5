"""The hot cache of long-running processes: cache stats, pin, evict, warm."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Final

import typer

from siltstone.cli import render
from siltstone.cli.context import Invocation
from siltstone.cli.registration import GENERAL, Commands
from siltstone.errors import SiltstoneError
from siltstone.lake import Lake

Names = Annotated[list[str], typer.Argument(metavar="NAME", help="catalog.schema.table")]


def stats(call: Invocation) -> None:
    r"""Show pinned datasets and what running processes hold.

    For each dataset the output has an estimate of the memory that it needs. A process reports what it holds every few
    seconds while it answers queries.

    \b
    silt cache stats
    silt cache stats --json
    """
    with call.open() as lake:
        lake.require_exists()
        data = {
            "budget_bytes": lake.hot.stats().budget_bytes,
            "datasets": [_estimate(lake, name) for name in lake.names()],
            "processes": lake.cache_directives.process_stats(),
        }
    call.answer(data, lambda: _show_stats(data))


def _estimate(lake: Lake, name: str) -> dict[str, Any]:
    """Return whether one dataset would fit into a cache with this process's budget, and its estimated memory."""
    try:
        snapshot = lake.dataset(name).snapshot()
        rows = snapshot.base.rows + snapshot.unfolded_rows
        fit = _fit(lake, name)
    except SiltstoneError as error:
        rows, fit = 0, {"estimate_bytes": 0, "fits": False, "reason": str(error)}
    return {"dataset": name, "pinned": lake.cache_directives.of(name).pinned, "rows_at_most": rows} | fit


def _show_stats(data: dict[str, Any]) -> None:
    render.write_line(f"Budget here: {render.size(data['budget_bytes'])}")
    rows = [
        [
            entry["dataset"],
            "yes" if entry["pinned"] else "no",
            render.number(entry["rows_at_most"]),
            render.size(entry["estimate_bytes"]) if entry["estimate_bytes"] else "",
            "yes" if entry["fits"] else entry["reason"],
        ]
        for entry in data["datasets"]
    ]
    render.write_table(["dataset", "pinned", "rows at most", "about", "fits"], rows, numbers=["rows at most", "about"])
    columns = ["dataset", "resident", "rows", "bytes", "hits", "misses", "fills", "fill s", "sequence", "last use"]
    for process in data["processes"]:
        render.write_line(f"Process {process['pid']} on {process['host']}, {process['at'][:19]}Z")
        rows = [
            [
                entry["dataset"],
                "pinned" if entry["pinned"] and entry["resident"] else "yes" if entry["resident"] else "no",
                render.number(entry["rows"]),
                render.size(entry["bytes"]),
                entry["hits"],
                entry["misses"],
                entry["fills"],
                entry["fill_seconds"],
                entry["sequence"],
                f"{entry['last_use'][:19]}Z" if entry["last_use"] else "",
            ]
            for entry in process["datasets"]
        ]
        render.write_table(columns, rows, numbers=columns[2:-1])


def pin(call: Invocation, names: Names) -> None:
    r"""Keep datasets in the memory of every long-running process.

    This holds for processes of this lake that run now and for later ones. The pin is stored in the lake until silt
    cache evict removes it.

    \b
    silt cache pin crm.sales.candidates
    silt cache pin crm.sales.candidates crm.sales.calls --json
    """

    def write(lake: Lake, name: str) -> dict[str, Any]:
        return lake.cache_directives.pin(name).to_dict() | _fit(lake, name)

    _write_directives(call, names, write, "Pinned")


def evict(call: Invocation, names: Names) -> None:
    r"""Remove pins and evict datasets from all running processes.

    Running queries finish. No data is lost: a query can load the dataset again.

    \b
    silt cache evict crm.sales.candidates
    """
    _write_directives(call, names, lambda lake, name: lake.cache_directives.evict(name).to_dict(), "To be evicted")


def _fit(lake: Lake, name: str) -> dict[str, Any]:
    decision = lake.hot.decide(name)
    return {"fits": decision.admitted, "estimate_bytes": decision.estimate_bytes, "reason": decision.reason}


def _write_directives(
    call: Invocation, names: list[str], write: Callable[[Lake, str], dict[str, Any]], done: str
) -> None:
    with call.open() as lake:
        for name in names:
            lake.dataset(name)  # all datasets exist before the first directive is written
        directives = [write(lake, name) for name in names]

    def people() -> None:
        for directive in directives:
            warning = "" if directive.get("fits", True) else f" But here: {directive['reason']}"
            render.write_line(f"{done}: {directive['dataset']}.{warning}")

    call.answer(directives, people)


def warm(
    call: Invocation,
    names: Names,
    *,
    measure: Annotated[
        bool, typer.Option("--measure", help="Only measure a fill here; other processes load nothing.")
    ] = False,
) -> None:
    r"""Load datasets into memory now, here and in running processes.

    The answer shows what they take in this process: rows, bytes, bytes per row and seconds. This process releases them
    when it ends.

    \b
    silt cache warm crm.sales.candidates
    silt cache warm crm.sales.calls --measure --json
    """
    with call.open() as lake:
        for name in names:
            lake.dataset(name)
        fills = []
        for name in names:
            with render.working(f"Filling {name}", as_json=call.as_json) as show:
                fills.append(lake.hot.fill(name, progress=show and partial(_show_rows, show)).to_dict())
            if not measure:
                lake.cache_directives.warm(name)
            lake.hot.evict(name)

    columns = ["dataset", "rows", "bytes", "bytes a row", "seconds"]
    rows = [
        [
            fill["dataset"],
            render.number(fill["rows"]),
            render.size(fill["bytes"]),
            fill["bytes_per_row"],
            fill["fill_seconds"],
        ]
        for fill in fills
    ]
    call.answer(fills, lambda: render.write_table(columns, rows, numbers=columns[1:]))


def _show_rows(show: Callable[[str], None], done: int, total: int) -> None:
    show(f"{render.number(done)} of {render.counted(total, 'row')}")


COMMANDS: Final[Commands] = {GENERAL: {"stats": stats, "pin": pin, "evict": evict, "warm": warm}}
