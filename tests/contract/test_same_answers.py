"""One behaviour: on every backend the same events give byte-identical answers."""

import json
from dataclasses import asdict
from itertools import islice
from typing import Any

import pytest

from siltstone.eventlog.events import BuildStatus, event_json
from siltstone.eventlog.log import EventLog
from siltstone.eventlog.queries import Filter
from tests.contract.conftest import KINDS, Opener
from tests.support.histories import FIRST_NANOSECOND, ODD_REFS, history

FILTERS = (
    Filter(),
    Filter(partition_refs=("A",)),
    Filter(partition_refs=("A", "a", "none")),
    Filter(partition_globs=("sales/*",)),
    Filter(partition_globs=("*",)),
    Filter(partition_globs=("a%b_c", "a\\*", "?")),
    Filter(partition_globs=("[x]*",)),
    Filter(job_labels=("//job:1", "//job:2")),
    Filter(job_run_ids=("run 1", "run 2")),
    Filter(build_request_ids=("build 0", "build 3")),
    Filter(partition_globs=("sales/*",), build_request_ids=("build 0", "build 1")),
    Filter(partition_refs=("A",), job_labels=("//job:1",)),
)


def everything(log: EventLog) -> dict[str, Any]:
    """Run every query; return the results as JSON."""
    answers: dict[str, Any] = {"summary": asdict(log.summary())}
    for number, wanted in enumerate(FILTERS):
        answers[f"page {number}"] = asdict(log.page(5, limit=20, event_filter=wanted))
        answers[f"all {number}"] = [asdict(one) for one in log.events(at_once=17, event_filter=wanted)]
    answers["builds"] = [asdict(build) for build in log.builds()]
    answers["failed"] = [asdict(build) for build in log.builds(statuses=[BuildStatus.FAILED, BuildStatus.CANCELLED])]
    for build in log.builds(limit=5):
        answers[f"build {build.build_request_id}"] = asdict(log.build(build.build_request_id))
        answers[f"events of {build.build_request_id}"] = [
            asdict(one) for one in log.events_of_build(build.build_request_id, limit=30)
        ]
    for ref in ODD_REFS:
        answers[f"events of {ref}"] = [asdict(one) for one in log.events_of_partition(ref, limit=30)]
        answers[f"active builds of {ref}"] = [asdict(build) for build in log.active_builds(ref)]
    answers["partitions"] = [asdict(found) for found in log.partitions()]
    answers["some partitions"] = [asdict(found) for found in log.partitions(glob="sales/*", limit=2)]
    answers["runs"] = [asdict(run) for run in log.runs(limit=50)]
    answers["runs of build 1"] = [asdict(run) for run in log.runs(build_request_id="build 1")]
    answers["events of run 1"] = [asdict(one) for one in log.events_of_run("run 1")]
    from_here = FIRST_NANOSECOND + 10_000_000_000
    answers["between"] = [asdict(one) for one in log.events_between(from_here, from_here + 20_000_000_000)]
    return answers


def _timeless(answers: Any) -> Any:  # noqa: ANN401
    """Return the answers without append times, which differ between backends."""
    if isinstance(answers, dict):
        return {name: _timeless(value) for name, value in answers.items() if name != "appended_at"}
    return [_timeless(one) for one in answers] if isinstance(answers, list | tuple) else answers


@pytest.mark.parametrize("seed", [1, 2])
def test_generated_histories_give_the_same_answers_everywhere(opened: Opener, seed: int) -> None:
    events = list(history(400, seed=seed))
    logs = {kind: opened(kind) for kind in KINDS}
    answers: dict[str, str] = {}
    for kind, log in logs.items():
        rest = iter(events)
        size = 1
        while batch := list(islice(rest, size)):
            log.append(*batch)
            size = size % 13 + 1
        answers[kind] = json.dumps(_timeless(everything(log)), sort_keys=True, ensure_ascii=False)
    assert len(answers["memory"]) > 100_000
    for kind in KINDS:
        assert answers[kind] == answers["memory"], kind


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(10, 16))
def test_long_histories_give_the_same_answers_everywhere(opened: Opener, seed: int) -> None:
    events = list(history(5000, seed=seed))
    answers = []
    for kind in KINDS:
        log = opened(kind)
        for start in range(0, len(events), 97):
            log.append(*events[start : start + 97])
        answers.append(json.dumps(_timeless(everything(log)), sort_keys=True, ensure_ascii=False))
    assert set(answers) == {answers[0]}


def test_events_are_read_back_unchanged(log: EventLog) -> None:
    events = list(history(300, seed=3))
    assert [one.index for one in log.append(*events)] == list(range(1, 301))
    assert [event_json(one.event) for one in log.events()] == [event_json(event) for event in events]
    assert log.event(events[7].event_id).index == 8


def test_pages_follow_each_other_without_gap_or_overlap(log: EventLog) -> None:
    log.append(*history(50, seed=4))
    page = log.page(1, limit=20)
    assert (len(page.events), page.next_index, page.has_more) == (20, 21, True)
    page = log.page(41, limit=10)
    assert (len(page.events), page.next_index, page.has_more) == (10, 51, False)
    page = log.page(51, limit=10)
    assert (page.events, page.next_index, page.has_more) == ((), 51, False)
    log.append(*list(history(51, seed=4))[50:])
    assert [one.index for one in log.page(page.next_index).events] == [51]
