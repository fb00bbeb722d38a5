"""Cross joins that cannot be interrupted are refused before they start; ordinary joins never are."""

import pytest

from siltstone.errors import InvalidRequest
from siltstone.query.gate.admit import admit
from siltstone.query.gate.cross_join_guard import DatasetSize, check_product
from tests.support.refusals import refused

MOST = 5_000_000_000
DATASETS = {
    "small": DatasetSize(rows=1_000, columns=frozenset({"id", "n"})),
    "mid": DatasetSize(rows=100_000, columns=frozenset({"mid_id", "n"})),
    "large": DatasetSize(rows=50_000_000, columns=frozenset({"large_id", "small_id", "info"})),
    "none": DatasetSize(rows=0, columns=frozenset({"x"})),
}

ALLOWED = [
    "SELECT * FROM a.b.small",
    "SELECT * FROM a.b.large x, a.b.small y",
    "SELECT * FROM a.b.large x JOIN a.b.mid y ON x.large_id > y.n",
    "SELECT * FROM a.b.small a, a.b.small b, a.b.small c",
    "SELECT * FROM a.b.large a JOIN a.b.large b ON a.large_id = b.large_id JOIN a.b.large c ON b.large_id = c.large_id",
    "SELECT * FROM a.b.large a, a.b.large b, a.b.mid c WHERE a.large_id = b.small_id AND c.mid_id + 1 = b.large_id",
    "SELECT * FROM a.b.large, a.b.mid, a.b.small WHERE large_id = mid_id AND small_id = id",
    "SELECT * FROM a.b.large a JOIN a.b.large b USING (large_id) NATURAL JOIN a.b.large c",
    "SELECT * FROM a.b.large a, a.b.large b WHERE (a.large_id = b.large_id AND a.small_id = 1) OR (a.large_id = b.large_id)",
    "SELECT * FROM a.b.large a, a.b.large b WHERE b.large_id IN (1, 2) AND a.small_id > b.small_id",
    "SELECT * FROM a.b.large a, (SELECT small_id, count(*) n FROM a.b.large GROUP BY small_id) b WHERE a.large_id > b.n",
    "SELECT * FROM a.b.large a, (SELECT max(large_id) m FROM a.b.large) b, (SELECT * FROM a.b.large LIMIT 5) c",
    "SELECT * FROM a.b.large a LEFT ANTI JOIN a.b.large b ON a.large_id > b.small_id",
    "SELECT * FROM a.b.large a WHERE EXISTS (SELECT 1 FROM a.b.large b WHERE b.small_id < a.small_id)",
    "SELECT * FROM (SELECT explode(sequence(1, 5000)) x) a, (SELECT explode(sequence(1, 5000)) x) b",
    "SELECT * FROM a.b.large LATERAL VIEW explode(array(1, 2, 3)) e AS x LATERAL VIEW explode(split('a', '')) f AS y",
    "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT * FROM r, a.b.small",
    "SELECT * FROM a.b.none a, a.b.none b, a.b.large c",
    "WITH x AS (SELECT * FROM a.b.small) SELECT * FROM x a, x b, x c WHERE a.n > b.n",
    "SELECT * FROM a.b.large a, a.b.large b WHERE a.info.id = b.info.id",
    "SELECT * FROM a.b.large a, a.b.mid b WHERE info.id.x.y.z = b.n AND a.info.k[0].l = b.n",
    "SELECT * FROM a.b.large, a.b.mid WHERE a.b.large.large_id = a.b.mid.n",
    "WITH p(q) AS (SELECT large_id FROM a.b.large) SELECT * FROM p, a.b.large b WHERE q = b.large_id",
    "WITH p(q) AS (SELECT large_id FROM a.b.large) SELECT * FROM p x, p y WHERE x.q = y.q",
    "SELECT * FROM (SELECT large_id FROM a.b.large) p(q), a.b.large b WHERE q = large_id",
    "SELECT * FROM a.b.large p(q, r, s), a.b.large b WHERE q = large_id",
    "SELECT * FROM ((SELECT large_id FROM a.b.large)) p(q), a.b.large b WHERE q = large_id",
    "SELECT * FROM (a.b.large a JOIN a.b.mid b ON a.large_id = b.n) x JOIN a.b.large c ON x.small_id = c.small_id",
    "SELECT * FROM a.b.large a, LATERAL (SELECT * FROM a.b.large b WHERE b.large_id = a.small_id) l",
    "SELECT * FROM a.b.large a JOIN LATERAL (SELECT * FROM a.b.mid b JOIN a.b.mid c USING (n) WHERE large_id = b.n) l(x)",
    "SELECT * FROM a.b.large a, a.b.large b WHERE a.large_id = b.large_id" + " AND a.small_id > 1" * 490,
    "SELECT * FROM a.b.large a, a.b.large b WHERE a.large_id = b.large_id" + " OR a.large_id = b.large_id" * 490,
    "SELECT * FROM a.b.small a, (" + " UNION ALL ".join(["SELECT n FROM a.b.small"] * 490) + ") b",
    "SELECT * FROM a.b.small a, (" + " UNION ".join(["SELECT n FROM a.b.small EXCEPT SELECT 1"] * 245) + ") b",
    "SELECT * FROM a.b.large a JOIN a.b.large b ON a.large_id <> b.large_id",
    "SELECT * FROM a.b.mid a, a.b.mid b, a.b.mid c WHERE a.n > b.n AND a.n = c.n OR a.n > c.n",
    "SELECT * FROM a.b.large a, a.b.large b WHERE a.large_id > b.large_id" + " AND a.small_id > 1" * 490,
    "SELECT * FROM a.b.mid a JOIN a.b.mid b ON a.n = b.n, a.b.mid c",
    "SELECT * FROM a.b.mid p(q, r), a.b.mid b, a.b.mid c WHERE q = b.n",
    "SELECT * FROM a.b.mid a, a.b.mid b, a.b.mid c, (SELECT 1 AS x, 2 AS y) d WHERE a.n = d.x AND d.y = c.n",
]
REFUSED = [
    "SELECT count(*) FROM a.b.small a, a.b.small b, a.b.small c, a.b.small d, a.b.small e",
    "SELECT count(*) FROM a.b.small a, a.b.small b, a.b.small c, a.b.small d, a.b.small e WHERE a.n = b.n",
    "SELECT * FROM a.b.mid a, a.b.mid b, a.b.mid c WHERE a.n > b.n AND b.n > c.n",
    "SELECT * FROM a.b.mid a, a.b.mid b, a.b.mid c WHERE a.n = 1 AND b.n IN (SELECT n FROM a.b.small WHERE id = c.n)",
    "SELECT * FROM a.b.mid a CROSS JOIN a.b.mid b CROSS JOIN a.b.mid c WHERE a.mid_id = a.n",
    "SELECT * FROM a.b.large a, a.b.large b, a.b.large c WHERE a.info.id = a.large_id",
    "SELECT * FROM (a.b.mid a CROSS JOIN a.b.mid b) CROSS JOIN a.b.mid c",
    "SELECT * FROM (a.b.mid a CROSS JOIN a.b.mid b CROSS JOIN a.b.mid c)",
    "SELECT * FROM ((a.b.mid a CROSS JOIN a.b.mid b) CROSS JOIN a.b.mid c)",
    "SELECT * FROM (((a.b.mid a CROSS JOIN (a.b.mid b)) x CROSS JOIN a.b.mid c)) y",
    "SELECT 1 FROM a.b.small WHERE n IN (SELECT a.n FROM a.b.mid a, a.b.mid b, a.b.mid c)",
    "SELECT * FROM a.b.large a, a.b.large b, a.b.large c WHERE a.large_id > b.large_id" + " AND a.small_id > 1" * 490,
]


SHOWN_CHARS = 100


def check(text: str, most: int = MOST) -> None:
    check_product(admit(text).checked, lambda table: DATASETS[table.name], most=most)


@pytest.mark.parametrize("text", ALLOWED, ids=lambda text: text[:SHOWN_CHARS])
def test_interruptible_joins_pass(text: str) -> None:
    check(text)


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:SHOWN_CHARS])
def test_uninterruptible_joins_are_refused_by_name(text: str) -> None:
    with refused(InvalidRequest, None, "c", f"{MOST:,}"):
        check(text)
    check(text, most=0)


def test_the_message_names_the_datasets_and_the_pairs() -> None:
    with refused(InvalidRequest, None, "x, y and z", "1.0e13"):
        check("SELECT * FROM a.b.mid x, a.b.mid y, a.b.mid z")


def test_sizes_are_read_only_for_three_datasets() -> None:
    text = "SELECT * FROM a.b.large x, a.b.large y, (SELECT a.n FROM a.b.mid a, a.b.mid b) z"
    check_product(admit(text).checked, lambda table: pytest.fail(table.name), most=1)
