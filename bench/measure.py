"""Measuring: wall time of one call and the peak memory of this process and of Spark meanwhile: the JVM and its Python workers.

Peaks come from the kernel: ``5`` written to ``/proc/<pid>/clear_refs`` sets a process's high-water mark back to what it
holds now, ``VmHWM`` reads it. Where that is not possible (not Linux, not allowed) memory is unknown, never guessed.
The peaks of the JVM and its workers are added up: they need not have been at the same moment, so Spark's is an upper bound.
Only the call lies between the two clock readings.
"""

import gc
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

PROC: Final = Path("/proc")
RESET_PEAK: Final = "5"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The most memory that one process held during a call, and how much of that came on top of what it held before."""

    megabytes: float
    added: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One measured call."""

    seconds: float
    python: Peak | None
    jvm: Peak | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Several samples of the same thing: the median time, its range, and the worst memory."""

    samples: int
    seconds: float
    fastest: float
    slowest: float
    python: Peak | None
    jvm: Peak | None

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> "Summary":
        """Summarise at least one sample."""
        times = [sample.seconds for sample in samples]
        return cls(
            samples=len(times),
            seconds=statistics.median(times),
            fastest=min(times),
            slowest=max(times),
            python=_worst([sample.python for sample in samples]),
            jvm=_worst([sample.jvm for sample in samples]),
        )


class Meter:
    """Measures calls of this process; the JVM is looked up when the first one is measured."""

    def __init__(self) -> None:
        self._jvm: int | None = None

    def measure(self, call: Callable[[], object]) -> Sample:
        """Run the call once."""
        gc.collect()
        own, jvm = os.getpid(), self._find_jvm()
        before = {pid: _reset(pid) for pid in (own, *_group(jvm))}
        started = time.perf_counter()
        call()
        seconds = time.perf_counter() - started
        return Sample(seconds=seconds, python=_peak([own], before), jvm=_peak(_group(jvm), before))

    def time(self, call: Callable[[], object]) -> Sample:
        """Run the call once and take its time alone: of thousands of calls, looking at memory would take longer than they do."""
        started = time.perf_counter()
        call()
        return Sample(seconds=time.perf_counter() - started, python=None, jvm=None)

    def _find_jvm(self) -> int | None:
        if self._jvm is None:
            processes = psutil.Process().children(recursive=True)
            with suppress(psutil.NoSuchProcess):  # another child has just ended
                self._jvm = next((process.pid for process in processes if process.name() == "java"), None)
        return self._jvm


def interleaved(steps: Mapping[str, Callable[[], Sample]], *, rounds: int, warm_ups: int = 1) -> dict[str, Summary]:
    """Let steps take turns, so that a slow moment of the machine meets all of them; the first rounds only warm up."""
    samples: dict[str, list[Sample]] = {name: [] for name in steps}
    for number in range(warm_ups + rounds):
        for name, measured in steps.items():
            sample = measured()
            if number >= warm_ups:
                samples[name].append(sample)
    return {name: Summary.of(taken) for name, taken in samples.items()}


def percentile(times: Sequence[float], share: float) -> float:
    """Return the value below which this share of the times lies.

    >>> percentile([1.0, 2.0, 3.0, 4.0], 0.5)
    2.0
    """
    ranked = sorted(times)
    return ranked[max(0, min(len(ranked) - 1, round(share * len(ranked)) - 1))]


def _worst(peaks: Sequence[Peak | None]) -> Peak | None:
    known = [peak for peak in peaks if peak is not None]
    if not known:
        return None
    return Peak(megabytes=max(p.megabytes for p in known), added=max(p.added for p in known))


def _reset(pid: int) -> float | None:
    """Set the peak back; return what the process holds now, or None where that cannot be done."""
    try:
        (PROC / str(pid) / "clear_refs").write_text(RESET_PEAK)
    except OSError:
        return None
    return _status_mb(pid, "VmRSS")


def _peak(pids: Sequence[int], before: Mapping[int, float | None]) -> Peak | None:
    """Add up the peaks of processes; one that came or went meanwhile counts with what is known of it."""
    peaks = [_status_mb(pid, "VmHWM") for pid in pids]
    held = [before.get(pid, 0.0) for pid in pids]
    if not pids or peaks[0] is None or held[0] is None:
        return None
    peak = sum(found for found in peaks if found is not None)
    return Peak(megabytes=peak, added=max(0.0, peak - sum(found for found in held if found is not None)))


def _group(pid: int | None) -> list[int]:
    """Return a process and everything below it."""
    if pid is None:
        return []
    with suppress(psutil.NoSuchProcess):
        return [pid, *(process.pid for process in psutil.Process(pid).children(recursive=True))]
    return [pid]


def _status_mb(pid: int, field: str) -> float | None:
    try:
        lines = (PROC / str(pid) / "status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:")), None)
