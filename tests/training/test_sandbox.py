"""Whatever a program does, it is contained, and the reason is told."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from envs.autotune_env.optimizers import make_optimizer
from envs.autotune_env.score import aggregate, scale
from envs.autotune_env.simulate import repeat
from envs.autotune_env.synthetic import synthetic
from tests.training.test_program import program as written
from training.design import program, sandbox
from training.design.race import Rung, estimate, race
from training.design.sandbox import Failed, Measured, Misbehaved, Sandbox, fenced, runs

GOOD = written("while True:", "    yield view.fresh()")


@pytest.fixture(scope="module")
def box():
    with Sandbox([synthetic()], seconds=1.0, memory=256 * 2**20) as made:
        yield made


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (("while True:", "    pass"), "timeout: still running after 3 seconds"),
        (("x = bytearray(100 * 2**30)",), "memory: wanted more than 256 MiB"),
        (("x = []", "while True:", "    x.append(bytes(2**20))"), "memory: wanted more than 256 MiB"),
        (("while True:", "    yield -1"), "illegal: "),
        (("while True:", "    yield 0"), "revisits: "),
        (("yield 10**9",), "contract: rows run from 0 to"),
        (("yield 'row'",), "contract: a search yields rows, not 'row'"),
        (("yield 0", "raise KeyError('lost')"), "raised: KeyError: 'lost'"),
        (("def f(): return f()", "f()"), "raised: RecursionError"),
        (("raise SystemExit",), "raised: SystemExit"),
    ],
)
def test_a_bad_program_fails_with_the_reason_and_the_next_one_runs(box, body, reason):
    started = time.monotonic()
    outcome = box.run(written(*body), 0, 1)
    assert isinstance(outcome, Failed) and outcome.reason.startswith(reason), outcome
    assert time.monotonic() - started < 15
    assert isinstance(box.run(GOOD, 0, 1), Measured)


@pytest.mark.parametrize(
    ("body", "event"),
    [
        ("open('/tmp/leirgym-escape', 'w').write('x')", "open"),
        ("__import__('socket').socket()", "socket"),
        ("__import__('os').system('true')", "os.system"),
        ("__import__('subprocess').run(['true'])", "subprocess.Popen"),
        ("open('/etc/passwd').read()", "open"),
        ("__import__('os').remove('/tmp/leirgym-escape')", "os.remove"),
        ("__import__('ctypes').CDLL(None)", "ctypes.dlopen"),
    ],
)
@pytest.mark.parametrize("caught", [False, True])
def test_what_passes_the_first_fence_is_stopped_by_the_second(monkeypatch, body, event, caught):
    """The check and the restricted builtins are taken away; the audit hook alone has to hold."""
    done = written("try:", f"    {body}", "except Exception:", "    pass") if caught else written(body)
    outcome = _unchecked(done)
    assert isinstance(outcome, Failed) and outcome.reason.startswith(f"forbidden: it tried {event}"), outcome


def _unchecked(source):
    """Run a program in a worker without the check of its text."""
    from envs.common.workers import Pool, Raised

    with Pool(prepare="tests.training.test_sandbox") as pool:
        outcome = pool.call("tests.training.test_sandbox:escape", source, timeout=30, memory=2**29)
    assert isinstance(outcome, Raised) and outcome.type == "Misbehaved", outcome
    return Failed(outcome.message)


def escape(source):
    """Called in a worker."""
    with fenced():
        scope: dict = {}
        exec(source, scope)
        space = synthetic()
        runs(sandbox.Watched(scope["Mine"]()), scale(space), 0, 1, 0)


def test_a_forbidden_program_is_not_even_run(box, monkeypatch):
    monkeypatch.setattr(box._pool, "call", lambda *_, **__: pytest.fail("it was run"))
    outcome = box.run(written(head="import socket\n"), 0, 1)
    assert isinstance(outcome, Failed) and outcome.reason.startswith("import: socket")


def test_a_fence_falls_only_where_it_stands():
    from envs.common.workers import Pool, Returned

    with Pool(prepare="tests.training.test_sandbox") as pool:
        assert isinstance(pool.call("tests.training.test_sandbox:inside", timeout=30, memory=2**29), Returned)


def inside():
    """Called in a worker."""
    with pytest.raises(Misbehaved), fenced():
        Path("/etc/hostname").read_text()
    assert Path("/etc/hostname").read_text()


def test_the_sandbox_measures_what_a_simulation_measures(box):
    outcome = box.run(GOOD, 0, 6, seed=4)
    assert isinstance(outcome, Measured)
    expected = runs(program.load(GOOD), scale(synthetic()), 0, 6, 4)
    np.testing.assert_array_equal(outcome.curves["synthetic0/north"], expected)
    later = box.run(GOOD, 4, 6, seed=4)
    np.testing.assert_array_equal(later.curves["synthetic0/north"], expected[4:])


def test_the_estimate_agrees_with_the_score():
    measures = [scale(synthetic(device)) for device in ("north", "east")]
    optimizer = make_optimizer("annealing")
    curves = {one.space.name: runs(optimizer, one, 0, 40, 0) for one in measures}
    rung, spaces = estimate(curves, {one.space.name: one for one in measures})
    expected = aggregate([(one, repeat(optimizer, one, 40)) for one in measures])
    assert rung.mean == pytest.approx(expected.mean, abs=0.03)
    assert rung.low == pytest.approx(expected.low, abs=0.05) and rung.high == pytest.approx(expected.high, abs=0.05)
    assert rung.mean == pytest.approx(np.mean(list(spaces.values())))


def test_a_race_ends_where_a_program_falls_behind(box):
    strong = (Rung(2, 0.9, 0.9, 0.9), Rung(4, 0.9, 0.9, 0.9))
    weak = (Rung(2, -9.0, -9.0, -9.0), Rung(4, -9.0, -9.0, -9.0))
    assert [rung.repeats for rung in race(box, GOOD, [strong], 0, (2, 4)).rungs] == [2]
    assert [rung.repeats for rung in race(box, GOOD, [strong, weak], 0, (2, 4)).rungs] == [2, 4]
    assert [rung.repeats for rung in race(box, GOOD, [], 0, (2, 4)).rungs] == [2, 4]
    failed = race(box, written("raise ValueError('x')"), [], 0, (2, 4))
    assert failed.failure == "raised: ValueError: x" and failed.fitness == -np.inf
