"""Rules over the source: who may commit, what may leave Spark, and that nobody reaches into the JVM."""

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "siltstone"

COLLECTING = {"collect", "toPandas", "toArrow", "toLocalIterator", "take", "tail", "first", "head", "pandas_api"}
MAY_COLLECT = {
    ("dataset/tasks.py", "answers"): "places of changes, names of files, counts, and a few thousand keys of a load",
    ("compaction/shuffled.py", "counts"): "two counts",
    ("compaction/shuffled.py", "matched"): "counts per file",
    ("compaction/log_fold.py", "appended"): "counts per period and partition",
    ("dataset/groups.py", "written_groups"): "the period and partition of each file",
    ("compaction/cluster.py", "_bounds"): "63 bounds of each column that is clustered by",
    ("compaction/log_fold.py", "_counted"): "counts per file",
    ("dataset/positions.py", "_joined"): "places of changed rows",
    ("dataset/judged.py", "bad_examples"): "three columns with their files for an error message",
    ("dataset/judged.py", "duplicate_examples"): "three keys for an error message",
    ("dataset/jdbc.py", "_bounds"): "the smallest and the largest value of one column",
    ("dataset/judged.py", "unread_examples"): "three rows for an error message",
    ("eventlog/spark_view.py", "_shown"): "the rows of a report, at most a thousand",
    ("query/run.py", "_rows"): "the rows of a query, at most max_rows",
    ("query/stream.py", "batches_of"): "the rows of a query that is answered as a stream",
}
COMMITTING = {
    "create_write_transaction",
    "set_table_properties",
    "write_deltalake",
    "optimize",
    "merge",
    "restore",
    "alter",
    "link",
}
MAY_COMMIT = {
    ("storage/entry.py", "put_entry"),
    ("storage/table.py", "declare_invariants"),
    ("storage/object_table.py", "set_properties"),
    ("storage/object_table.py", "add"),
}


def calls() -> Iterator[tuple[str, str, ast.Attribute, ast.AST]]:
    """Yield every attribute in the source with its module and function."""
    for path in sorted(SOURCE.rglob("*.py")):
        module = path.relative_to(SOURCE).as_posix()
        stack: list[tuple[ast.AST, str]] = [(ast.parse(path.read_text()), "")]
        while stack:
            node, function = stack.pop()
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                function = node.name
            if isinstance(node, ast.Attribute):
                yield module, function, node, node.value
            stack.extend((child, function) for child in ast.iter_child_nodes(node))


def is_arrow(value: ast.AST) -> bool:
    """`table.take(...)` of Arrow, not of Spark: our names for Arrow tables."""
    return isinstance(value, ast.Name | ast.Attribute) and ast.unparse(value) in {"rows", "table", "self.changes"}


def is_lease(node: ast.Attribute) -> bool:
    """`leases.take(...)` takes a lease, no rows."""
    return node.attr == "take" and ast.unparse(node.value) in {"self", "self._leases"}


def test_user_rows_are_collected_only_where_a_user_asked_for_them() -> None:
    found = {
        (module, function)
        for module, function, node, value in calls()
        if node.attr in COLLECTING
        and not is_arrow(value)
        and not is_lease(node)
        and not module.startswith(("cli/", "demo"))
    }
    assert found <= set(MAY_COLLECT), found - set(MAY_COLLECT)
    assert found, "the rule finds nothing, so it can protect nothing"


def test_only_the_commit_path_commits() -> None:
    found = {
        (module, function)
        for module, function, node, _ in calls()
        if node.attr in COMMITTING
        and not module.startswith("cli/")  # there is no Delta table there, but `Dataset.alter`
    }
    assert found <= MAY_COMMIT, found - MAY_COMMIT
    assert ("storage/entry.py", "put_entry") in found
    entry = "from siltstone.storage.entry import"
    writers = [path for path in SOURCE.rglob("*.py") if entry in path.read_text()]
    assert sorted(writers) == [SOURCE / "storage" / name for name in ("object_table.py", "table.py")]


def test_nobody_reaches_into_the_jvm() -> None:
    assert [
        (module, node.attr) for module, _, node, _ in calls() if node.attr in {"_jvm", "_jsc", "_jdf", "_jsparkSession"}
    ] == []


def names_searched_in_loops(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of comprehensions that search `x.names` or `x.column_names` for each item.

    Arrow builds that list at every access, so the work grows with the square of the columns.
    """
    for node in ast.walk(tree):
        if not isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            continue
        items: list[ast.AST] = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        for inner in ast.walk(ast.Module([*items, *(test for loop in node.generators for test in loop.ifs)], [])):  # type: ignore[list-item]
            if isinstance(inner, ast.Compare) and isinstance(inner.ops[0], ast.In | ast.NotIn):
                [searched] = inner.comparators
                if isinstance(searched, ast.Attribute) and searched.attr in {"names", "column_names"}:
                    yield inner.lineno


def test_no_comprehension_searches_a_list_of_columns_for_each_column() -> None:
    found = {
        f"{path.relative_to(SOURCE).as_posix()}:{line}"
        for path in sorted(SOURCE.rglob("*.py"))
        for line in names_searched_in_loops(ast.parse(path.read_text()))
    }
    assert found == set()
