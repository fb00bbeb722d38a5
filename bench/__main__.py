"""`python -m bench [BENCHMARK ...]`: measure Siltstone beside its peers, print the ratios, store them in ``bench/RESULTS.md``.

`python -m bench compare BEFORE.json AFTER.json` compares two commits by the files that `--json` wrote.
"""

import argparse
import contextlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from rich.console import Console

from bench import compare
from bench.checksums import bench_checksums
from bench.compaction import bench_compaction, bench_compaction_large
from bench.data import Stage, settings
from bench.eventlog import bench_eventlog
from bench.fold import bench_fold
from bench.growth import bench_growth
from bench.hot_cache import bench_hot_cache
from bench.ingest import bench_ingest
from bench.log_load import bench_log_load
from bench.lookup import bench_lookup
from bench.measure import Meter
from bench.merged import bench_merged
from bench.plan import ROUNDS, Run, parse_sizes
from bench.planner import bench_planner
from bench.query import bench_query
from bench.results import RESULTS, Report, machine, show, update_results, versions, write_json
from bench.shell import bench_shell
from bench.squash import bench_squash
from bench.upsert import bench_upsert
from siltstone.spark.session import session

BENCHMARKS: Final[dict[str, Callable[[Run], Report]]] = {
    "upsert": bench_upsert,
    "merged": bench_merged,
    "fold": bench_fold,
    "lookup": bench_lookup,
    "squash": bench_squash,
    "checksums": bench_checksums,
    "shell": bench_shell,
    "growth": bench_growth,
    "ingest": bench_ingest,
    "log_load": bench_log_load,
    "eventlog": bench_eventlog,
    "query": bench_query,
    "planner": bench_planner,
    "hot_cache": bench_hot_cache,
    "compaction": bench_compaction,
    "compaction_large": bench_compaction_large,
}
ALL: Final = "all"
COMPARE: Final = "compare"
QUICK_ROWS: Final = "20k,100k"
QUICK_ROUNDS: Final = 3
MIN_WIDTH: Final = 200
"""A table of nine columns needs room where there is no terminal to measure."""


def _command(arguments: list[str]) -> str:
    """Return the call for RESULTS.md, without the paths of this machine."""
    portable: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument in ("--folder", "--json"):
            next(rest, None)
        elif argument != "--keep" and not argument.startswith(("--folder=", "--json=")):
            portable.append(argument)
    return " ".join(["python -m bench", *portable])


def main() -> int:
    """Run the named benchmarks; return 1 if a must was missed."""
    if sys.argv[1:2] == [COMPARE]:
        return compare.main(sys.argv[2:])
    options = argument_parser().parse_args()
    command = _command(sys.argv[1:])
    console = Console() if sys.stdout.isatty() else Console(width=MIN_WIDTH)
    console.print(f"{machine()}; {versions()}", highlight=False)
    with _work_folder(options.folder, keep=options.keep) as folder:
        run = Run(
            stage=Stage(spark=session(settings(durable=False)), folder=folder),
            meter=Meter(),
            console=console,
            sizes=parse_sizes(options.rows or (QUICK_ROWS if options.quick else "100k,1m,10m")),
            rounds=options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS),
            quick=options.quick,
        )
        reports: list[Report] = []
        for name, benchmark in BENCHMARKS.items():
            if not options.benchmarks or name in options.benchmarks or ALL in options.benchmarks:
                reports.append(benchmark(run))
                show(console, reports[-1])
                if not options.quick:
                    update_results(RESULTS, reports[-1:], command=command)
        run.stage.spark.stop()
    if options.json:
        write_json(options.json, reports, command=command)
    missed = [line for report in reports for line in report.missed()]
    console.print(f"{len(missed)} musts missed{': ' if missed else '.'}{'; '.join(missed)}", highlight=False)
    return 1 if missed else 0


def argument_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "benchmarks", nargs="*", type=_benchmark, metavar="BENCHMARK", help=f"{', '.join(BENCHMARKS)} (all)"
    )
    parser.add_argument("--rows", help="sizes of the base, e.g. 100k,1m,10m (the default)")
    parser.add_argument("--rounds", type=int, help=f"rounds of each measurement ({ROUNDS})")
    parser.add_argument(
        "--quick", action="store_true", help="small sizes and few rounds, to try it out; RESULTS.md is left alone"
    )
    parser.add_argument("--json", type=Path, help="write every number to this file, too")
    parser.add_argument("--folder", type=Path, help="where to work (a new temporary folder)")
    parser.add_argument(
        "--keep", action="store_true", help="keep the work folder; with --folder the next run reuses its data"
    )
    return parser


def _benchmark(name: str) -> str:
    if name not in (*BENCHMARKS, ALL):
        raise argparse.ArgumentTypeError(f"unknown benchmark {name!r}, expected {', '.join(BENCHMARKS)} or {ALL}")
    return name


@contextlib.contextmanager
def _work_folder(requested: Path | None, *, keep: bool) -> Iterator[Path]:
    """Provide the work folder, and remove it afterwards if it is not to be kept."""
    if requested is not None:
        requested.mkdir(parents=True, exist_ok=True)
    folder = requested.absolute() if requested is not None else Path(tempfile.mkdtemp(prefix="siltstone-bench-"))
    try:
        yield folder
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
