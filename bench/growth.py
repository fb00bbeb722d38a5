"""Ten thousand one-row upserts with folds between: the last ones must be as fast as the first ones.

The folds' own time is not part of the upserts' latencies; it is shown beside them.
"""

from functools import partial
from typing import Final

from bench.data import change_rows, open_dataset, spread_seeds
from bench.measure import Sample, Summary
from bench.plan import Run, size_text
from bench.results import Check, Report, Row, Sense, percentiles_text

UPSERTS: Final = 10_000
FOLD_EVERY: Final = 2_500
WINDOW: Final = 500
QUICK_SHARE: Final = 10
WARM_UPS: Final = 50
MUST: Final = 1.5
SHARES: Final = (0.5, 0.95, 0.99)


def bench_growth(run: Run) -> Report:
    """Measure on the smallest size: what could grow is the log, not the base."""
    rows = run.sizes[0]
    share = QUICK_SHARE if run.quick else 1
    upserts, fold_every, window = UPSERTS // share, FOLD_EVERY // share, WINDOW // share
    path = run.stage.copy(run.stage.lake(rows), "growth")
    lake, dataset = open_dataset(run.stage, path, durable=False)
    seeds = spread_seeds(5_000_000)
    taken: list[Sample] = []
    folds: list[Sample] = []
    with lake:
        for _ in range(WARM_UPS):
            dataset.upsert(change_rows(rows, 1, seed=next(seeds)))
        dataset.compact()
        run.log(f"growth: {upserts:,} upserts into {size_text(rows)}, a fold every {fold_every:,}")
        for number in range(upserts):
            if number and number % fold_every == 0:
                folds.append(run.meter.measure(dataset.compact))
            batch = change_rows(rows, 1, seed=next(seeds))
            taken.append(run.meter.time(partial(dataset.upsert, batch)))
    run.stage.discard(path)
    first, last = Summary.of(taken[:window]), Summary.of(taken[-window:])
    check = Check(ratio=last.seconds / first.seconds, of="first", sense=Sense.AT_MOST, must=MUST)
    times = [sample.seconds for sample in taken]
    return Report(
        name="growth",
        title=f"{upserts:,} one-row upserts into {size_text(rows)} rows, a fold every {fold_every:,}, without fsync",
        rows=(
            Row(what=f"the first {window}", time=first, uses_jvm=False),
            Row(what=f"the last {window}", time=last, checks=(check,), uses_jvm=False),
            Row(what="all", time=Summary.of(taken), uses_jvm=False),
            Row(what="a fold between", time=Summary.of(folds)),
        ),
        notes=(
            percentiles_text(f"first {window}", times[:window], SHARES),
            percentiles_text(f"last {window}", times[-window:], SHARES),
            percentiles_text("all", times, SHARES),
        ),
    )
