"""Tiers, the roll-up rules for periods of logs, of the lake and of one dataset: tiers."""

from typing import Annotated, Final

import typer

from siltstone.cli import render
from siltstone.cli.context import Invocation
from siltstone.cli.options import OptionalName
from siltstone.cli.registration import MAINTENANCE, Commands
from siltstone.errors import InvalidRequest
from siltstone.model.tiers import Tier, age_text, exact_size_text, tiers_from_text


def tiers(
    call: Invocation,
    name: OptionalName = None,
    *,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="TIER.FIELD=VALUE", help="Change a field for this dataset; may be repeated."),
    ] = None,
    reset: Annotated[bool, typer.Option("--reset", help="Undo earlier changes for this dataset.")] = False,
) -> None:
    r"""Show the roll-up rules of the lake or of a log; change a log's.

    A rule is a tier, such as hourly or daily. The tiers of the lake are changed in its settings.

    \b
    silt tiers
    silt tiers web.eu.clicks --set daily.min_files=6 --set daily.target_bytes=256MB
    silt tiers web.eu.clicks --set weekly.enabled=yes --set 'daily.cron=30 2 * * *'
    silt tiers web.eu.clicks --reset
    """
    if name is None and (changes or reset):
        raise InvalidRequest("Name the dataset whose tiers to change. The lake's tiers are in its silt.toml.")
    with call.open() as lake:
        if name is None:
            shown = tiers_from_text(lake.settings.tiers)
        elif changes or reset:
            shown = lake.dataset(name).set_tiers("; ".join(changes or []), reset=reset)
        else:
            shown = lake.dataset(name).tiers()
    call.answer([tier.to_dict() for tier in shown], lambda: _show(name, shown))


def _show(name: str | None, shown: tuple[Tier, ...]) -> None:
    if not shown:
        render.write_line(f"Dataset {name} is keyed and has no tiers; they roll up the periods of logs.")
        return
    columns = ["tier", "from", "to", "enabled", "age", "files", "target", "files a job", "quiet", "cron"]
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
        for tier in shown
    ]
    render.write_table(columns, rows, numbers=["files", "target", "files a job"])


COMMANDS: Final[Commands] = {MAINTENANCE: {"tiers": tiers}}
