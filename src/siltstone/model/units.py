"""Sizes and counts as text, in one unit system.

1 KB is 1,024 bytes, 1 MB is 1,024 KB, and so on. This holds for settings (``hot_cache_mb``), tiers (``512MB``) and all
output.
"""

from typing import Final

BYTES_PER_KB: Final = 1024
BYTES_PER_MB: Final = 1024 * BYTES_PER_KB
_UNITS: Final = ("B", "KB", "MB", "GB", "TB")
_NEXT_UNIT: Final = 1023.5
"""Amount from which rounding would give 1,024 of a unit, so that the next unit is used."""
_FOUR_DIGITS: Final = 999.5


def size_text(size_bytes: int) -> str:
    """Return a size with its unit, rounded to three digits.

    >>> size_text(0), size_text(999), size_text(1536), size_text(1020 * 1024), size_text(5 * 1024**3)
    ('0 B', '999 B', '1.5 KB', '1,020 KB', '5 GB')
    """
    amount, unit = float(size_bytes), _UNITS[0]
    for larger in _UNITS[1:]:
        if amount < _NEXT_UNIT:
            break
        amount, unit = amount / BYTES_PER_KB, larger
    return f"{amount:,.0f} {unit}" if amount >= _FOUR_DIGITS else f"{amount:.3g} {unit}"


def counted(count: int, noun: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "row"), counted(2000, "row"), counted(3, "batch")
    ('1 row', '2,000 rows', '3 batches')
    """
    ending = "" if count == 1 else "es" if noun.endswith("ch") else "s"
    return f"{count:,} {noun}{ending}"
