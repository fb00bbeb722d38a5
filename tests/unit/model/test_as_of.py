import datetime

import pytest

from siltstone.errors import InvalidRequest
from siltstone.model.as_of import as_point

EAST = datetime.timezone(datetime.timedelta(hours=14))


@pytest.mark.parametrize(
    "at", ["9" * 5000, "0001-01-01T00:00:00+14:00", datetime.datetime(1, 1, 1, tzinfo=EAST), "2026-11-16T08:00", "now"]
)
def test_text_that_names_no_point_in_time_is_refused(at: object):
    with pytest.raises(InvalidRequest):
        as_point(at)
