"""A child that damages the files of a small lake, one kind after the other, and runs commands as a user without privileges."""

import codecs
import contextlib
import importlib
import io
import json
import os
import random
import shutil
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from siltstone.cli.app import main

NOBODY = 65534
PEOPLE = "crm.sales.people"
CLICKS = "web.eu.clicks"
COMMANDS = (
    ("list",),
    ("status",),
    ("head", PEOPLE),
    ("get", PEOPLE, "k3"),
    ("sql", f"SELECT count(*) FROM {PEOPLE}"),
    ("upsert", PEOPLE, "--row", '{"id": "new"}'),
    ("history", PEOPLE),
    ("compact", "--plan"),
    ("head", CLICKS),
)
LATE_MODULES = (
    "asyncio",
    "sqlalchemy.dialects.sqlite",
    "siltstone.eventlog.delta_backend",
    "siltstone.maintenance.service",
)
LATE_CODECS = ("unicode_escape", "utf-32-be", "utf-32-le", "utf-16-be", "utf-16-le", "latin-1", "idna")


def run(lake: Path, *arguments: str) -> tuple[int, str]:
    """Run a command in this process; return its exit code and standard error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["--lake", str(lake), *arguments])
    return code, err.getvalue()


def filled(lake: Path) -> None:
    """Create two datasets whose logs have a checkpoint and later entries."""
    run(lake, "create", PEOPLE, "--key", "id", "--schema", "id STRING NOT NULL, n BIGINT")
    run(lake, "create", CLICKS, "--time", "at", "--subject", "v", "--schema", "at TIMESTAMP, v STRING")
    for number in range(14):
        code, err = run(lake, "upsert", PEOPLE, "--row", json.dumps({"id": f"k{number}", "n": number}))
        assert not code, err
    run(lake, "append", CLICKS, "--row", '{"at": "2026-11-15T14:03:00Z", "v": "x"}')
    (lake / "silt.toml").write_text("fold_batches = 50\n")


def kinds(lake: Path) -> Iterator[Path]:
    """Yield one file of each kind: by its folder and the shape of its name."""
    files: dict[tuple[str, ...], Path] = {}
    for path in sorted(path for path in lake.rglob("*") if path.is_file()):
        parts = path.relative_to(lake).parts
        folder = [part for part in parts[:-1] if len(part) < 32]
        shape = path.name if len(path.name) < 20 else path.suffix + str("checkpoint" in path.name)
        files[*folder, shape] = path
    yield from files.values()


def damage(path: Path, how: str) -> None:
    """Damage a file."""
    content = path.read_bytes()
    match how:
        case "cut":
            path.write_bytes(content[: len(content) // 2])
        case "empty":
            path.write_bytes(b"")
        case "garbled":
            path.write_bytes(random.Random(7).randbytes(max(10, len(content))))
        case "zeros":
            path.write_bytes(bytes(len(content)))
        case "denied":
            path.chmod(0)
        case "folder":
            path.unlink()
            path.mkdir()
        case _:
            path.unlink()


def wrong(code: int, err: str, *, how: str) -> bool:
    """True if an output is not one line of ours, has control characters, or calls a denied file damaged."""
    line = err.removesuffix("\n")
    if not code:
        return False
    calls_it_damaged = how == "denied" and "Restore" in line and "not damaged" not in line
    return not line.isprintable() or not line or code not in range(2, 10) or calls_it_damaged


def drop_privileges(folder: Path) -> None:
    """Switch to a user without root's access, after all imports that need it."""
    for name in LATE_MODULES:
        importlib.import_module(name)
    for name in LATE_CODECS:
        codecs.lookup(name)
    warm = folder / "warm"
    filled(warm)
    for command in COMMANDS:
        run(warm, *command)
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def main_of_child(folder: Path, damages: list[str]) -> None:
    """Damage, run, and report wrong answers."""
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    (folder / "cache").mkdir(mode=0o777)
    (folder / "cache").chmod(0o777)
    drop_privileges(folder)
    os.environ["XDG_CACHE_HOME"] = str(folder / "own_cache")
    lake, whole = folder / "lake", folder / "whole"
    filled(lake)
    shutil.copytree(lake, whole)
    runs = refused = 0
    wrong_outputs: list[str] = []
    for path in list(kinds(lake)):
        for how in damages:
            shutil.rmtree(lake)
            shutil.copytree(whole, lake)
            damage(path, how)
            for command in COMMANDS:
                runs += 1
                try:
                    code, err = run(lake, *command)
                except BaseException:  # noqa: BLE001  # an uncaught exception is a finding
                    code, err = 1, traceback.format_exc()
                refused += code != 0
                if wrong(code, err, how=how):
                    wrong_outputs.append(f"{path.relative_to(lake)} {how} {command[0]}: {code} {err[-400:]!r}")
            if path.is_file():
                path.chmod(0o644)
    json.dump({"runs": runs, "refused": refused, "wrong": wrong_outputs}, sys.stdout)


if __name__ == "__main__":
    main_of_child(Path(sys.argv[1]), sys.argv[2].split(","))
