"""Which small files of a log on Delta are brought together: the one rule, for the log itself and for the planner. Pure.

Files are sorted into classes by their events, each class 32 times as large as the one below; when a class has many, its files
become one for each day. So an event is copied once for each class, and few files are live however many appends there were.
"""

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

CLASS_GROWTH: Final = 32
LARGEST_EVENTS: Final = CLASS_GROWTH**3
"""Files with so many events are left alone."""
MOST_EVENTS: Final = 2_000_000
"""Events that are brought together at once, in memory."""
FEWEST_FILES: Final = 2

F = TypeVar("F")


def class_of(events: int) -> int | None:
    """Return the class of a file by its events; None if it is large.

    >>> [class_of(n) for n in (1, 31, 32, 1023, 1024, 32768)]
    [0, 0, 1, 1, 2, None]
    """
    number, limit = 0, CLASS_GROWTH
    while events >= limit:
        number, limit = number + 1, limit * CLASS_GROWTH
    return number if events < LARGEST_EVENTS else None


def classes(files: Iterable[F], *, events: Callable[[F], int]) -> list[list[F]]:
    """Return the small files by their classes, the lowest first."""
    found: dict[int, list[F]] = {}
    for file in files:
        number = class_of(events(file))
        if number is not None:
            found.setdefault(number, []).append(file)
    return [some for _, some in sorted(found.items())]


def chosen(
    files: Iterable[F],
    *,
    many: int,
    events: Callable[[F], int],
    day: Callable[[F], str | None],
    path: Callable[[F], str],
) -> list[F]:
    """Return the files to bring together: of the lowest class that has so many; none if no class has."""
    for some in classes(files, events=events):
        if len(some) >= max(many, FEWEST_FILES) and len(some) > len({day(file) for file in some}):
            return _bounded(sorted(some, key=path), events)
    return []


def _bounded(files: list[F], events: Callable[[F], int]) -> list[F]:
    total = 0
    for at, file in enumerate(files):
        total += events(file)
        if total > MOST_EVENTS:
            return files[:at]
    return files
