"""Rules over the source: which modules may commit, collect from Spark, or read the text of an error; no JVM internals."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from siltstone import errors

SOURCE = Path(__file__).parents[2] / "src" / "siltstone"
TESTS = Path(__file__).parents[1]

COLLECTING = {"collect", "toPandas", "toArrow", "toLocalIterator", "take", "tail", "first", "head", "pandas_api"}
MAY_COLLECT = {
    ("spark/arrow_tasks.py", "answers"): "places of changes, names of files, counts, and a few thousand keys of a load",
    ("compaction/operations/fold_shuffle.py", "counts"): "two counts",
    ("compaction/operations/fold_shuffle.py", "matched"): "counts per file",
    ("compaction/operations/fold_log.py", "appended"): "counts per period and partition",
    ("dataset/load/partition_groups.py", "written_groups"): "the period and partition of each file",
    ("compaction/operations/cluster.py", "_bounds"): "63 bounds of each column that is clustered by",
    ("compaction/operations/fold_log.py", "_counted"): "counts per file",
    ("dataset/read/position_masks.py", "_joined"): "places of changed rows",
    ("dataset/load/row_validation.py", "bad_examples"): "three columns with their files for an error message",
    ("dataset/load/row_validation.py", "duplicate_examples"): "three keys for an error message",
    ("dataset/load/jdbc.py", "_bounds"): "the smallest and the largest value of one column",
    ("dataset/load/row_validation.py", "unread_examples"): "three rows for an error message",
    ("eventlog/spark_report.py", "_rows"): "the rows of a report, at most a thousand",
    ("query/spark_executor.py", "_rows"): "the rows of a query, at most max_rows",
    ("query/spark_executor.py", "_batches"): "the rows of a query that is answered as a stream",
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
    ("delta/entry_writer.py", "put_entry"),
    ("delta/table.py", "declare_invariants"),
    ("delta/object_store_table.py", "set_properties"),
    ("delta/object_store_table.py", "add"),
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
    """True for `table.take(...)` of Arrow, as opposed to Spark: recognized by our names for Arrow tables."""
    return isinstance(value, ast.Name | ast.Attribute) and ast.unparse(value) in {
        "rows",
        "table",
        "requested.table",
        "self.changes",
    }


def test_user_rows_are_collected_only_where_a_user_requests_them() -> None:
    found = {
        (module, function)
        for module, function, node, value in calls()
        if node.attr in COLLECTING and not is_arrow(value) and not module.startswith(("cli/", "demo"))
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
    assert ("delta/entry_writer.py", "put_entry") in found
    entry = "from siltstone.delta.entry_writer import"
    writers = [path for path in SOURCE.rglob("*.py") if entry in path.read_text()]
    assert sorted(writers) == [SOURCE / "delta" / name for name in ("object_store_table.py", "table.py")]


def test_no_module_uses_py4j_internals() -> None:
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


PRIVATE = re.compile(
    r"""from siltstone[\w.]* import (\([^)]*\b_[a-z][^)]*\)|.*\b_[a-z].*)|attr\([^,()]+, "_[a-z]|"siltstone[\w.]*\._[a-z]"""
    r"""|\b(lake|log|dataset|folded|fresh)\._(?!repr|replace)[a-z]""",
    re.IGNORECASE,
)


def test_only_one_test_module_reaches_behind_public_names() -> None:
    """Ruff's SLF001 finds private attributes in code. This finds private names in imports, in text and in child scripts."""
    found = {
        path.relative_to(TESTS).as_posix(): reached[0]
        for path in sorted(TESTS.rglob("*.py"))
        if path.name not in ("internals.py", "test_source_rules.py") and (reached := PRIVATE.search(path.read_text()))
    }
    assert found == {}
    assert PRIVATE.search((TESTS / "support" / "internals.py").read_text())


# ---- texts of errors -----------------------------------------------------------------------------------------------

MAY_READ_WORDS = {
    ("spark/errors.py", "is_missing_file"): "Spark's and Delta's words",
    ("spark/errors.py", "damage"): "Spark's words, and names of files",
    ("spark/errors.py", "names_data_file"): "names of files",
    ("spark/errors.py", "is_away"): "Spark's words",
    ("spark/errors.py", "is_cancelled"): "Spark's words",
    ("spark/errors.py", "leaves_end_unknown"): "Spark's words",
    ("spark/errors.py", "away"): "gRPC's words, for a message",
    ("spark/errors.py", "error_line"): "Spark's words, for a message",
    ("host/system_errors.py", "is_memory_failure"): "words of the system's loader",
    ("spark/arrow_tasks.py", "answers"): "names of errors in tracebacks of Spark's Python workers",
    ("dataset/load/jdbc.py", "readable_errors"): "the password, which a message must not show",
    ("eventlog/database.py", "_is_broken"): "SQLite's words",
    ("eventlog/queries.py", "_checksums"): "SQLite's words",
    ("query/hot_executor.py", "_why"): "a mark of ours in the words of DuckDB, for a message",
}
ERRORS = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
SEARCHING = {"startswith", "endswith", "find", "rfind", "index", "count", "partition", "rpartition"}
MATCHING = {"search", "match", "fullmatch", "findall", "finditer"}
PROSE = re.compile(r"[A-Za-z]{2,} .*[a-z]{2,}|[a-z]{2,}.* [A-Za-z]{2,}")


def error_names(function: ast.AST) -> set[str]:
    """Return the names that hold an exception in a function: caught ones, and arguments of such a type."""
    found = {node.name for node in ast.walk(function) if isinstance(node, ast.ExceptHandler) and node.name}
    for node in ast.walk(function):
        if isinstance(node, ast.arg) and node.annotation is not None:
            types = {one.id for one in ast.walk(node.annotation) if isinstance(one, ast.Name)}
            if any(one in ERRORS or one.endswith(("Error", "Exception")) for one in types):
                found.add(node.arg)
    return found


def holds_error_text(node: ast.AST, names: set[str], texts: set[str]) -> bool:
    """True if an expression contains the text of an exception: `str(error)`, `f"{error}"`, `error.args`, or a name for one."""
    for one in ast.walk(node) if names else ():
        match one:
            case ast.Call(func=ast.Name(id="str" | "repr"), args=[ast.Name(id=name)]) if name in names:
                return True
            case ast.FormattedValue(value=ast.Name(id=name)) if name in names:
                return True
            case ast.Attribute(value=ast.Name(id=name), attr="args") if name in names:
                return True
            case ast.Name(id=name) if name in texts:
                return True
    return False


def text_names(function: ast.AST, names: set[str]) -> set[str]:
    """Return the names in a function that hold the text of an exception, or parts of it."""
    texts: set[str] = set()
    while names:
        before = len(texts)
        for node in ast.walk(function):
            match node:
                case ast.Assign(value=value, targets=targets) if holds_error_text(value, names, texts):
                    pass
                case ast.NamedExpr(value=value, target=target) if holds_error_text(value, names, texts):
                    targets = [target]
                case ast.comprehension(iter=value, target=target) if holds_error_text(value, names, texts):
                    targets = [target]
                case _:
                    continue
            plain = [one for target in targets for one in getattr(target, "elts", [target])]
            texts |= {one.id for one in plain if isinstance(one, ast.Name)}
        if len(texts) == before:
            break
    return texts


def decisions_by_text(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield each place that searches or compares the text of an exception, or a literal of several words."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        names = error_names(function)
        texts = text_names(function, names)
        for node in ast.walk(function):
            match node:
                case ast.Compare(left=left, comparators=others) if not all(
                    isinstance(one, ast.Is | ast.IsNot) for one in node.ops
                ):
                    compared = [left, *others]
                case ast.Call(func=ast.Attribute(value=value, attr=method), args=args) if method in SEARCHING:
                    compared = [value, *args]
                case ast.Call(func=ast.Attribute(attr=method), args=args) if method in MATCHING:
                    compared = args
                case _:
                    continue
            prose = any(
                isinstance(one, ast.Constant) and isinstance(one.value, str) and PROSE.search(one.value)
                for part in compared
                for one in ast.walk(part)
            )
            if prose or any(holds_error_text(part, names, texts) for part in compared):
                yield function.name, ast.unparse(node)


def test_nothing_decides_by_the_text_of_our_own_errors() -> None:
    """Messages are for people and may be reworded. Programs use the type, the kind and the reason of an error."""
    found = {
        (path.relative_to(SOURCE).as_posix(), function): code
        for path in sorted(SOURCE.rglob("*.py"))
        for function, code in decisions_by_text(ast.parse(path.read_text()))
    }
    assert found.keys() - MAY_READ_WORDS.keys() == set(), {
        place: found[place] for place in found.keys() - MAY_READ_WORDS
    }
    assert MAY_READ_WORDS.keys() - found.keys() == set(), "an exception that nothing needs any more"


@pytest.mark.parametrize(
    "code",
    [
        "try: go()\n    except Conflict as error:\n        if 'altered' in str(error): raise",
        "try: go()\n    except Exception as error:\n        return any(mark in f'{error}' for mark in MARKS)",
        "try: go()\n    except Exception as error:\n        text = str(error).lower()\n        return text.startswith(MARK)",
        "try: go()\n    except Exception as error:\n        return str(error) == known",
        "try: go()\n    except Exception as error:\n        return [one for one in str(error).splitlines() if MARK.search(one)]",
        "return result['error'].startswith('Dataset gone: open')",
        "return 'is damaged: restore' in answer.error",
    ],
)
def test_a_decision_by_the_text_of_an_error_is_found(code: str) -> None:
    assert list(decisions_by_text(ast.parse(f"def f():\n    {code}\n")))


def test_only_foreign_errors_are_classified_by_their_text() -> None:
    """`evidence_of` omits the texts of our own errors, so no other function may add text to evidence."""
    makers = [
        path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if "FailureEvidence(" in path.read_text()
    ]
    assert makers == ["compaction/failures.py"]


def test_every_reason_is_used() -> None:
    source = "\n".join(path.read_text() for path in SOURCE.rglob("*.py") if path.name != "failures.py")
    assert [reason for reason in errors.Reason if f"Reason.{reason.name}" not in source] == []
