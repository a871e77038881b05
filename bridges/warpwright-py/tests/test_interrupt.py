"""Ctrl-C while the emulator works."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

import warpwright as ww

ENDLESS = """
.version 7.0
.target sm_75
.address_size 64
.visible .entry endless(.param .u64 x) {
    .reg .b32 %r<2>;
    mov.u32 %r1, 0;
AGAIN:
    add.u32 %r1, %r1, 1;
    bra AGAIN;
}
"""


@pytest.fixture(autouse=True, scope="module")
def ctrl_c_is_heard():
    """A process that a script started in the background ignores SIGINT, and so do those that it starts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def soon():
    """Sends this process a signal after a while."""
    timers = []

    def send(number: int = signal.SIGINT, after: float = 0.3) -> None:
        timer = threading.Timer(after, os.kill, (os.getpid(), number))
        timer.start()
        timers.append(timer)

    yield send
    for timer in timers:
        timer.cancel()
        timer.join()


def endless(**options):
    return ww.run(ENDLESS, grid=4, block=64, args=[np.zeros(4, np.float32)], counters=False, **options)


def test_ctrl_c_ends_a_run(soon):
    for sanitize in ("all", "none"):
        soon()
        begun = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            endless(sanitize=sanitize)
        assert time.monotonic() - begun < 1.3
    # The next one runs.
    assert ww.silu(np.zeros(4, np.float32)).shape == (4,)


def test_ctrl_c_ends_an_operation(soon):
    x = np.ones((2000, 3000), np.float32)
    soon()
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        while True:
            ww.matmul(x, x.T)
    assert time.monotonic() - begun < 1.3
    assert np.array_equal(ww.relu(x[:2, :2].copy()), x[:2, :2])


def test_what_a_handler_raises_is_what_the_call_raises(soon):
    class Enough(Exception):
        pass

    def enough(number, frame):
        raise Enough

    before = signal.signal(signal.SIGALRM, enough)
    try:
        soon(signal.SIGALRM)
        with pytest.raises(Enough):
            endless()
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_handler_that_returns_lets_the_work_go_on(soon):
    seen = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: seen.append(time.monotonic()))
    try:
        soon(signal.SIGALRM, after=0.1)
        begun = time.monotonic()
        run = endless(time_limit=0.6)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert "time limit" in run.fault
    assert len(seen) == 1
    assert seen[0] - begun < 0.5, "while the work went on"


def test_other_threads_go_on(soon):
    done = {}

    def other():
        done["fault"] = endless(time_limit=1.0).fault

    thread = threading.Thread(target=other)
    thread.start()
    soon()
    with pytest.raises(KeyboardInterrupt):
        endless()
    thread.join()
    assert "time limit" in done["fault"]


def test_a_process_that_waits_for_the_emulator_can_be_ended():
    code = f"""
        import numpy as np, warpwright as ww
        print("ready", flush=True)
        ww.run({ENDLESS!r}, args=[np.zeros(4, np.float32)])
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    time.sleep(0.3)
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=10)
    assert time.monotonic() - begun < 1.0
    assert b"KeyboardInterrupt" in error
    assert process.returncode in (130, -signal.SIGINT)


def test_limits_of_time():
    begun = time.monotonic()
    run = endless(time_limit=0.2)
    assert not run.ok
    assert "time limit" in run.fault and "line" in run.fault
    assert time.monotonic() - begun < 1.0
    for bad in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="time_limit"):
            endless(time_limit=bad)
