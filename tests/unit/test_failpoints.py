import os
import re
import signal
import subprocess
import sys

import pytest

from siltstone import failpoints

NAME = "fold.before_commit"


def reached(environment: str, code: str = "") -> int:
    program = f"from siltstone.failpoints import reach; reach({NAME!r}); {code}"
    env = os.environ | {"SILT_FAILPOINT": environment}
    return subprocess.run([sys.executable, "-c", program], env=env, check=False, capture_output=True).returncode


def test_a_fail_point_that_is_not_armed_does_nothing():
    failpoints.reach(NAME)


def test_an_armed_fail_point_runs_its_action_inside_the_block_only():
    seen: list[str] = []
    with failpoints.arm(NAME, seen.append):
        failpoints.reach(NAME)
    failpoints.reach(NAME)
    assert seen == [NAME]


def test_other_fail_points_run_no_action():
    seen: list[str] = []
    with failpoints.arm(NAME, seen.append):
        failpoints.reach("fold.after_commit")
    assert seen == []


def test_raise_looks_like_a_failing_disk():
    with failpoints.arm(NAME, "raise"), pytest.raises(OSError, match=NAME):
        failpoints.reach(NAME)


def test_a_count_chooses_which_reach_acts():
    seen: list[str] = []
    counts: list[int] = []
    with failpoints.arm(NAME, seen.append, count=3):
        for _turn in range(5):
            failpoints.reach(NAME)
            counts.append(len(seen))
    assert counts == [0, 0, 1, 1, 1]


def test_an_unknown_fail_point_cannot_be_armed():
    with pytest.raises(ValueError, match=r"fold\.nowhere"), failpoints.arm("fold.nowhere", "raise"):
        pass


@pytest.mark.parametrize("text", ["fold.nowhere:kill", f"{NAME}:explode"])
def test_the_environment_is_checked(text: str):
    with pytest.raises(ValueError, match=re.escape(text)):
        failpoints.arm_from_environment(text)


def test_a_child_is_killed_as_by_a_crash():
    assert reached(f"{NAME}:kill") == -signal.SIGKILL


def test_a_child_survives_until_the_counted_reach():
    assert reached(f"{NAME}:kill:2") == 0
    assert reached(f"{NAME}:kill:2", f"reach({NAME!r})") == -signal.SIGKILL
