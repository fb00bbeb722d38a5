"""Figures of a source tree, for reviews: ``python -m tests.support.source_figures [ROOT ...]``, one column per tree."""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

Function = ast.FunctionDef | ast.AsyncFunctionDef

UNCLEAR: Final = re.compile(
    r"\b([Ww]hoever|[Nn]obody|[Ss]omebody|[Aa]new|unless told|is none|so (?:many|long|much)|lets? go|told|said)\b"
)
"""Words that hide the role, the thing or the number."""


def figures(root: Path) -> dict[str, str]:
    """Return the figures of the tree at a root, by their names."""
    texts = [path.read_text() for path in sorted((root / "src").rglob("*.py"))]
    trees = [ast.parse(text) for text in texts]
    pages = [path.read_text() for path in root.rglob("*.md") if ".venv" not in path.parts]
    prose = [*pages, *(text for tree in trees for text in _docstrings(tree))]
    words = sum(len(text.split()) for text in prose)
    unclear = sum(len(UNCLEAR.findall(text)) for text in prose)
    classes = Counter(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return {
        "lines of src": f"{sum(len(text.splitlines()) for text in texts):,}",
        "modules": f"{len(texts):,}",
        "function-local imports of our own": f"{sum(map(_local_imports, trees)):,}",
        "private functions used once in their module": f"{sum(map(_used_once, trees)):,}",
        "of these with a body of at most 5 lines": f"{sum(_used_once(tree, at_most=5) for tree in trees):,}",
        "class names that exist more than once": f"{sum(count > 1 for count in classes.values()):,}",
        "unclear words in docstrings and docs, per 1,000": f"{1000 * unclear / words:.2f}",
        "longest line of Markdown": f"{max(len(line) for page in pages for line in page.splitlines()):,}",
    }


def _docstrings(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | Function) and (text := ast.get_docstring(node)):
            yield text


def _functions(tree: ast.Module) -> list[Function]:
    return [node for node in ast.walk(tree) if isinstance(node, Function)]


def _local_imports(tree: ast.Module) -> int:
    """Count import statements of siltstone inside functions."""
    lines: set[int] = set()
    for function in _functions(tree):
        for node in ast.walk(function):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if any(name.split(".")[0] == "siltstone" for name in names):
                lines.add(node.lineno)  # type: ignore[attr-defined]
    return len(lines)


def _used_once(tree: ast.Module, *, at_most: int | None = None) -> int:
    """Count undecorated private functions with a unique name and one use in their module."""
    uses: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            uses[node.id] += 1
        elif isinstance(node, ast.Attribute):
            uses[node.attr] += 1
    private = [function for function in _functions(tree) if re.match(r"_[^_]", function.name)]
    names = Counter(function.name for function in private)
    return sum(
        names[function.name] == uses[function.name] == 1
        and not function.decorator_list
        and (at_most is None or _body_lines(function) <= at_most)
        for function in private
    )


def _body_lines(function: Function) -> int:
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def main(roots: Sequence[str]) -> None:
    """Print a table."""
    columns = [figures(Path(root)) for root in roots or ["."]]
    for name in columns[0]:
        sys.stdout.write(f"{name:<50}{''.join(f'{column[name]:>12}' for column in columns)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
