"""Line coverage per package, from the data of `make test-deep`: ``python -m tests.support.coverage_report``.

It fails below ``fail_under`` of ``pyproject.toml``, which applies to the whole.
"""

import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from coverage import Coverage

import siltstone

PACKAGE: Final = Path(siltstone.__file__).parent


def main() -> int:
    """Print the table and return the exit code."""
    coverage = Coverage()
    coverage.load()
    coverage.combine()  # children that ended after the tests
    lines: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    for path in sorted(PACKAGE.rglob("*.py")):
        _, statements, _, missing, _ = coverage.analysis2(str(path))
        package = path.parent.relative_to(PACKAGE.parent).as_posix().replace("/", ".")
        lines[package] += len(statements)
        missed[package] += len(missing)
    bar = float(coverage.get_option("report:fail_under") or 0)  # type: ignore[arg-type]
    for row in table(lines, missed):
        sys.stdout.write(f"{row}\n")
    total = covered(lines.total(), missed.total())
    if total < bar:
        sys.stderr.write(f"Line coverage is {total:.1f}%; it must be at least {bar:g}%.\n")
    return int(total < bar)


def table(lines: Counter[str], missed: Counter[str]) -> Iterable[str]:
    """Yield a line for each package, and a total."""
    yield f"{'package':<40}{'lines':>8}{'missed':>8}{'covered':>9}"
    for package in sorted(lines):
        yield f"{package:<40}{lines[package]:>8,}{missed[package]:>8,}{covered(lines[package], missed[package]):>8.1f}%"
    yield f"{'all':<40}{lines.total():>8,}{missed.total():>8,}{covered(lines.total(), missed.total()):>8.1f}%"


def covered(lines: int, missed: int) -> float:
    """Return the share of lines that were run, in percent; a package without lines is covered."""
    return 100 * (lines - missed) / lines if lines else 100.0


if __name__ == "__main__":
    sys.exit(main())
