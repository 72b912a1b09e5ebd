"""Turns on a machine: builders share, a measurement is alone, the dead hold nothing."""

import subprocess
import sys
import threading

import pytest

from envs.common import locks
from envs.common.locks import Turns, cores


def entered(hold, release):
    """Enter in a thread; the event is set once the turn is held."""
    inside = threading.Event()

    def body():
        with hold():
            inside.set()
            release.wait(10)

    threading.Thread(target=body, daemon=True).start()
    return inside


def test_builders_share_and_a_measurement_waits_for_them(tmp_path):
    turns = Turns(tmp_path / "new" / "lock")
    release = threading.Event()
    assert entered(turns.together, release).wait(5)
    assert entered(turns.together, release).wait(5)
    alone = entered(turns.alone, threading.Event())
    assert not alone.wait(0.2)
    release.set()
    assert alone.wait(5)


def test_a_measurement_is_alone(tmp_path):
    turns = Turns(tmp_path / "lock")
    release = threading.Event()
    assert entered(turns.alone, release).wait(5)
    others = [entered(hold, release) for hold in (turns.alone, turns.together)]
    assert not any(other.wait(0.1) for other in others)
    release.set()
    assert all(other.wait(5) for other in others)


@pytest.mark.skipif(len(cores()) < 2, reason="needs two cores")
def test_processes_on_different_cores_do_not_wait_for_each_other(tmp_path, monkeypatch):
    turns = Turns(tmp_path / "lock")
    release = threading.Event()
    mine = cores()
    monkeypatch.setattr(locks, "cores", lambda: mine[:1])
    assert entered(turns.alone, release).wait(5)
    monkeypatch.setattr(locks, "cores", lambda: mine[1:])
    assert entered(turns.alone, release).wait(5)
    monkeypatch.setattr(locks, "cores", lambda: mine)
    assert not entered(turns.together, release).wait(0.1)
    release.set()


def test_a_killed_holder_frees_the_machine(tmp_path):
    path = tmp_path / "lock"
    code = f"""
import sys, time
sys.path[:] = {sys.path!r}
from pathlib import Path
from envs.common.locks import Turns
with Turns(Path({str(path)!r})).alone():
    print("held", flush=True)
    time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    mine = entered(Turns(path).alone, threading.Event())
    assert not mine.wait(0.1)
    process.kill()
    process.communicate()
    assert mine.wait(5)
