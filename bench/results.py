"""Reports of benchmarks: rows with their ratios against a bar, printed as a table and stored in ``RESULTS.md``.

A *must* is a promise of the project, an *aim* what it would like to reach. The file holds one section for each benchmark
between marker comments; a run replaces the sections of the benchmarks it ran and leaves the others.
"""

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from bench.measure import Peak, Summary, percentile
from siltstone.clock import SystemClock

RESULTS: Final = Path(__file__).parent / "RESULTS.md"
HEADING: Final = (
    "# Measured\n\nWritten by `python -m bench`; each section is replaced when its benchmark runs again. Medians of\n"
    "interleaved rounds on the same rows; memory is the worst peak of a round, in brackets what the call added.\n"
)
TIMES: Final = "\N{MULTIPLICATION SIGN}"
PACKAGES: Final = ("siltstone", "deltalake", "pyspark", "pyarrow")


class Sense(StrEnum):
    """Which side of the bar is good."""

    AT_LEAST = "at least"
    AT_MOST = "at most"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One ratio, what it compares, and the bars it is held against."""

    ratio: float
    of: str
    sense: Sense
    must: float | None = None
    aim: float | None = None

    def verdict(self) -> str:
        """Return whether the bars are met, or by which factor they are missed.

        >>> Check(ratio=10.0, of="x", sense=Sense.AT_LEAST, must=15.0).verdict()[:-1]
        'MISSED by 1.50'
        """
        if self.must is not None and (missed := self._missed_by(self.must)):
            return f"MISSED by {missed:.2f}{TIMES}"
        if self.aim is not None:
            missed = self._missed_by(self.aim)
            text = f"aim missed by {missed:.2f}{TIMES}" if missed else "aim met"
            return text if self.must is None else f"ok, {text}"
        return "ok" if self.must is not None else ""

    def bar(self) -> str:
        """Return the bars as text."""
        sign = "≥" if self.sense is Sense.AT_LEAST else "≤"
        named = (("", self.must), ("aim ", self.aim))
        return ", ".join(f"{name}{sign} {value:g}{TIMES}" for name, value in named if value is not None)

    def _missed_by(self, bar: float) -> float:
        """Return by which factor the bar is missed, 0 if it is met."""
        factor = bar / self.ratio if self.sense is Sense.AT_LEAST else self.ratio / bar
        return factor if factor > 1 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a benchmark's table."""

    what: str
    time: Summary | None = None
    checks: tuple[Check, ...] = ()
    growth: float | None = None
    uses_jvm: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One benchmark's outcome."""

    name: str
    title: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    def missed(self) -> list[str]:
        """Return the lines whose must was missed."""
        return [row.what for row in self.rows if any("MISSED" in check.verdict() for check in row.checks)]


_COLUMNS: Final = ("what", "median", "range", "ratio", "must / aim", "verdict", "growth", "python MB", "Spark MB")


def ratio_text(ratio: float) -> str:
    """Write a ratio with three digits.

    >>> [ratio_text(ratio).rstrip(TIMES) for ratio in (0.8413, 34.52, 1764.2)]
    ['0.841', '34.5', '1,760']
    """
    return f"{float(f'{ratio:.3g}'):,.15g}{TIMES}"


def growth(now: float, before: float | None) -> float | None:
    """Return how much longer it takes than at the size before, if there was one."""
    return now / before if before else None


def show(console: Console, report: Report) -> None:
    """Print a report for people."""
    table = Table(*_COLUMNS, title=report.title, title_justify="left")
    for row in report.rows:
        cells = _cells(row)
        style = "red" if "MISSED" in cells[5] else None
        table.add_row(*cells, style=style)
    console.print(table)
    for note in report.notes:
        console.print(f"  {note}", highlight=False)


def write_json(path: Path, reports: Sequence[Report], *, command: str) -> None:
    """Write every number of a run."""
    data = {
        "at": SystemClock().now().isoformat(timespec="seconds"),
        "command": command,
        "machine": machine(),
        "versions": versions(),
        "benchmarks": [_plain(report) for report in reports],
    }
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")


def update_results(path: Path, reports: Sequence[Report], *, command: str) -> None:
    """Replace the sections of these benchmarks in the results file, and leave the others."""
    text = path.read_text() if path.exists() else HEADING
    for report in reports:
        text = replace_section(text, report.name, _section(report, command))
    path.write_text(text)


def replace_section(text: str, name: str, section: str) -> str:
    r"""Put a section between its markers, at the end if it is new.

    >>> replace_section("a\n<!-- bench:x -->\nold\n<!-- /bench:x -->\nb\n", "x", "new")
    'a\n<!-- bench:x -->\nnew\n<!-- /bench:x -->\nb\n'
    """
    opening, closing = f"<!-- bench:{name} -->\n", f"<!-- /bench:{name} -->\n"
    fresh = f"{opening}{section}\n{closing}"
    before, found, rest = text.partition(opening)
    if not found:
        return f"{text}\n{fresh}"
    return f"{before}{fresh}{rest.partition(closing)[2]}"


def machine() -> str:
    """Describe this machine."""
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return f"{os.cpu_count()} cores, {pages * size / 2**30:.0f} GB memory, {platform.system()} {platform.machine()}"


def versions() -> str:
    """Name the versions that were measured."""
    return ", ".join([f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in PACKAGES)])


def _section(report: Report, command: str) -> str:
    at = SystemClock().now().strftime("%Y-%m-%d %H:%M UTC")
    lines = [f"## {report.title}", "", f"{at} · `{command}` · {machine()} · {versions()}", ""]
    lines += ["| " + " | ".join(_COLUMNS) + " |", "|" + "---|" * len(_COLUMNS)]
    lines += ["| " + " | ".join(_cells(row)) + " |" for row in report.rows]
    if report.notes:
        lines += ["", *(f"- {note}" for note in report.notes)]
    return "\n".join(lines)


def _cells(row: Row) -> tuple[str, ...]:
    time = row.time
    several = len(row.checks) > 1
    return (
        row.what,
        seconds_text(time.seconds) if time else "",
        f"{seconds_text(time.fastest)} to {seconds_text(time.slowest)} of {time.samples}" if time else "",
        "; ".join(f"{ratio_text(check.ratio)} {check.of}" for check in row.checks),
        "; ".join(filter(None, (check.bar() for check in row.checks))),
        "; ".join(filter(None, (_named(check, several=several) for check in row.checks))),
        f"{row.growth:.2f}{TIMES}" if row.growth else "",
        _memory(time.python) if time else "",
        _memory(time.jvm) if time and row.uses_jvm else "",
    )


def _named(check: Check, *, several: bool) -> str:
    verdict = check.verdict()
    return f"{verdict} ({check.of})" if several and "MISSED" in verdict else verdict


def _memory(peak: Peak | None) -> str:
    return f"{peak.megabytes:,.0f} (+{peak.added:,.0f})" if peak else "unknown"


def seconds_text(seconds: float) -> str:
    """Return a time as people read it.

    >>> seconds_text(0.00412), seconds_text(0.215), seconds_text(12.3)
    ('4.12 ms', '215 ms', '12.30 s')
    """
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1000:.2f} ms" if seconds < 0.1 else f"{seconds * 1000:.0f} ms"  # noqa: PLR2004


def percentiles_text(what: str, times: Sequence[float], shares: Sequence[float]) -> str:
    """Return a line with percentiles of times.

    >>> percentiles_text("all", [1.0, 2.0], [0.5])
    'all: p50 1.00 s'
    """
    found = ", ".join(f"p{share * 100:g} {seconds_text(percentile(times, share))}" for share in shares)
    return f"{what}: {found}"


def _plain(report: Report) -> dict[str, Any]:
    rows = [asdict(row) | {"verdicts": [check.verdict() for check in row.checks]} for row in report.rows]
    return {"name": report.name, "title": report.title, "rows": rows, "notes": list(report.notes)}
