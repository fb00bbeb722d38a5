"""`python -m bench compare BEFORE AFTER`: the times of one commit against those of another, row by row.

Each side is one file that `--json` wrote, or several separated by commas. The median over the files of a side counts. A
ratio is after over before, so above 1 is slower. Rows of peers show how much the machine itself changed between the sides.
"""

import argparse
import json
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

LIMIT: Final = 1.15
"""Ratios up to this one are noise between two runs on the same machine."""
PEERS: Final = (
    "delta-rs",
    "DuckDB",
    "Spark MERGE",
    "Spark Parquet copy",
    "Spark to Delta",
    "Spark's Delta reader",
    "Spark on the files",
    "Spark, its own cache",
    "Delta OPTIMIZE on Spark",
    "plain Spark rewrite",
    "clean base",
    "query by Spark",
    "python, an empty program",
)
"""Parts of row names that another program's time is listed under."""
_RATE: Final = re.compile(r": [\d,.]+ a second$")
"""A measured rate at the end of a row's name: it differs in every run."""


class RowKey(NamedTuple):
    """A row by its benchmark and its name without measured numbers."""

    benchmark: str
    what: str

    def __str__(self) -> str:
        return f"{self.benchmark}: {self.what}"

    @property
    def is_peer(self) -> bool:
        """True if another program was measured, not Siltstone."""
        return any(peer in self.what for peer in PEERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The two times of one row."""

    row: RowKey
    before: float
    after: float

    @property
    def ratio(self) -> float:
        """After over before."""
        return self.after / self.before


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All rows of both sides."""

    rows: tuple[Compared, ...]
    only_before: tuple[RowKey, ...]
    only_after: tuple[RowKey, ...]

    def slower(self, limit: float) -> list[Compared]:
        """Return Siltstone's own rows above the limit, the worst first."""
        rows = [row for row in self.rows if not row.row.is_peer and row.ratio > limit]
        return sorted(rows, key=lambda row: -row.ratio)

    def median_ratio(self, *, peers: bool) -> float | None:
        """Return the median ratio of the peers' rows or of Siltstone's own."""
        ratios = [row.ratio for row in self.rows if row.row.is_peer is peers]
        return statistics.median(ratios) if ratios else None


def main(arguments: Sequence[str]) -> int:
    """Print the comparison; return 1 if a row of Siltstone's own is above the limit."""
    parser = argparse.ArgumentParser(prog="python -m bench compare", description=__doc__)
    parser.add_argument("before", type=_paths, help="files of --json, separated by commas")
    parser.add_argument("after", type=_paths, help="files of --json, separated by commas")
    parser.add_argument("--limit", type=float, default=LIMIT, help=f"list own rows above this ratio ({LIMIT})")
    options = parser.parse_args(arguments)
    comparison = compare(read_times(options.before), read_times(options.after))
    print("\n".join(comparison_lines(comparison, limit=options.limit)))
    return 1 if comparison.slower(options.limit) else 0


def read_times(paths: Iterable[Path]) -> dict[RowKey, float]:
    """Return the median seconds of every row over these files. Rows without a time are left out."""
    seconds: defaultdict[RowKey, list[float]] = defaultdict(list)
    for path in paths:
        for benchmark in json.loads(path.read_text())["benchmarks"]:
            for row in benchmark["rows"]:
                if row["time"]:
                    seconds[row_key(benchmark["name"], row["what"])].append(row["time"]["seconds"])
    return {key: statistics.median(times) for key, times in seconds.items()}


def row_key(benchmark: str, what: str) -> RowKey:
    """Return the key of a row.

    >>> row_key("eventlog", "1M: 64 appenders, Delta: 10,739 a second").what
    '1M: 64 appenders, Delta'
    """
    return RowKey(benchmark, _RATE.sub("", what))


def compare(before: dict[RowKey, float], after: dict[RowKey, float]) -> Comparison:
    """Pair the rows of both sides."""
    return Comparison(
        rows=tuple(Compared(row=key, before=before[key], after=after[key]) for key in before if key in after),
        only_before=tuple(key for key in before if key not in after),
        only_after=tuple(key for key in after if key not in before),
    )


def comparison_lines(comparison: Comparison, *, limit: float) -> list[str]:
    """Return the text for people: all rows (``*`` marks Siltstone's own), medians, rows of one side, slow rows."""
    lines = [_line(row) for row in comparison.rows]
    for name, peers in (("Siltstone's own rows", False), ("peers", True)):
        if (ratio := comparison.median_ratio(peers=peers)) is not None:
            lines.append(f"median ratio of {name}: {ratio:.2f}")
    lines += [f"only before: {key}" for key in comparison.only_before]
    lines += [f"only after: {key}" for key in comparison.only_after]
    slower = comparison.slower(limit)
    lines.append(f"own rows above {limit:g}: {len(slower)}")
    return lines + [_line(row) for row in slower]


def _line(row: Compared) -> str:
    mark = " " if row.row.is_peer else "*"
    return f"{mark} {row.ratio:6.2f}  {row.before * 1000:11.3f} ms {row.after * 1000:11.3f} ms  {row.row}"


def _paths(text: str) -> list[Path]:
    return [Path(part) for part in text.split(",")]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
