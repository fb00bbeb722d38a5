import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from siltstone.coordination.liveness import LivenessLock, is_live, sweep_dead

CHILD = """
import sys
from pathlib import Path
from siltstone.coordination.liveness import LivenessLock
owner = LivenessLock(Path(sys.argv[1]), "child")
print("here", flush=True)
sys.stdin.read()
"""


def test_an_owner_is_live_until_it_releases_its_lock(tmp_path: Path):
    assert not is_live(tmp_path, "a")
    with LivenessLock(tmp_path / "liveness", "a"):
        assert is_live(tmp_path / "liveness", "a")
        assert not is_live(tmp_path / "liveness", "b")
    assert not is_live(tmp_path / "liveness", "a")
    assert list((tmp_path / "liveness").iterdir()) == []


def test_a_second_release_is_harmless(tmp_path: Path):
    owner = LivenessLock(tmp_path, "a")
    owner.close()
    owner.close()
    assert not is_live(tmp_path, "a")


def test_a_liveness_check_does_not_acquire_the_lock(tmp_path: Path):
    with LivenessLock(tmp_path, "a"):
        assert [is_live(tmp_path, "a") for _ in range(3)] == [True, True, True]


def test_an_owner_in_another_process_is_live_until_it_is_killed(tmp_path: Path):
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "here\n"
        assert is_live(tmp_path, "child")
        assert sweep_dead(tmp_path) == 0
        child.send_signal(signal.SIGKILL)
        child.wait(10)
        assert not is_live(tmp_path, "child")
    assert (tmp_path / "child").exists(), "a crash leaves the empty file for the sweep"
    assert sweep_dead(tmp_path) == 1
    assert not (tmp_path / "child").exists()


def open_below(folder: Path) -> list[str]:
    """Return the open files below a folder. Other threads of this process open and close their own files."""
    opened = [os.path.realpath(path) for path in Path("/proc/self/fd").iterdir()]
    return [path for path in opened if path.startswith(str(folder.resolve()))]


def test_a_lock_that_the_file_system_refuses_leaves_no_open_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(_handle: int, _how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OSError, match=os.strerror(errno.ENOLCK)):
        LivenessLock(tmp_path, "a")
    assert open_below(tmp_path) == []


def test_a_release_that_cannot_delete_its_file_leaves_it_to_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(_path: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as read_only:
        lock = LivenessLock(tmp_path, "a")
        read_only.setattr(Path, "unlink", refuse)
        lock.close()
    assert not is_live(tmp_path, "a")
    assert sweep_dead(tmp_path) == 1


def test_a_sweep_deletes_locks_of_dead_owners_only(tmp_path: Path):
    (tmp_path / "dead").touch()
    with LivenessLock(tmp_path, "living"):
        assert sweep_dead(tmp_path) == 1
        assert is_live(tmp_path, "living")
    assert sweep_dead(tmp_path / "nothing") == 0


def test_a_sweep_between_creating_and_locking_a_file_does_not_hide_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The file exists for a moment without its lock. In that moment its owner looks dead."""
    real = fcntl.flock
    swept: list[int] = []

    def flock(handle: int, operation: int) -> None:
        if operation == fcntl.LOCK_EX and not swept:
            swept.append(0)
            swept[0] = sweep_dead(tmp_path)
        real(handle, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with LivenessLock(tmp_path, "a"):
        assert swept == [1]
        assert is_live(tmp_path, "a")


def test_no_descriptor_is_left_open(tmp_path: Path):
    def ours() -> list[str]:  # other threads of this process open and close their own files at the same time
        found = [os.path.realpath(path) for path in Path("/proc/self/fd").iterdir()]
        return [path for path in found if path.startswith(str(tmp_path.resolve()))]

    for number in range(20):
        with LivenessLock(tmp_path, str(number)):
            is_live(tmp_path, str(number))
            assert ours()
    assert ours() == []
