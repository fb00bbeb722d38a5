"""Misspelt columns are found from schemas alone; a name that may be a column is left to the engine."""

import pytest
from sqlglot import exp

from siltstone.errors import InvalidRequest
from siltstone.query.gate.admit import admit
from siltstone.query.gate.column_check import check_names
from tests.support.refusals import refused

TABLES = {"people": ("id", "name", "city", "Score", "address"), "orders": ("id", "customer", "amount")}


def check(text: str) -> None:
    def columns(table: exp.Table) -> tuple[str, ...]:
        return TABLES[table.name]

    admitted = admit(text, catalog="crm", schema="sales")
    check_names(admitted.checked, columns)


KNOWN = [
    "SELECT city, count(*) FROM people GROUP BY city ORDER BY `count(1)`",
    "SELECT address.street FROM people ORDER BY street",
    "SELECT people.address.geo.lat.degrees FROM people ORDER BY degrees",
    "SELECT explode(address) FROM people ORDER BY col",
    "SELECT explode(address) AS (k, v) FROM people ORDER BY k, v",
    "SELECT stack(2, 'a', id, 'b', name) AS (label, value) FROM people ORDER BY label",
    "SELECT 'x' FROM people ORDER BY x",
    "SELECT name AS n, (SELECT max(amount) FROM orders WHERE customer = n) FROM people",
    "SELECT id, NAME, people.city, crm.sales.people.score, p.x FROM people, (SELECT 1 AS x) p",
    "SELECT address.street, people.address.street, crm.sales.people.address.street FROM people",
    "SELECT score * 2 AS twice, twice + 1 FROM people WHERE score > 1 ORDER BY twice",
    "SELECT city, count(*) AS n FROM people GROUP BY city HAVING n > 1",
    "SELECT name FROM people p WHERE EXISTS (SELECT 1 FROM orders o WHERE o.customer = p.id AND city = 'x')",
    "WITH w AS (SELECT id AS key, city FROM people) SELECT key, w.city FROM w",
    "WITH w(a, b) AS (SELECT id, city FROM people) SELECT a, b FROM w",
    "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 9) SELECT n FROM t",
    "SELECT `max(id)` FROM (SELECT max(id) FROM people)",
    "SELECT anything FROM people LATERAL VIEW explode(address) e AS anything",
    "SELECT col1 FROM VALUES (1)",
    "SELECT id FROM range(5)",
    "SELECT yes FROM (SELECT id, city FROM people) PIVOT (count(*) FOR city IN ('x' AS yes))",
    "SELECT transform(address, x -> x + score) FROM people",
    "SELECT dateadd(DAY, 1, city), EXTRACT(YEAR FROM city), current_date FROM people",
    "SELECT * EXCEPT (id) FROM people JOIN orders USING (id)",
    "SELECT x.city FROM (people JOIN orders ON true) x",
    "SELECT t.* FROM (SELECT * FROM people) t WHERE t.name = 'x'",
    "SELECT id FROM people UNION SELECT amount FROM orders ORDER BY id",
    "SELECT sum(score) OVER w AS s FROM people WINDOW w AS (PARTITION BY city)",
]


@pytest.mark.parametrize("text", KNOWN)
def test_a_name_that_may_be_a_column_passes(text: str):
    check(text)


UNKNOWN = {
    "SELECT nmae FROM people": ("nmae", "line 1, column 8", "name"),
    "SELECT scroe FROM people": ("Score",),
    "SELECT p.nmae FROM people p": ("p.nmae", "name"),
    "SELECT q.name FROM people people1": ("q.name", "people1"),
    "SELECT peopel.name FROM people": ("people.name",),
    "SELECT zzz FROM people": ("zzz", "id, name, city, Score, address"),
    "SELECT id FROM people WHERE citty = 'x'": ("citty", "line 1, column 29"),
    "SELECT id FROM people GROUP BY id HAVING amount > 1": ("amount",),
    "SELECT 1 FROM people p JOIN orders o ON p.id = o.costumer": ("customer",),
    "SELECT (SELECT max(amout) FROM orders) FROM people": ("amount",),
    "WITH w AS (SELECT id FROM people) SELECT city FROM w": ("city",),
    "SELECT x FROM (SELECT id AS y FROM people) q": ("line 1, column 8",),
    "SELECT a": ("line 1, column 8",),
}


@pytest.mark.parametrize("text", UNKNOWN)
def test_a_misspelt_column_is_reported_with_similar_names(text: str):
    with refused(InvalidRequest, None, *UNKNOWN[text]):
        check(text)
