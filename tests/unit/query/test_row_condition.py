"""A condition is one expression over a row's own columns, made of a query's syntax. Every other text is refused."""

import pytest

from siltstone.errors import InvalidRequest
from siltstone.query.gate.allowlist import FUNCTIONS_BY_GROUP
from siltstone.query.gate.row_condition import condition_of
from tests.support.refusals import refused

COLUMNS = ["id", "city", "n", "place", "At", "user", "l"]

GOOD = {
    "city = 'Bern'": "`city` = 'Bern'",
    "n > 3 AND (city LIKE 'B%' OR city IS NULL)": "`n` > 3 AND (`city` LIKE 'B%' OR `city` IS NULL)",
    "n IN (1, 2, 3) -- a comment": "`n` IN (1, 2, 3)",
    "n = 1;": "`n` = 1",
    "place.street = 'x'": "`place`.`street` = 'x'",
    "at >= TIMESTAMP '2026-01-01 00:00:00'": "`at` >= CAST('2026-01-01 00:00:00' AS TIMESTAMP)",
    "lower(city) = 'bern' and length(city) between 1 and 9": "lower(`city`) = 'bern' AND length(`city`) BETWEEN 1 AND 9",
    "`city` = 'a''b; DROP TABLE x'": "`city` = 'a\\'b; DROP TABLE x'",
    "CITY = '${env:HOME}'": "`CITY` = '\\u0024{env:HOME}'",
    "user = 'x'": "`user` = 'x'",
    "exists(l, x -> x > n)": "exists(`l`, `x` -> `x` > `n`)",
    "at < now() - INTERVAL 30 DAYS": "`at` < now() - INTERVAL 30 DAYS",
    "city IS NOT DISTINCT FROM NULL": "`city` <=> NULL",
}
BAD = {
    "": (),
    "-- nothing": (),
    "city =": (),
    "1 = 1": (),
    "colour = 'red'": ("'colour'",),
    "current_user = city": ("'current_user'",),
    "_metadata.file_path = city": ("'_metadata'",),
    "n IN (SELECT n FROM a.b.c)": ("line 1",),
    "EXISTS (SELECT 1 FROM a.b.c WHERE n = 1)": ("line 1",),
    "n = (SELECT max(n) FROM a.b.c)": ("line 1",),
    "n = max(n)": ("max", "line 1, column 5"),
    "row_number() OVER (ORDER BY n) = 1": ("line 1, column 1",),
    "explode(l) = n": ("line 1, column 1", "explode"),
    "n = count(*)": ("line 1, column 5", "count"),
    "rand() < n": ("line 1, column 1", "rand"),
    "n = 1) OR (1 = 1": (),
    "n = 1) UNION SELECT (2": (),
    "n = 1); DROP TABLE t; --": ("line 1, column 9",),
    "n = 1; n = 2": ("line 1, column 8",),
    "n = 1) LIMIT (1": (),
    "n = 1) AND (n = 2": (),
    "n = 1, n = 2": (),
    "n AS m": ("line 1, column 1",),
    "java_method('java.lang.System', 'exit', n) = 1": ("java_method",),
    "reflect('java.lang.Runtime', city) = ''": ("reflect",),
    "input_file_name() = city": ("input_file_name",),
    "n = aes_decrypt(city, 'k')": ("aes_decrypt",),
    "CAST(n AS VARIANT) = 1": ("VARIANT",),
    "n = :n": ("line 1, column 5",),
    "city = 'x": ("line 1, column 8",),
    "n = 1 " + "AND n = 1 " * 2000: (),
}


@pytest.mark.parametrize("text", GOOD)
def test_a_condition_over_columns_is_rewritten(text: str):
    assert condition_of(text, COLUMNS) == GOOD[text]


@pytest.mark.parametrize("text", BAD, ids=[text[:40] for text in BAD])
def test_anything_but_a_condition_on_one_row_is_refused(text: str):
    with refused(InvalidRequest, None, *BAD[text]):
        condition_of(text, COLUMNS)


@pytest.mark.parametrize(
    "group", ["Strings", "Numbers", "Dates and times", "Hashes", "Conditions and nulls", "JSON in strings"]
)
def test_every_function_of_values_that_a_query_may_have_can_be_in_a_condition(group: str):
    names = [name for name in FUNCTIONS_BY_GROUP[group].split() if name not in ("extract", "json_tuple")]
    assert [name for name in names if condition_of(f"{name}(n) = 1", COLUMNS) != f"{name}(`n`) = 1"] == []
