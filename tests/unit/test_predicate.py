"""A condition is one expression over a row's own columns; whatever else is in the text is refused."""

import pytest

from siltstone.errors import InvalidRequest
from siltstone.model.predicate import check_predicate

COLUMNS = ["id", "city", "n", "place", "At"]

GOOD = [
    "city = 'Bern'",
    "n > 3 AND (city LIKE 'B%' OR city IS NULL)",
    "n IN (1, 2, 3) -- a comment",
    "place.street = 'x'",
    "at >= TIMESTAMP '2026-01-01 00:00:00'",
    "lower(city) = 'bern' and length(city) between 1 and 9",
    "`city` = 'a''b; DROP TABLE x'",
    "CITY = 'Bern'",
]
BAD = {
    "": "cannot be read",
    "city =": "cannot be read",
    "1 = 1": "at least one column",
    "colour = 'red'": "no column 'colour'",
    "n IN (SELECT n FROM a.b.c)": "about one row",
    "EXISTS (SELECT 1 FROM a.b.c WHERE n = 1)": "about one row",
    "n = (SELECT max(n) FROM a.b.c)": "about one row",
    "n = max(n)": "about one row",
    "row_number() OVER (ORDER BY n) = 1": "about one row",
    "n = 1) OR (1 = 1": "cannot be read",
    "n = 1) UNION SELECT (2": "cannot be read",
    "n = 1); DROP TABLE t; --": "cannot be read",
    "n = 1) LIMIT (1": "cannot be read",
    "java_method('java.lang.System', 'exit', n) = 1": "java_method is not allowed",
    "reflect('java.lang.Runtime', city) = ''": "reflect is not allowed",
    "n = :n": "about one row",
    "n = 1 " + "AND n = 1 " * 2000: "cannot be read",
}


@pytest.mark.parametrize("text", GOOD)
def test_a_condition_over_columns_passes_as_it_is(text: str):
    assert check_predicate(text, COLUMNS) == text


@pytest.mark.parametrize("text", BAD, ids=[text[:40] for text in BAD])
def test_what_is_no_condition_of_a_row_is_refused(text: str):
    with pytest.raises(InvalidRequest, match=BAD[text]):
        check_predicate(text, COLUMNS)
