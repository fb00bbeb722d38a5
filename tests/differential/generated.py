"""Questions made up by chance, inside the subset: expressions of every type over columns with edges, in every clause."""

import random

NUMBERS = ("n", "k", "id", "e", "m", "p", "b", "s")
SAFE = ("n", "k", "CAST(b AS INT)", "CAST(s AS INT)")
TEXTS = ("z", "w")
DAYS = ("t",)
KEYS = ("k", "n", "z", "o", "m", "t", "w")
MOMENTS = ("DATE '2024-02-29'", "'1970-01-01'", "CAST(u AS DATE)")
LITERALS = ("0", "1", "-3", "2.5", "0.05", "100", "1e1")


class _Chance:
    """Draws pieces of questions."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def one(self, *options: str) -> str:
        return self.random.choice(options)

    def number(self, depth: int = 0) -> str:
        if depth > 2 or self.random.random() < 0.35:
            return self.one(*SAFE, "e", "m", *LITERALS)
        kind = self.random.randrange(9)
        if kind < 3:
            return f"({self.number(depth + 1)} {self.one('+', '-', '*')} {self.number(depth + 1)})"
        if kind == 3:
            return (
                f"CASE WHEN {self.condition(depth + 1)} THEN {self.number(depth + 1)} ELSE {self.number(depth + 1)} END"
            )
        if kind == 4:
            return f"coalesce({self.number(depth + 1)}, {self.number(depth + 1)})"
        if kind == 5:
            return f"abs({self.number(depth + 1)})"
        if kind == 6:
            return f"length({self.text(depth + 1)})"
        if kind == 7:
            return f"{self.one('year', 'month', 'day', 'quarter', 'dayofweek')}(t)"
        return f"{self.one('greatest', 'least')}({self.number(depth + 1)}, {self.number(depth + 1)})"

    def text(self, depth: int = 0) -> str:
        if depth > 2 or self.random.random() < 0.5:
            return self.one(*TEXTS, "'a'", "'é'", "''")
        kind = self.random.randrange(5)
        if kind == 0:
            return f"({self.text(depth + 1)} || {self.text(depth + 1)})"
        if kind == 1:
            return f"substring({self.text(depth + 1)}, {self.random.randrange(4)}, {self.random.randrange(4)})"
        if kind == 2:
            return f"{self.one('trim', 'ltrim', 'rtrim')}({self.text(depth + 1)})"
        if kind == 3:
            return f"if({self.condition(depth + 1)}, {self.text(depth + 1)}, {self.text(depth + 1)})"
        return f"{self.one('left', 'right')}({self.text(depth + 1)}, {self.random.randrange(4)})"

    def condition(self, depth: int = 0) -> str:  # noqa: PLR0911  # one for each kind
        kind = self.random.randrange(10) if depth < 3 else self.random.randrange(4)
        sign = self.one("=", "<>", "<", "<=", ">", ">=", "<=>")
        if kind == 0:
            return (
                f"{self.one(*NUMBERS, 'd', 'f', 'l', 'i')} {sign} {self.one(*NUMBERS, 'd', 'f', 'l', 'i', *LITERALS)}"
            )
        if kind == 1:
            return f"{self.text(3)} {sign} {self.text(3)}"
        if kind == 2:
            return f"t {sign} {self.one(*MOMENTS)}"
        if kind == 3:
            return f"{self.one(*KEYS, 'd', 'u')} IS {self.one('', 'NOT ')}NULL"
        if kind == 4:
            return f"({self.condition(depth + 1)} {self.one('AND', 'OR')} {self.condition(depth + 1)})"
        if kind == 5:
            return f"NOT ({self.condition(depth + 1)})"
        if kind == 6:
            return f"z LIKE '{self.one('a%', '%b', '_', '%', '%é%', 'a_b')}'"
        if kind == 7:
            return f"{self.one('n', 'k', 'm')} {self.one('', 'NOT ')}IN ({self.one('1, 2', '0, NULL', '2.5, 3')})"
        if kind == 8:
            return f"{self.number(depth + 1)} {sign} {self.number(depth + 1)}"
        return f"{self.one('n', 'm', 'e')} BETWEEN {self.one('-1', '0')} AND {self.one('2', '2.5')}"

    def aggregate(self) -> str:
        called = self.one("count", "sum", "min", "max", "avg", "count(DISTINCT)")
        if called == "count":
            return self.one("count(*)", f"count({self.one(*KEYS)})", "count(id)")
        if called == "count(DISTINCT)":
            return f"count(DISTINCT {self.one(*KEYS)})"
        if called in ("min", "max"):
            return f"{called}({self.one(*KEYS, 'q', 'l', 'u', 'e')})"
        return f"{called}({self.one('n', 'k', 'id', 'm', 'b', 's', 'e')})"

    def query(self) -> str:
        kind = self.random.randrange(6)
        where = f" WHERE {self.condition()}" if self.random.random() < 0.6 else ""
        if kind == 0:
            keys = self.random.sample(KEYS, self.random.randrange(1, 3))
            shown = ", ".join([*keys, *(f"{self.aggregate()} AS a{at}" for at in range(3))])
            having = f" HAVING count(*) > {self.random.randrange(4)}" if self.random.random() < 0.3 else ""
            return f"SELECT {shown} FROM lab.d.t{where} GROUP BY {', '.join(keys)}{having}"
        if kind == 1:
            over = f"PARTITION BY {self.one('k', 'o', 'z')} ORDER BY {self.one('n', 'm', 't', 'd')}, id"
            call = self.one(
                "row_number()",
                "rank()",
                "dense_rank()",
                "sum(n)",
                "count(*)",
                "max(m)",
                "lag(n, 1)",
                "lead(z, 2)",
                "avg(n)",
            )
            return f"SELECT id, {call} OVER ({over}) AS x FROM lab.d.t{where}"
        if kind == 2:
            join = self.one("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN")
            on = self.one("a.id = b.id", "a.k = b.k", "a.n = b.k AND a.m < b.price", "a.k <=> b.k", "a.d = b.g")
            return f"SELECT a.id, a.n, b.id AS other, b.label FROM lab.d.t a {join} lab.d.o b ON {on}"
        if kind == 3:
            down = self.one("", " DESC", " NULLS LAST", " DESC NULLS FIRST")
            key = self.one("n", "m", "z", "t", "d", "f", "u", "x", "o", "q")
            return f"SELECT id, {key} FROM lab.d.t{where} ORDER BY {key}{down}, id LIMIT {self.random.randrange(1, 80)}"
        if kind == 4:
            word = self.one("UNION", "UNION ALL", "INTERSECT", "EXCEPT", "EXCEPT ALL", "INTERSECT ALL")
            return f"SELECT {self.one('k', 'n', 'id')} AS v FROM lab.d.t{where} {word} SELECT {self.one('k', 'id')} FROM lab.d.o"
        shown = ", ".join([f"{self.number()} AS x", f"{self.text()} AS y", f"{self.condition()} AS c"])
        return f"SELECT id, {shown} FROM lab.d.t{where}"


def generated(count: int, *, seed: int) -> list[str]:
    """Return questions; the same for the same seed."""
    chance = _Chance(seed)
    return [chance.query() for _ in range(count)]
