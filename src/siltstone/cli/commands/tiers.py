"""Tiers, the roll-up rules for periods of logs, of the lake and of one dataset: tiers."""

from typing import TYPE_CHECKING, Annotated

import typer

from siltstone.cli import render
from siltstone.cli.context import complete_name, invocation
from siltstone.cli.registration import MAINTENANCE, add
from siltstone.errors import InvalidRequest

if TYPE_CHECKING:
    from siltstone.model.tiers import Tier


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    add(app, "tiers", tiers, MAINTENANCE)


def tiers(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="catalog.schema.table", autocompletion=complete_name)
    ] = None,
    *,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="TIER.FIELD=VALUE", help="Change a field for this dataset; may be repeated."),
    ] = None,
    reset: Annotated[bool, typer.Option("--reset", help="Forget what was changed for this dataset before.")] = False,
) -> None:
    r"""Show the tiers of the lake or of a log; change a log's.

    Those of the lake are changed in its settings.

    \b
    silt tiers
    silt tiers web.eu.clicks --set daily.min_files=6 --set daily.target_bytes=256MB
    silt tiers web.eu.clicks --set weekly.enabled=yes --set 'daily.cron=30 2 * * *'
    silt tiers web.eu.clicks --reset
    """
    call = invocation(context)
    if name is None and (changes or reset):
        raise InvalidRequest(
            "Name the dataset whose tiers to change; those of the lake are in its settings (silt.toml)."
        )
    with call.open() as lake:
        if name is None:
            from siltstone.model.tiers import tiers_from_text

            found = tiers_from_text(lake.settings.tiers)
        elif changes or reset:
            found = lake.dataset(name).set_tiers("; ".join(changes or []), reset=reset)
        else:
            found = lake.dataset(name).tiers()
    call.answer([tier.to_dict() for tier in found], lambda: _show(name, found))


def _show(name: str | None, found: "tuple[Tier, ...]") -> None:
    from siltstone.model.tiers import age_text, exact_size_text

    if not found:
        render.write_line(f"Dataset {name} is keyed and has no tiers; they roll up the periods of logs.")
        return
    columns = ["tier", "from", "to", "enabled", "age", "files", "target", "files a job", "quiet", "looked at"]
    rows = [
        [
            tier.name,
            tier.source,
            tier.target,
            "yes" if tier.enabled else "no",
            age_text(tier.min_age_seconds),
            tier.min_files,
            exact_size_text(tier.target_bytes),
            tier.max_files,
            age_text(tier.quiet_seconds),
            tier.cron,
        ]
        for tier in found
    ]
    render.write_table(columns, rows, numbers=["files", "target", "files a job"])
