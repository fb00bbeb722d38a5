"""The Java virtual machine that Spark runs on: choice, size, start time and log output.

Terms:

* *home*: the folder of a Java installation. Spark 4 needs Java 17 or newer. It is tested with 17, so a 17 is preferred
  wherever there is a choice.
* *archive*: a memory image of the classes that an earlier run loaded (AppCDS). A JVM that maps it starts markedly faster. The
  first run *records* it: the JVM writes the image at exit, under a name of its own. The next start *promotes* a complete image
  to the name that every JVM reads. A crash in between leaves a partial file, which is never mapped and is removed after an
  hour. The JVM silently ignores an archive that does not fit.

`main` prints the home that would be used, for ``make setup``.
"""

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from siltstone.clock import SystemClock
from siltstone.errors import Unavailable

OLDEST_JAVA: Final = 17
PREFERRED_JAVA: Final = (17, 21)
JVM_FOLDERS: Final = (Path("/usr/lib/jvm"), Path("/Library/Java/JavaVirtualMachines"))

MEMORY_FLOOR_MB: Final = 1024
MEMORY_CAP_MB: Final = 8192

ARCHIVE_MAGIC: Final = (0xF00BABA8).to_bytes(4, sys.byteorder)
"""The first word of a dynamic archive. The JVM writes its header last, so the word also marks a complete archive."""
ARCHIVES_KEPT: Final = 4
"""Number of archives that are not deleted. Each takes some 100 MB; a machine rarely uses more than two environments."""
PARTIAL_KEPT_SECONDS: Final = 3600

END_SECONDS: Final = 5.0
"""Seconds until a JVM that received SIGTERM is killed. It removes its temporary files first."""
POLL_SECONDS: Final = 0.02

NOISE: Final = re.compile(rb"Using incubator modules|\[warning\]\[cds|VM warning: .*(CDS|[Ss]har|[Aa]rchive)")
"""Lines that a healthy JVM of Spark writes to standard error and that no user can act upon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """One Java installation."""

    home: Path
    version: str

    @property
    def major(self) -> int:
        """The major version: 17 for 17.0.15."""
        return int(self.version.split(".")[0])


def find_java(environment: Mapping[str, str] | None = None, folders: Iterable[Path] = JVM_FOLDERS) -> Java:
    """Return ``JAVA_HOME`` if it is new enough, otherwise the best of the PATH and the usual folders.

    The preferred versions come first, then the oldest suitable one.

    Raises:
        Unavailable: no Java 17 or newer was found.
    """
    environment = os.environ if environment is None else environment
    named = environment.get("JAVA_HOME")
    chosen = _java_at(Path(named)) if named else None
    if chosen is not None and chosen.major >= OLDEST_JAVA:
        return chosen
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    homes = [Path(on_path).resolve().parent.parent] if on_path else []
    for installed in [home for folder in folders if folder.is_dir() for home in sorted(folder.iterdir())]:
        homes += [installed, installed / "Contents" / "Home"]
    suitable = [java for home in homes if (java := _java_at(home)) and java.major >= OLDEST_JAVA]
    if not suitable:
        raise Unavailable(
            f"Spark needs Java {OLDEST_JAVA} or newer and none was found. Install openjdk-17-jre-headless "
            "(Fedora, RHEL: java-17-openjdk-headless; macOS: temurin@17), or set JAVA_HOME."
        )
    rank = {major: number for number, major in enumerate(PREFERRED_JAVA)}
    return min(suitable, key=lambda java: (rank.get(java.major, len(rank)), java.major))


def _java_at(home: Path) -> Java | None:
    """Read an installation's version from its ``release`` file, or run it; None if the folder is not an installation."""
    program = home / "bin" / "java"
    if not program.is_file():
        return None
    text = ""
    with suppress(OSError, UnicodeDecodeError):
        text = (home / "release").read_text()
    version_line = re.search(r'^JAVA_VERSION="([^"]+)"', text, re.MULTILINE)
    if not version_line:
        with suppress(OSError, subprocess.TimeoutExpired):
            run = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603
            version_line = re.search(r'version "([^"]+)"', run.stderr)
    if not version_line:
        return None
    version = version_line[1].removeprefix("1.")
    return Java(home=home, version=version) if version[:1].isdigit() else None


def fitted_memory_mb(machine_mb: int) -> int:
    """Return a third of the machine's memory, at least 1 GB and at most 8.

    A third leaves room for delta-rs, DuckDB and the page cache, which all work in parallel to the JVM.
    """
    return max(MEMORY_FLOOR_MB, min(MEMORY_CAP_MB, machine_mb // 3))


def archive_key(java: Java, *, role: str, class_path: Iterable[Path], spark: str) -> str:
    """Return the name of the matching archive. The JVM refuses one that was recorded with another Java or class path."""
    parts = [str(java.home), java.version, role, spark]
    for jar in class_path:
        parts += [str(jar), str(jar.stat().st_mtime_ns)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def archive_options(folder: Path, key: str) -> list[str]:
    """Return the JVM options that use the archive of this key, or record one; empty if neither is possible.

    Safe for many processes at once, because each records under its own name, and promotion is a rename.
    """
    clock = SystemClock()
    if any(os.environ.get(name) for name in ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR")):
        return []  # these variables add a folder to the class path, which an archive must not have
    archive = folder / f"{key}.jsa"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for part in sorted(folder.glob(f"{key}.*.part")):
            with suppress(FileNotFoundError):
                if archive.exists():
                    part.unlink()
                elif _is_complete(part):
                    part.rename(archive)
        _delete_old_archives(folder, now_seconds=clock.now().timestamp())
        if archive.is_file():
            os.utime(archive)
            return [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto"]
    except OSError:
        return []
    return [f"-XX:ArchiveClassesAtExit={folder / f'{key}.{clock.new_id()}.part'}"]


def _is_complete(part: Path) -> bool:
    with part.open("rb") as file:
        return file.read(len(ARCHIVE_MAGIC)) == ARCHIVE_MAGIC


def _delete_old_archives(folder: Path, *, now_seconds: float) -> None:
    """Delete recordings of crashed JVMs, and all archives except the last used ones."""
    with suppress(FileNotFoundError):
        for part in folder.glob("*.part"):
            if now_seconds - part.stat().st_mtime > PARTIAL_KEPT_SECONDS:
                part.unlink()
        archives = sorted(folder.glob("*.jsa"), key=lambda path: path.stat().st_mtime, reverse=True)
        for old in archives[ARCHIVES_KEPT:]:
            old.unlink()


class _JvmOutput:
    """State of `filtered_stderr`. Plain attributes, because the handler of Ctrl-C uses them: no locks there."""

    is_forwarded = True
    """Whether the lines of a JVM are forwarded."""
    shown: int | None = None
    """Inside a block, a descriptor of this process's own standard error."""


_output: Final = _JvmOutput()


@contextmanager
def filtered_stderr() -> Iterator[deque[str]]:
    """Give a JVM that is started inside the block a standard error without the known noise.

    All other lines are forwarded until the JVM ends, or until `end_children` ends it. Yields the last lines, for an error
    message. Two threads must not enter the block at the same time.
    """
    tail: deque[str] = deque(maxlen=20)
    _output.is_forwarded = True
    sys.stderr.flush()
    shown = os.dup(2)
    read_end, write_end = os.pipe()
    forward = threading.Thread(target=_forward, args=(read_end, shown, tail), name="jvm-stderr", daemon=True)
    forward.start()
    _output.shown = shown
    os.dup2(write_end, 2)
    if not _output.is_forwarded:  # Ctrl-C in between: this process still reports it
        os.dup2(shown, 2)
    os.close(write_end)
    try:
        yield tail
    except BaseException:
        _show_again(shown)
        forward.join(timeout=1)  # a failed JVM closes its end; wait for its last lines
        raise
    _show_again(shown)


def restore_stderr() -> None:
    """Give this process its own standard error back, even while another thread starts a JVM, and drop that of the JVM.

    In this order, so that a thread that enters `filtered_stderr` in between restores it by itself.
    """
    _output.is_forwarded = False
    if (shown := _output.shown) is not None:
        os.dup2(shown, 2)


def _show_again(shown: int) -> None:
    """Give this process its own standard error back."""
    os.dup2(shown, 2)
    _output.shown = None


def _forward(read_end: int, shown: int, tail: deque[str]) -> None:
    with os.fdopen(read_end, "rb") as lines:
        for line in lines:
            if not NOISE.search(line):
                if _output.is_forwarded:
                    with suppress(OSError):
                        os.write(shown, line)
                tail.append(line.decode(errors="replace").rstrip())


def children() -> set[int]:
    """Return the process ids of this process's children, as far as the system reports them."""
    # Read by hand, not by psutil: the handler of Ctrl-C calls this, and a signal handler must not import a module.
    processes: set[int] = set()
    with suppress(OSError):
        for task in Path("/proc/self/task").iterdir():
            processes |= {int(child) for child in (task / "children").read_text().split()}
    return processes


def end_children(spared: Iterable[int] = ()) -> None:
    """Send SIGTERM to this process's children, wait a little, and kill those that still run.

    A JVM that ends under load reports the exceptions of its own threads. From now on its standard error is dropped.
    """
    restore_stderr()
    remaining = children() - set(spared)
    _signal(remaining, signal.SIGTERM)
    deadline = time.monotonic() + END_SECONDS
    while remaining and time.monotonic() < deadline:
        remaining = {child for child in remaining if _runs(child)}
        time.sleep(POLL_SECONDS)
    _signal(remaining, signal.SIGKILL)


def is_alive(process: int) -> bool:
    """Return whether a process exists. A process that has ended and was not waited for still exists."""
    with suppress(PermissionError):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return False
    return True


def ended_with(child: int) -> int | None:
    """Return a child's exit code, or the negative number of the signal that killed it. Does not reap the child.

    None while it runs, or if the system does not report it.
    """
    status = None
    if hasattr(os, "waitid"):
        with suppress(ChildProcessError):
            status = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if status is None:
        return None
    return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status


def _signal(processes: Iterable[int], number: signal.Signals) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)


def _runs(child: int) -> bool:
    try:
        return os.waitpid(child, os.WNOHANG) == (0, 0)
    except ChildProcessError:
        return False


def main() -> None:
    """Print the home that would be used; exit with code 5 if no Java is found."""
    try:
        home = find_java().home
    except Unavailable as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
    sys.stdout.write(f"{home}\n")
