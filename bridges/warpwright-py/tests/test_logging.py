"""WARPWRIGHT_LOG, which the package reads when it is imported."""

import os
import subprocess
import sys

RELU = "import numpy, warpwright; warpwright.relu(numpy.array([-1.0, 2.0], dtype=numpy.float32)); warpwright.relu(numpy.ones(2, numpy.float32))"


def run(log):
    environment = {name: value for name, value in os.environ.items() if name != "WARPWRIGHT_LOG"}
    if log is not None:
        environment["WARPWRIGHT_LOG"] = log
    command = [sys.executable, "-c", RELU]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True)


def test_events_are_printed_when_they_are_asked_for():
    assert run(None).stderr == ""
    ran = run("warpwright=debug")
    assert ran.stdout == ""
    lines = ran.stderr.splitlines()
    launches = [line for line in lines if "warpwright::launch: launch" in line]
    assert len(launches) == 2, ran.stderr
    assert all('operation{op="relu" direction="forward"}' in line and 'kernel="relu_f32' in line for line in launches)
    assert sum("warpwright::compile: compiled" in line for line in lines) == 1, ran.stderr
    assert any("warpwright::plan: planned" in line for line in lines), ran.stderr


def test_a_wrong_filter_is_a_warning():
    ran = run("warpwright=loud")
    assert "RuntimeWarning: WARPWRIGHT_LOG=warpwright=loud" in ran.stderr
    assert "WARPWRIGHT_LOG=warpwright=debug" in ran.stderr
    assert "warpwright::launch" not in ran.stderr
