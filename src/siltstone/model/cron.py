"""Cron text: when work is due.

Five fields (minute, hour, day of the month, month, day of the week) or a name such as ``@daily``; always in UTC, so that no
hour is there twice or not at all.

As in every cron, where both the day of the month and the day of the week are restricted, either is enough.
"""

import datetime
import re
from typing import Final

from siltstone.errors import InvalidRequest

NAMED: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}
FIELDS: Final = 5
MAX_CHARS: Final = 200
"""Longer text is no cron that a person wrote."""
_FIELD: Final = re.compile(r"[0-9A-Za-z*/,#-]+")
_DRAWN: Final = re.compile(r"(^|[,/-])[HR]($|[,/(-])", re.IGNORECASE)
"""Some programs draw a time for these letters; here a cron means the same each time it is read."""


def next_after(cron: str, moment: datetime.datetime) -> datetime.datetime:
    """Return the first moment after the given one at which the cron is due, in UTC.

    >>> next_after("5 * * * *", datetime.datetime(2026, 11, 15, 14, 5, tzinfo=datetime.UTC)).isoformat()
    '2026-11-15T15:05:00+00:00'

    Raises:
        InvalidRequest: the text is no cron, or names a day that never comes.
    """
    from croniter import CroniterBadDateError, CroniterError, croniter

    fields = _fields(cron)
    try:
        found = croniter(fields, moment.astimezone(datetime.UTC)).get_next(datetime.datetime)
    except CroniterBadDateError as error:
        raise InvalidRequest(f"Cron {cron!r} is never due: there is no such day. Choose another.") from error
    except (CroniterError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise _refused(cron, str(error)) from error
    assert isinstance(found, datetime.datetime)  # noqa: S101  # what was asked for above
    return found


def check_cron(cron: str) -> str:
    """Return the text if it is a cron.

    Raises:
        InvalidRequest: it is not, or names a day that never comes.
    """
    next_after(cron, datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC))
    return cron


def _fields(cron: str) -> str:
    if len(cron) > MAX_CHARS:
        raise _refused(cron, f"a text of at most {MAX_CHARS} characters is wanted")
    text = NAMED.get(cron.strip().lower(), cron)
    fields = text.split()
    if len(fields) != FIELDS:
        raise _refused(cron, f"it has {len(fields)} fields")
    for field in fields:
        if not _FIELD.fullmatch(field) or _DRAWN.search(field):
            raise _refused(cron, f"{field!r} is no field")
    return " ".join(fields)


def _refused(cron: str, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"{cron[:MAX_CHARS]!r} is no cron ({why}). Give minute, hour, day of the month, month and day of the week, "
        f"as in '5 * * * *' or '0 3 * * *', or one of {', '.join(NAMED)}."
    )
