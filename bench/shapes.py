"""A shop: customers, orders and their lines, parts, suppliers and their offers; and 22 queries of decision support about it.

The questions have the shapes of the standard benchmark (pricing summary, cheapest supplier, market share, promotion, waiting orders
and so on) in our own words. `{place}` stands for the catalog and schema of the tables.
"""

import datetime
import decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

NATIONS: Final = (
    "Arboria",
    "Belmar",
    "Cantabria",
    "Dorsia",
    "Elbonia",
    "Ferenia",
    "Galdor",
    "Hestia",
    "Islandia",
    "Jorvik",
)
REGIONS: Final = ("north", "south", "east")
SEGMENTS: Final = ("bikes", "boats", "houses", "gardens")
KINDS: Final = ("small brass", "large brass", "small tin", "promo tin", "promo steel", "large copper")
BOXES: Final = ("bag", "crate", "drum", "tin")
MODES: Final = ("air", "rail", "road", "sea", "mail")
PRIORITIES: Final = ("1-now", "2-soon", "3-later", "4-some day")
FIRST_DAY: Final = datetime.date(2020, 1, 1)
DAYS: Final = 2000
KEYS: Final = {
    "nations": ["nation_id"],
    "suppliers": ["supplier_id"],
    "customers": ["customer_id"],
    "parts": ["part_id"],
    "offers": ["part_id", "supplier_id"],
    "orders": ["order_id"],
    "lines": ["order_id", "line"],
}
MONEY: Final = pa.decimal128(12, 2)
SHARE: Final = pa.decimal128(4, 2)


def tables(lines: int, *, seed: int = 5) -> dict[str, pa.Table]:
    """Return the shop's tables, with about this number of order lines."""
    chance = np.random.default_rng(seed)
    orders = max(lines // 4, 8)
    customers, parts, suppliers = max(orders // 10, 8), max(lines // 30, 8), max(lines // 600, 6)
    found = {
        "nations": _nations(),
        "suppliers": _suppliers(suppliers, chance),
        "customers": _customers(customers, chance),
        "parts": _parts(parts, chance),
        "offers": _offers(parts, suppliers, chance),
        "orders": _orders(orders, customers, chance),
    }
    found["lines"] = _lines(lines, orders, parts, suppliers, chance)
    return found


def _pick(values: tuple[str, ...], count: int, chance: np.random.Generator) -> pa.Array:
    return pa.array(np.array(values, dtype=object)[chance.integers(0, len(values), count)].tolist(), pa.string())


def _cents(low: int, high: int, count: int, chance: np.random.Generator, kind: pa.DataType = MONEY) -> pa.Array:
    cents = pa.array(chance.integers(low, high, count), pa.int64())
    return pc.multiply(cents.cast(pa.decimal128(19, 0)), pa.scalar(decimal.Decimal("0.01"))).cast(kind)


def _days(low: int, high: int, count: int, chance: np.random.Generator) -> np.ndarray[Any, Any]:
    return chance.integers(low, high, count) + (FIRST_DAY - datetime.date(1970, 1, 1)).days


def _dates(days: np.ndarray[Any, Any]) -> pa.Array:
    return pa.array(days.astype("int32")).cast(pa.date32())


def _named(word: str, numbers: np.ndarray[Any, Any]) -> pa.Array:
    return pa.array([f"{word} {number:06d}" for number in numbers], pa.string())


def _nations() -> pa.Table:
    numbers = list(range(len(NATIONS)))
    regions = [REGIONS[number % len(REGIONS)] for number in numbers]
    return pa.table({"nation_id": pa.array(numbers, pa.int32()), "name": list(NATIONS), "region": regions})


def _suppliers(count: int, chance: np.random.Generator) -> pa.Table:
    ids = np.arange(count)
    notes = ["late, complaints" if number % 7 == 0 else "fine" for number in ids]
    return pa.table(
        {
            "supplier_id": pa.array(ids, pa.int64()),
            "name": _named("supplier", ids),
            "nation_id": pa.array(chance.integers(0, len(NATIONS), count), pa.int32()),
            "balance": _cents(-99_999, 999_999, count, chance),
            "note": notes,
        }
    )


def _customers(count: int, chance: np.random.Generator) -> pa.Table:
    ids = np.arange(count)
    phones = [f"{10 + number % 9}-{number:07d}" for number in ids]
    return pa.table(
        {
            "customer_id": pa.array(ids, pa.int64()),
            "name": _named("customer", ids),
            "nation_id": pa.array(chance.integers(0, len(NATIONS), count), pa.int32()),
            "phone": phones,
            "balance": _cents(-99_999, 999_999, count, chance),
            "segment": _pick(SEGMENTS, count, chance),
        }
    )


def _parts(count: int, chance: np.random.Generator) -> pa.Table:
    ids = np.arange(count)
    colours = ("green", "forest", "red", "blue")
    names = [f"{colours[number % len(colours)]} part {number}" for number in ids]
    return pa.table(
        {
            "part_id": pa.array(ids, pa.int64()),
            "name": names,
            "brand": pa.array([f"brand {number}" for number in chance.integers(1, 6, count)], pa.string()),
            "kind": _pick(KINDS, count, chance),
            "size": pa.array(chance.integers(1, 51, count), pa.int32()),
            "box": _pick(BOXES, count, chance),
            "list_price": _cents(90_000, 200_000, count, chance),
        }
    )


def _offers(parts: int, suppliers: int, chance: np.random.Generator) -> pa.Table:
    part = np.repeat(np.arange(parts), 3)
    supplier = (part * 7 + np.tile(np.arange(3), parts)) % suppliers
    count = len(part)
    return pa.table(
        {
            "part_id": pa.array(part, pa.int64()),
            "supplier_id": pa.array(supplier, pa.int64()),
            "stock": pa.array(chance.integers(1, 10_000, count), pa.int32()),
            "cost": _cents(100, 100_000, count, chance),
        }
    )


def _orders(count: int, customers: int, chance: np.random.Generator) -> pa.Table:
    ids = np.arange(count)
    notes = ["special requests" if number % 11 == 0 else "plain" for number in ids]
    return pa.table(
        {
            "order_id": pa.array(ids, pa.int64()),
            "customer_id": pa.array(chance.integers(0, customers * 2 // 3 + 1, count), pa.int64()),
            "status": _pick(("F", "O", "P"), count, chance),
            "total": _cents(100_000, 40_000_000, count, chance),
            "ordered": _dates(_days(0, DAYS, count, chance)),
            "priority": _pick(PRIORITIES, count, chance),
            "note": notes,
        }
    )


def _lines(count: int, orders: int, parts: int, suppliers: int, chance: np.random.Generator) -> pa.Table:
    order = np.arange(count) % orders
    shipped = _days(1, DAYS + 100, count, chance)
    part = chance.integers(0, parts, count)
    return pa.table(
        {
            "order_id": pa.array(order, pa.int64()),
            "line": pa.array(np.arange(count) // orders, pa.int32()),
            "part_id": pa.array(part, pa.int64()),
            "supplier_id": pa.array((part * 7 + chance.integers(0, 3, count)) % suppliers, pa.int64()),
            "quantity": _cents(100, 5_000, count, chance),
            "price": _cents(10_000, 9_000_000, count, chance),
            "discount": _cents(0, 11, count, chance, SHARE),
            "tax": _cents(0, 9, count, chance, SHARE),
            "returned": _pick(("R", "A", "N"), count, chance),
            "state": _pick(("O", "F"), count, chance),
            "shipped": _dates(shipped),
            "promised": _dates(shipped + chance.integers(-20, 40, count)),
            "received": _dates(shipped + chance.integers(1, 31, count)),
            "mode": _pick(MODES, count, chance),
        }
    )


SHAPES: Final[dict[str, str]] = {
    "pricing summary": """
        SELECT returned, state, sum(quantity) AS quantity, sum(price) AS price, sum(price * (1 - discount)) AS discounted,
               sum(price * (1 - discount) * (1 + tax)) AS charged, avg(quantity) AS mean_quantity, avg(price) AS mean_price,
               avg(discount) AS mean_discount, count(*) AS lines
        FROM {place}.lines WHERE shipped <= DATE '2025-09-01' - INTERVAL 90 DAY
        GROUP BY returned, state ORDER BY returned, state""",
    "cheapest supplier": """
        SELECT s.balance, s.name AS supplier, n.name AS nation, p.part_id
        FROM {place}.parts p JOIN {place}.offers o ON p.part_id = o.part_id
        JOIN {place}.suppliers s ON s.supplier_id = o.supplier_id JOIN {place}.nations n ON n.nation_id = s.nation_id
        WHERE p.kind LIKE '%brass' AND n.region = 'north' AND o.cost = (
            SELECT min(o2.cost) FROM {place}.offers o2 JOIN {place}.suppliers s2 ON s2.supplier_id = o2.supplier_id
            JOIN {place}.nations n2 ON n2.nation_id = s2.nation_id WHERE o2.part_id = p.part_id AND n2.region = 'north')
        ORDER BY s.balance DESC, n.name, s.name, p.part_id LIMIT 100""",
    "orders still to ship": """
        SELECT l.order_id, sum(l.price * (1 - l.discount)) AS revenue, o.ordered
        FROM {place}.customers c JOIN {place}.orders o ON c.customer_id = o.customer_id JOIN {place}.lines l ON l.order_id = o.order_id
        WHERE c.segment = 'boats' AND o.ordered < '2023-03-15' AND l.shipped > '2023-03-15'
        GROUP BY l.order_id, o.ordered ORDER BY revenue DESC, o.ordered, l.order_id LIMIT 10""",
    "order priorities": """
        SELECT priority, count(*) AS orders FROM {place}.orders o
        WHERE ordered >= '2021-07-01' AND ordered < DATE '2021-07-01' + INTERVAL 3 MONTH
          AND EXISTS (SELECT 1 FROM {place}.lines l WHERE l.order_id = o.order_id AND l.promised < l.received)
        GROUP BY priority ORDER BY priority""",
    "local suppliers": """
        SELECT n.name, sum(l.price * (1 - l.discount)) AS revenue
        FROM {place}.customers c, {place}.orders o, {place}.lines l, {place}.suppliers s, {place}.nations n
        WHERE c.customer_id = o.customer_id AND l.order_id = o.order_id AND l.supplier_id = s.supplier_id
          AND c.nation_id = s.nation_id AND s.nation_id = n.nation_id AND n.region = 'south' AND year(o.ordered) = 2022
        GROUP BY n.name ORDER BY revenue DESC, n.name""",
    "revenue forecast": """
        SELECT sum(price * discount) AS revenue FROM {place}.lines
        WHERE shipped BETWEEN '2021-01-01' AND '2021-12-31' AND discount BETWEEN 0.05 AND 0.07 AND quantity < 24""",
    "trade between nations": """
        SELECT supplying, buying, year, sum(volume) AS volume FROM (
            SELECT n1.name AS supplying, n2.name AS buying, year(l.shipped) AS year, l.price * (1 - l.discount) AS volume
            FROM {place}.suppliers s JOIN {place}.lines l ON s.supplier_id = l.supplier_id
            JOIN {place}.orders o ON o.order_id = l.order_id JOIN {place}.customers c ON c.customer_id = o.customer_id
            JOIN {place}.nations n1 ON n1.nation_id = s.nation_id JOIN {place}.nations n2 ON n2.nation_id = c.nation_id
            WHERE (n1.name = 'Belmar' AND n2.name = 'Dorsia') OR (n1.name = 'Dorsia' AND n2.name = 'Belmar')) AS shipping
        GROUP BY supplying, buying, year ORDER BY supplying, buying, year""",
    "market share": """
        SELECT year, CAST(sum(CASE WHEN nation = 'Elbonia' THEN volume ELSE 0 END) AS DOUBLE) / CAST(sum(volume) AS DOUBLE) AS share
        FROM (SELECT year(o.ordered) AS year, l.price * (1 - l.discount) AS volume, n2.name AS nation
              FROM {place}.parts p JOIN {place}.lines l ON p.part_id = l.part_id JOIN {place}.suppliers s ON s.supplier_id = l.supplier_id
              JOIN {place}.orders o ON o.order_id = l.order_id JOIN {place}.customers c ON c.customer_id = o.customer_id
              JOIN {place}.nations n1 ON n1.nation_id = c.nation_id JOIN {place}.nations n2 ON n2.nation_id = s.nation_id
              WHERE n1.region = 'east' AND p.kind = 'promo tin') all_nations
        GROUP BY year ORDER BY year""",
    "profit by nation and year": """
        SELECT nation, year, sum(amount) AS profit
        FROM (SELECT n.name AS nation, year(o.ordered) AS year, l.price * (1 - l.discount) - f.cost * l.quantity AS amount
              FROM {place}.parts p JOIN {place}.lines l ON p.part_id = l.part_id JOIN {place}.suppliers s ON s.supplier_id = l.supplier_id
              JOIN {place}.offers f ON f.supplier_id = l.supplier_id AND f.part_id = l.part_id
              JOIN {place}.orders o ON o.order_id = l.order_id JOIN {place}.nations n ON n.nation_id = s.nation_id
              WHERE p.name LIKE '%green%') profits
        GROUP BY nation, year ORDER BY nation, year DESC""",
    "returned goods": """
        SELECT c.customer_id, c.name, sum(l.price * (1 - l.discount)) AS lost, c.balance, n.name AS nation, c.phone
        FROM {place}.customers c JOIN {place}.orders o ON c.customer_id = o.customer_id JOIN {place}.lines l ON l.order_id = o.order_id
        JOIN {place}.nations n ON c.nation_id = n.nation_id
        WHERE o.ordered >= '2022-10-01' AND o.ordered < '2023-01-01' AND l.returned = 'R'
        GROUP BY c.customer_id, c.name, c.balance, c.phone, n.name ORDER BY lost DESC, c.customer_id LIMIT 20""",
    "important stock": """
        SELECT o.part_id, sum(o.cost * o.stock) AS value
        FROM {place}.offers o JOIN {place}.suppliers s ON o.supplier_id = s.supplier_id JOIN {place}.nations n ON s.nation_id = n.nation_id
        WHERE n.region = 'north' GROUP BY o.part_id
        HAVING sum(o.cost * o.stock) > (SELECT sum(o2.cost * o2.stock) * 0.0001 FROM {place}.offers o2)
        ORDER BY value DESC, o.part_id""",
    "shipping modes": """
        SELECT l.mode, sum(CASE WHEN o.priority IN ('1-now', '2-soon') THEN 1 ELSE 0 END) AS high,
               sum(CASE WHEN o.priority NOT IN ('1-now', '2-soon') THEN 1 ELSE 0 END) AS low
        FROM {place}.orders o JOIN {place}.lines l ON o.order_id = l.order_id
        WHERE l.mode IN ('mail', 'sea') AND l.promised < l.received AND l.shipped < l.promised AND year(l.received) = 2022
        GROUP BY l.mode ORDER BY l.mode""",
    "orders per customer": """
        SELECT orders, count(*) AS customers FROM (
            SELECT c.customer_id, count(o.order_id) AS orders FROM {place}.customers c
            LEFT JOIN {place}.orders o ON c.customer_id = o.customer_id AND o.note NOT LIKE '%special%requests%'
            GROUP BY c.customer_id) AS counted
        GROUP BY orders ORDER BY customers DESC, orders DESC""",
    "effect of a promotion": """
        SELECT 100 * CAST(sum(CASE WHEN p.kind LIKE 'promo%' THEN l.price * (1 - l.discount) ELSE 0 END) AS DOUBLE)
               / CAST(sum(l.price * (1 - l.discount)) AS DOUBLE) AS promoted
        FROM {place}.lines l JOIN {place}.parts p ON l.part_id = p.part_id
        WHERE l.shipped >= '2022-09-01' AND l.shipped < DATE '2022-09-01' + INTERVAL 1 MONTH""",
    "top supplier": """
        WITH revenue AS (SELECT supplier_id, sum(price * (1 - discount)) AS total FROM {place}.lines
                         WHERE shipped >= '2022-01-01' AND shipped < DATE '2022-01-01' + INTERVAL 3 MONTH GROUP BY supplier_id)
        SELECT s.supplier_id, s.name, r.total FROM {place}.suppliers s JOIN revenue r ON s.supplier_id = r.supplier_id
        WHERE r.total = (SELECT max(total) FROM revenue) ORDER BY s.supplier_id""",
    "suppliers of parts": """
        SELECT p.brand, p.kind, p.size, count(DISTINCT o.supplier_id) AS suppliers
        FROM {place}.offers o JOIN {place}.parts p ON p.part_id = o.part_id
        WHERE p.brand <> 'brand 4' AND p.kind NOT LIKE 'promo%' AND p.size IN (3, 9, 14, 19, 23, 36, 45, 49)
          AND o.supplier_id NOT IN (SELECT supplier_id FROM {place}.suppliers WHERE note LIKE '%complaints%')
        GROUP BY p.brand, p.kind, p.size ORDER BY suppliers DESC, p.brand, p.kind, p.size""",
    "small orders": """
        SELECT CAST(sum(l.price) AS DOUBLE) / 7 AS yearly FROM {place}.lines l JOIN {place}.parts p ON p.part_id = l.part_id
        WHERE p.brand = 'brand 2' AND p.box = 'crate'
          AND l.quantity < (SELECT avg(l2.quantity) FROM {place}.lines l2 WHERE l2.part_id = p.part_id)""",
    "large orders": """
        SELECT c.name, c.customer_id, o.order_id, o.ordered, o.total, sum(l.quantity) AS quantity
        FROM {place}.customers c JOIN {place}.orders o ON c.customer_id = o.customer_id JOIN {place}.lines l ON o.order_id = l.order_id
        WHERE o.order_id IN (SELECT order_id FROM {place}.lines GROUP BY order_id HAVING sum(quantity) > 120)
        GROUP BY c.name, c.customer_id, o.order_id, o.ordered, o.total ORDER BY o.total DESC, o.ordered, o.order_id LIMIT 100""",
    "discounted revenue": """
        SELECT sum(l.price * (1 - l.discount)) AS revenue FROM {place}.lines l JOIN {place}.parts p ON p.part_id = l.part_id
        WHERE (p.brand = 'brand 1' AND p.box IN ('bag', 'tin') AND l.quantity BETWEEN 1 AND 11 AND p.size BETWEEN 1 AND 15)
           OR (p.brand = 'brand 2' AND p.box IN ('crate', 'drum') AND l.quantity BETWEEN 10 AND 20 AND p.size BETWEEN 1 AND 25)
           OR (p.brand = 'brand 3' AND p.box = 'drum' AND l.mode IN ('air', 'rail') AND p.size < 40)""",
    "parts in excess": """
        SELECT s.name, s.supplier_id FROM {place}.suppliers s JOIN {place}.nations n ON s.nation_id = n.nation_id
        WHERE s.supplier_id IN (
            SELECT o.supplier_id FROM {place}.offers o
            WHERE o.part_id IN (SELECT part_id FROM {place}.parts WHERE startswith(name, 'forest'))
              AND o.stock > (SELECT sum(l.quantity) FROM {place}.lines l WHERE l.part_id = o.part_id AND l.supplier_id = o.supplier_id))
          AND n.region = 'north' ORDER BY s.name""",
    "suppliers who kept orders waiting": """
        SELECT s.name, count(*) AS waited FROM {place}.suppliers s JOIN {place}.lines l1 ON s.supplier_id = l1.supplier_id
        JOIN {place}.orders o ON o.order_id = l1.order_id JOIN {place}.nations n ON n.nation_id = s.nation_id
        WHERE o.status = 'F' AND l1.received > l1.promised AND n.region = 'south'
          AND EXISTS (SELECT 1 FROM {place}.lines l2 WHERE l2.order_id = l1.order_id AND l2.supplier_id <> l1.supplier_id)
          AND NOT EXISTS (SELECT 1 FROM {place}.lines l3 WHERE l3.order_id = l1.order_id AND l3.supplier_id <> l1.supplier_id
                          AND l3.received > l3.promised)
        GROUP BY s.name ORDER BY waited DESC, s.name LIMIT 100""",
    "customers without orders": """
        SELECT code, count(*) AS customers, sum(balance) AS balance FROM (
            SELECT left(c.phone, 2) AS code, c.balance FROM {place}.customers c
            WHERE left(c.phone, 2) IN ('11', '13', '15', '17') AND c.balance > (
                SELECT avg(c2.balance) FROM {place}.customers c2 WHERE c2.balance > 0.00 AND left(c2.phone, 2) IN ('11', '13', '15', '17'))
              AND NOT EXISTS (SELECT 1 FROM {place}.orders o WHERE o.customer_id = c.customer_id)) AS sleeping
        GROUP BY code ORDER BY code""",
}
