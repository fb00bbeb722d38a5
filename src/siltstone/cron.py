"""Cron expressions of five fields (minute, hour, day of the month, month, day of the week), always in UTC.

They are read by cronsim, which follows Debian's cron. It knows names of days and months, lists, ranges, steps, and
``L`` for the last day.
"""

import datetime
from typing import Final

from siltstone.errors import InvalidRequest

FIELDS: Final = 5
"""Number of fields. cronsim also reads a sixth field, seconds, which compactions do not need."""
MAX_CRON_CHARACTERS: Final = 200


def check_cron(cron: str) -> None:
    """Refuse text that is not a valid cron expression, or that never matches a date. Raises as `next_after` does."""
    next_after(cron, datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC))


def next_after(cron: str, moment: datetime.datetime) -> datetime.datetime:
    """Return the first time in UTC after a moment, never the moment itself, at which a cron expression is due.

    >>> at = datetime.datetime(2026, 11, 16, 3, 0, tzinfo=datetime.UTC)
    >>> next_after("0 3 * * *", at).isoformat()
    '2026-11-17T03:00:00+00:00'

    Raises:
        InvalidRequest: the text is not a valid cron expression, or never matches a date.
    """
    from cronsim import CronSim, CronSimError

    if moment.tzinfo is None:
        raise InvalidRequest(f"The time {moment.isoformat()} has no time zone; add one.")
    if len(cron) > MAX_CRON_CHARACTERS or len(cron.split()) != FIELDS:
        raise InvalidRequest(_refusal(cron, "it needs five fields"))
    try:
        return next(CronSim(cron, moment.astimezone(datetime.UTC)))
    except CronSimError as error:
        raise InvalidRequest(_refusal(cron, str(error).lower())) from error
    except (OverflowError, StopIteration) as error:
        raise InvalidRequest(_refusal(cron, "it never matches a date")) from error


def _refusal(cron: str, why: str) -> str:
    return (
        f"{cron[:MAX_CRON_CHARACTERS]!r} is not a valid cron expression: {why}. "
        "Write minute, hour, day of the month, month and day of the week, e.g. '5 * * * *' or '0 3 * * *'; times are UTC."
    )
