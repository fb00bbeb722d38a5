"""Upserts of 1, 100 and 10,000 rows: Siltstone beside delta-rs' merge and Spark's MERGE, at each size of the base.

Rounds are interleaved: each contender writes once (Siltstone several times, as one of its writes says little), then the
next one does, then all again with other keys. Nothing is restored between rounds: the peers' tables and our backlog grow.
The peers do not fsync, so ours is measured without it, beside the peers, and with it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from bench.data import change_rows, spread_seeds
from bench.measure import Sample, Summary
from bench.peers import (
    DELTA_RS,
    MERGE,
    MERGE_VECTORS,
    SILTSTONE,
    SILTSTONE_FSYNC,
    Contender,
    all_contenders,
)
from bench.plan import LARGE_ROWS, MILLION, Run, size_text, step
from bench.results import Check, Report, Row, Sense, growth

BATCHES: Final = (1, 100, 10_000)
OURS: Final = (SILTSTONE, SILTSTONE_FSYNC)
OUR_REPEATS: Final = 5
WARM_UPS: Final = 2
FIRST_WARM_UPS: Final = 5
"""The JVM compiles while it runs: the first size warms up longer."""
FLAT_SIZES: Final = (100_000, 10_000_000)
FLAT_MUST: Final = 1.3

MUSTS: Final[Mapping[tuple[int, int, str, str], float]] = {
    **{(MILLION, batch, SILTSTONE, DELTA_RS): 15 for batch in (1, 100)},
    **{(MILLION, batch, SILTSTONE, peer): 100 for batch in (1, 100) for peer in (MERGE, MERGE_VECTORS)},
    **{(MILLION, batch, SILTSTONE_FSYNC, DELTA_RS): 8 for batch in (1, 100)},
    **{(MILLION, batch, SILTSTONE_FSYNC, peer): 60 for batch in (1, 100) for peer in (MERGE, MERGE_VECTORS)},
    (MILLION, 10_000, SILTSTONE, DELTA_RS): 8,
    **{(MILLION, 10_000, SILTSTONE, peer): 50 for peer in (MERGE, MERGE_VECTORS)},
    **{(10 * MILLION, batch, SILTSTONE, DELTA_RS): 100 for batch in (1, 100)},
}
"""(rows in the base, rows in the batch, ours, peer) -> how many times faster ours must be."""


@dataclass(frozen=True, slots=True)
class Case:
    """One cell: who, how many rows, into how many."""

    rows: int
    batch: int
    name: str


def bench_upsert(run: Run) -> Report:
    """Measure every size and batch."""
    seeds = spread_seeds(1_000)
    found: dict[Case, Summary] = {}
    jvm: dict[str, bool] = {}
    for rows in run.sizes:
        run.log(f"upsert: preparing {size_text(rows)} rows")
        contenders = all_contenders(run.stage, rows)
        jvm |= {contender.name: contender.uses_jvm for contender in contenders}
        try:
            for batch in [batch for batch in BATCHES if batch <= rows]:
                found |= _batch(run, contenders, rows, batch, seeds)
        finally:
            for contender in contenders:
                contender.close()
    lines = [_row(run, found, case, uses_jvm=jvm[case.name]) for case in found]
    return Report(
        name="upsert",
        title="Upserts into a base of 8 columns, keys scattered, one in ten new",
        rows=(*lines, *_flatness(found)),
        notes=(
            "A peer's ratio is its median over ours, without fsync and with it. Growth is against the size before.",
            "The peers get what they need before the clock starts: an open handle, a temporary view of the same rows.",
        ),
    )


def _batch(run: Run, contenders: list[Contender], rows: int, batch: int, seeds: Iterator[int]) -> dict[Case, Summary]:
    samples: dict[str, list[Sample]] = {contender.name: [] for contender in contenders}

    def once(contender: Contender) -> Sample:
        contender.prepare(change_rows(rows, batch, seed=next(seeds)))
        return run.meter.measure(contender.upsert)

    run.log(f"upsert: {batch:,} into {size_text(rows)}, {run.rounds_at(rows)} to {run.rounds} rounds")
    for contender in contenders:
        for _ in range(_warm_ups(run, rows, batch)):
            once(contender)
    for number in range(run.rounds):
        for contender in contenders:
            if contender.uses_jvm and number >= run.rounds_at(rows):
                continue
            for _ in range(OUR_REPEATS if contender.name in OURS else 1):
                samples[contender.name].append(once(contender))
    return {Case(rows, batch, name): Summary.of(taken) for name, taken in samples.items()}


def _warm_ups(run: Run, rows: int, batch: int) -> int:
    if rows == run.sizes[0] and batch == BATCHES[0]:
        return FIRST_WARM_UPS
    return WARM_UPS if rows < LARGE_ROWS else 1


def _row(run: Run, found: Mapping[Case, Summary], case: Case, *, uses_jvm: bool) -> Row:
    before = step(run.sizes, case.rows)
    smaller = found.get(Case(before, case.batch, case.name)) if before else None
    summary = found[case]
    return Row(
        what=f"{case.batch:,} into {size_text(case.rows)}: {case.name}",
        time=summary,
        checks=() if case.name in OURS else _checks(found, case),
        growth=growth(summary.seconds, smaller.seconds if smaller else None),
        uses_jvm=uses_jvm,
    )


def _checks(found: Mapping[Case, Summary], case: Case) -> tuple[Check, ...]:
    return tuple(
        Check(
            ratio=found[case].seconds / found[Case(case.rows, case.batch, ours)].seconds,
            of=ours.removeprefix(f"{SILTSTONE}, "),
            sense=Sense.AT_LEAST,
            must=MUSTS.get((case.rows, case.batch, ours, case.name)),
        )
        for ours in OURS
    )


def _flatness(found: Mapping[Case, Summary]) -> Iterator[Row]:
    """Ours must not depend on the size of the base."""
    small, large = FLAT_SIZES
    for name in OURS:
        for batch in BATCHES:
            near, far = found.get(Case(small, batch, name)), found.get(Case(large, batch, name))
            if near and far:
                ratio = far.seconds / near.seconds
                bar = FLAT_MUST if name == SILTSTONE else None
                yield Row(
                    what=f"{batch:,}: {name}, {size_text(large)} over {size_text(small)}",
                    checks=(Check(ratio=ratio, of=size_text(small), sense=Sense.AT_MOST, must=bar),),
                )
