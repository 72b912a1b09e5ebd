"""Workers may crash, hang and eat memory; the owner sees a value, and nothing is left behind."""

import ctypes
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from envs.common import workers
from envs.common.workers import Crashed, OutOfMemory, Pool, Raised, Returned, TimedOut, WorkerError

HERE = __name__
MEMORY = 2**30


@pytest.fixture(scope="module")
def pool():
    with Pool(2, HERE, blocked=("colorsys",), environment={"LEIRGYM_TEST": "seen"}) as pool:
        yield pool


def call(pool, function, *args, timeout=20.0, memory=MEMORY):
    return pool.call(f"{HERE}:{function.__name__}", *args, timeout=timeout, memory=memory)


def double(x):
    return 2 * x


def crash():
    ctypes.string_at(0)


def abort():
    os.abort()


def leave():
    os._exit(3)


def hang():
    while True:
        time.sleep(60)


def sleep(seconds):
    time.sleep(seconds)
    return os.getpid()


def hog(size):
    return bytes(bytearray(size))[:1]


def giant():
    return np.zeros(5 * 2**30, np.uint8)


def local_object():
    return lambda: None


def fail(message):
    raise ValueError(message)


def quit_python():
    raise SystemExit(1)


def overflow_stack():
    def deeper():
        return deeper()

    return deeper()


def pid():
    return os.getpid()


def environment():
    return os.environ["LEIRGYM_TEST"], os.environ["OMP_NUM_THREADS"]


def import_blocked():
    import colorsys

    return colorsys


def spawn_children(count):
    for _ in range(count):
        if os.fork() == 0:
            time.sleep(600)
            os._exit(0)
    return os.getpid()


def spawn_children_and_hang(count):
    spawn_children(count)
    time.sleep(600)


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rsplit(")", 1)[1].split()[0] != "Z"


def group_is_empty(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def eventually(condition, seconds=5.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def test_a_call_returns_its_value(pool):
    assert call(pool, double, 21) == Returned(42)


def test_arrays_travel_unchanged_both_ways(pool):
    array = np.random.default_rng(0).standard_normal((300, 1000))
    outcome = call(pool, double, array)
    assert isinstance(outcome, Returned)
    assert np.array_equal(outcome.value, 2 * array)


def test_an_exception_is_a_value_and_the_worker_lives_on(pool):
    before = call(pool, pid)
    assert call(pool, fail, "odd extent 7") == Raised("ValueError", "odd extent 7")
    assert call(pool, pid) == before


def test_leaving_python_is_an_exception_like_any_other(pool):
    assert call(pool, quit_python) == Raised("SystemExit", "1")
    assert call(pool, overflow_stack).type == "RecursionError"


@pytest.mark.parametrize(("function", "number"), [(crash, signal.SIGSEGV), (abort, signal.SIGABRT), (leave, 0)])
def test_a_crash_is_a_value_and_a_fresh_worker_takes_over(pool, function, number):
    before = call(pool, pid).value
    assert call(pool, function) == Crashed(number)
    after = call(pool, pid).value
    assert after != before
    assert not alive(before)


def test_a_hang_ends_at_the_time_limit_and_its_worker_is_gone(pool):
    before = call(pool, pid).value
    started = time.monotonic()
    assert call(pool, hang, timeout=0.3) == TimedOut(0.3)
    assert time.monotonic() - started < 3
    assert not alive(before)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited on Linux only")
def test_a_memory_hog_ends_at_the_memory_limit(pool):
    assert call(pool, hog, 2**31, memory=2**28) == OutOfMemory(2**28)
    assert call(pool, hog, 2**26, memory=2**28) == Returned(b"\0")


def test_a_giant_result_is_refused(pool):
    outcome = call(pool, giant, memory=2**34)
    assert isinstance(outcome, Raised)
    assert "the result can't be sent" in outcome.message


def test_a_result_that_can_not_be_pickled_is_an_exception(pool):
    assert isinstance(call(pool, local_object), Raised)


def test_children_of_a_worker_die_with_it(pool):
    group = call(pool, spawn_children, 8).value
    assert not group_is_empty(group)
    pool.workers[0].renew()
    assert eventually(lambda: group_is_empty(group))
    assert call(pool, spawn_children_and_hang, 8, timeout=0.5) == TimedOut(0.5)


def test_the_environment_and_blocked_modules_hold_in_workers(pool):
    assert call(pool, environment) == Returned(("seen", "1"))
    assert call(pool, import_blocked).type == "ModuleNotFoundError"


def test_a_batch_runs_in_parallel_and_keeps_positions(pool):
    started = time.monotonic()
    seen = {
        n: outcome.value
        for n, outcome, _ in pool.map(f"{HERE}:double", [(n,) for n in range(20)], timeout=20, memory=MEMORY)
    }
    assert seen == {n: 2 * n for n in range(20)}
    pids = {o.value for _, o, _ in pool.map(f"{HERE}:sleep", [(0.3,)] * 2, timeout=20, memory=MEMORY)}
    assert len(pids) == 2
    assert time.monotonic() - started < 10


def test_one_bad_job_of_a_batch_does_not_touch_the_others(pool):
    jobs = [(0.05,), (600,), (0.05,), (0.05,)]
    outcomes = {n: o for n, o, _ in pool.map(f"{HERE}:sleep", jobs, timeout=0.5, memory=MEMORY)}
    assert outcomes[1] == TimedOut(0.5)
    assert all(isinstance(outcomes[n], Returned) for n in (0, 2, 3))


def test_a_worker_of_an_unfinished_batch_can_not_be_called(pool):
    batch = pool.map(f"{HERE}:double", [(n,) for n in range(9)], timeout=20, memory=MEMORY)
    _, _, worker = next(batch)
    with pytest.raises(RuntimeError, match="unfinished batch"):
        worker.call(f"{HERE}:pid", timeout=1, memory=MEMORY)
    batch.close()
    assert isinstance(call(pool, pid), Returned)


def test_a_worker_is_recycled_after_its_calls():
    with Pool(1, HERE, recycle=3) as pool:
        pids = [call(pool, pid).value for _ in range(7)]
        assert len(set(pids)) == 3


def test_a_server_that_was_killed_is_replaced(pool):
    call(pool, pid)
    pool._server.kill()
    pool._server.wait()
    outcomes = [call(pool, pid) for _ in range(2)]
    assert isinstance(outcomes[-1], Returned)


def test_an_import_that_fails_is_reported():
    with (
        Pool(1, "no_such_module") as pool,
        pytest.raises(WorkerError, match="No module named 'no_such_module'"),
    ):
        call(pool, pid)


def test_a_forked_owner_starts_its_own_server(pool):
    mine = call(pool, pid).value
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        outcome = call(pool, pid)
        os.write(write, str(outcome.value).encode())
        pool.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert int(os.read(read, 20)) != mine
    assert call(pool, pid).value == mine


def test_an_interrupt_while_the_server_is_asked_leaves_no_stray_answer(pool, monkeypatch):
    call(pool, pid)
    pool.workers[0].renew()
    whole = workers.exactly

    def interrupted(channel, size, deadline):
        monkeypatch.setattr(workers, "exactly", whole)
        raise KeyboardInterrupt

    monkeypatch.setattr(workers, "exactly", interrupted)
    with pytest.raises(KeyboardInterrupt):
        call(pool, pid)
    first = call(pool, pid).value
    assert alive(first)
    assert call(pool, crash) == Crashed(signal.SIGSEGV)
    assert not alive(first)


OWNER = f"""
import sys, threading, time
sys.path[:] = {sys.path!r}
from envs.common.workers import Pool
pool = Pool(2, {HERE!r})
pids = [w.call("{HERE}:pid", timeout=20, memory=2**30).value for w in pool.workers]
print(*pids, pool._server.pid, flush=True)
if sys.argv[1] == "idle":
    time.sleep(600)
list(pool.map("{HERE}:hang", [()] * 2, timeout=600, memory=2**30))
"""


def owner(mode):
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, mode], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    return process, [int(word) for word in process.stdout.readline().split()]


@pytest.mark.parametrize("mode", ["idle", "busy"])
def test_an_owner_killed_with_signal_9_leaves_no_process_behind(mode):
    process, pids = owner(mode)
    assert all(alive(p) for p in pids)
    process.kill()
    process.communicate()
    assert eventually(lambda: not any(alive(p) for p in pids))


def test_ctrl_c_raises_in_the_owner_and_leaves_no_process_behind():
    process, pids = owner("busy")
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert "KeyboardInterrupt" in errors
    assert eventually(lambda: not any(alive(p) for p in pids))


@pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_PDEATHSIG")
def test_busy_workers_die_with_a_server_killed_with_signal_9():
    process, (first, second, server) = owner("busy")
    os.kill(server, signal.SIGKILL)
    assert eventually(lambda: not alive(first) and not alive(second))
    process.communicate(timeout=20)
