"""Queries with bound values."""

import datetime
import math
from decimal import Decimal

UTC = datetime.UTC
PARAMETERS: list[tuple[str, dict[str, object]]] = [
    ("SELECT id FROM lab.d.t WHERE n = :n", {"n": 1}),
    ("SELECT id, n + :n AS x FROM lab.d.t", {"n": 2}),
    ("SELECT id, id * :big AS x FROM lab.d.t", {"big": 3_000_000_000}),
    ("SELECT id, :edge AS x, :edge + id AS y FROM lab.d.t", {"edge": -(2**31)}),
    ("SELECT id, :a AS x, :b AS y, :c AS v FROM lab.d.t", {"a": math.nan, "b": -0.0, "c": -math.inf}),
    ("SELECT id, :t AS x, :b AS y FROM lab.d.t", {"t": "a\0b\\'\"\r\n$1 ${x} :t \U0001f600", "b": b"\0'\xff"}),
    ("SELECT id, :m AS x, :n AS y FROM lab.d.t", {"m": Decimal("1E+3"), "n": Decimal("-0.00")}),
    ("SELECT id FROM lab.d.t WHERE z = :text OR w = :text", {"text": "it's; -- 'é"}),
    ("SELECT id FROM lab.d.t WHERE z > :text", {"text": "a"}),
    ("SELECT id FROM lab.d.t WHERE e > :least", {"least": 0.5}),
    ("SELECT id, e * :by AS x FROM lab.d.t WHERE o = :yes", {"by": 1.5, "yes": True}),
    ("SELECT id FROM lab.d.t WHERE t >= :day", {"day": datetime.date(2024, 2, 29)}),
    ("SELECT id FROM lab.d.t WHERE u = :at", {"at": datetime.datetime(2026, 11, 16, tzinfo=UTC)}),
    ("SELECT id FROM lab.d.t WHERE v < :at", {"at": datetime.datetime.fromisoformat("2026-11-16T00:00:00")}),
    ("SELECT id, m * :share AS x FROM lab.d.t", {"share": Decimal("0.05")}),
    ("SELECT id FROM lab.d.t WHERE m > :n AND n < :n", {"n": 2}),
    ("SELECT id, coalesce(m, :n) AS x FROM lab.d.t", {"n": 2}),
    ("SELECT id, coalesce(n, :none, 3) AS x FROM lab.d.t", {"none": None}),
    ("SELECT id FROM lab.d.t WHERE x = :bytes", {"bytes": b"\xff\xfe"}),
    ("SELECT n % :by AS g, count(*) AS c FROM lab.d.t GROUP BY n % :by", {"by": 3}),
]
