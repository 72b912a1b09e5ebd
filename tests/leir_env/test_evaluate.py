"""The evaluator gives every candidate the status it deserves, once, and keeps it."""

import dataclasses
import os
import signal
import subprocess
import sys
import time

import pytest

from envs.common import timing
from envs.common.evaluation import Evaluation, Status
from envs.common.store import Store
from envs.common.workers import Pool
from envs.leir_env import evaluate as evaluate_module
from envs.leir_env.evaluate import Evaluator, EvaluatorError
from envs.leir_env.harness import Limits
from envs.leir_env.parser import parse
from envs.leir_env.strategies.base import Exactness
from tests.leir_env.renaming import canonical

QUICK = timing.Rules(pairs=5, width=10.0, seconds=0.02)
MATMUL = """i:48 j:64 k:40
A:f32[i,k] B:f32[k,j] -> C:f32[i,j]
L_i,j,k C[i,j] += A[i,k] B[k,j]
"""
SCHEDULED = """i:48 k:40 j:4 v:16
A:f32[i,k] B:f32[k,64] -> C:f32[i,64]
L_i,k,j V_v C[i,16j+v] += A[i,k] B[k,16j+v]
"""
TILED = """i:12 u,j:4 v:16 k:40
A:f32[48,k] B:f32[k,64] -> C:f32[48,64]
L_i,j [
  D:f32[u,v]
  L_k U_u V_v D[u,v] += A[4i+u,k] B[k,16j+v]
  U_u V_v C[4i+u,16j+v] = D[u,v]
]
"""
WRONG = MATMUL.replace("k:40", "k:39").replace("A:f32[i,k] B:f32[k,j]", "A:f32[i,40] B:f32[40,j]")
SLOW = """i:48 j:64 k:40 r:200
A:f32[i,k] B:f32[k,j] -> C:f32[i,j]; D:f32[i,j]
L_i,j,k,r D[i,j] max= sin(A[i,k]+r)
L_i,j,k C[i,j] += select(D[i,j]>2.0,0.0,A[i,k] B[k,j])
"""
OUT_OF_BOUNDS = MATMUL.replace("B[k,j]", "B[k+1,j]")


@pytest.fixture(scope="module")
def evaluator():
    return Evaluator(parse(MATMUL), baseline=parse(SCHEDULED), rules=QUICK)


def one(evaluator, text, **options):
    return evaluator.evaluate([parse(text)], **options)[0]


def test_a_right_candidate_is_verified_timed_and_documented(evaluator):
    record = one(evaluator, TILED)
    assert record.status.verified
    assert record.speedup > 0
    assert record.speedup_over_root == pytest.approx(record.speedup * record.root_ratio)
    assert [check.name for check in record.checks] == [
        f"{name}/C" for name in ("normal", "large", "ramp", "ties", "special", "zeros")
    ]
    assert len(record.timing.candidate) == len(record.timing.baseline) >= QUICK.pairs
    assert record.timing.baseline_name == "default schedule"
    assert set(record.seconds) == {"build", "check", "run", "judge", "time"}
    assert record.environment["toolchain"].startswith("tvm 0.27")
    assert record.environment["cache"] == "warm"


def test_a_batch_keeps_its_order_and_one_bad_candidate_does_not_touch_the_others(evaluator):
    texts = [WRONG, TILED, OUT_OF_BOUNDS, SCHEDULED, MATMUL]
    records = evaluator.evaluate([parse(text) for text in texts])
    assert records[0].status is Status.WRONG
    assert records[2].status is Status.REJECTED
    assert all(records[n].status.verified for n in (1, 3, 4))
    assert "output C differs on the input set normal" in records[0].detail
    assert all(record.speedup is None for record in records if not record.status.verified)


def test_an_empty_batch_is_an_empty_list(evaluator):
    assert evaluator.evaluate([]) == []


def test_a_candidate_far_slower_than_the_baseline_is_verified_and_slower(evaluator):
    record = one(evaluator, SLOW)
    assert record.status is Status.SLOWER
    assert record.speedup < 0.25
    assert all(check.passed for check in record.checks)
    assert len(record.timing.candidate) < QUICK.pairs


def test_the_root_equals_itself_bit_for_bit(evaluator):
    assert all(check.bitwise for check in one(evaluator, MATMUL).checks)


def test_names_of_tensors_and_indices_do_not_matter(evaluator):
    renamed = canonical(parse(TILED))
    assert evaluator.evaluate([renamed]) == evaluator.evaluate([parse(TILED)])


def test_a_program_is_measured_once_and_failures_are_remembered_too(evaluator):
    for text in (TILED, WRONG, OUT_OF_BOUNDS):
        assert one(evaluator, text) == one(evaluator, text)


def test_the_same_program_twice_in_a_batch_is_one_measurement(evaluator):
    text = TILED.replace("U_u", "L_u")
    first, second = evaluator.evaluate([parse(text)] * 2)
    assert first is second or first == second


def test_a_fresh_evaluation_is_from_scratch_and_changes_nothing(evaluator):
    stored = one(evaluator, TILED)
    fresh = one(evaluator, TILED, fresh=True)
    assert fresh.status.verified
    assert fresh.timing != stored.timing
    assert one(evaluator, TILED) == stored


def test_results_survive_in_a_store(tmp_path):
    store = Store(tmp_path / "s")
    first = Evaluator(parse(MATMUL), baseline=parse(SCHEDULED), store=store, rules=QUICK)
    records = first.evaluate([parse(TILED), parse(WRONG)])
    again = Evaluator(parse(MATMUL), baseline=parse(SCHEDULED), store=Store(tmp_path / "s"), rules=QUICK)
    again.harness = dataclasses.replace(again.harness, pool=None)  # nothing may run
    assert again.evaluate([parse(TILED), parse(WRONG)]) == records
    assert again.facts() == first.facts()


def test_a_time_limit_is_a_status(evaluator):
    impatient = Evaluator(parse(MATMUL), baseline=parse(SCHEDULED), rules=QUICK, limits=Limits(seconds=0.5))
    impatient.facts()
    forever = SLOW.replace("r:200", "r:100000")
    record = one(impatient, forever)
    assert record.status is Status.TIMEOUT
    assert "it was not done after 0.5 s" in record.detail
    assert one(impatient, TILED).status.verified


def test_parallel_loops_run_in_forked_workers():
    parallel = TILED.replace("L_i,j", "P_i L_j")
    with Pool(1, "envs.leir_env.measure:prepare", blocked=("torch",), environment={"TVM_NUM_THREADS": "2"}) as pool:
        evaluator = Evaluator(parse(MATMUL), baseline=parse(SCHEDULED), threads=2, pool=pool, rules=QUICK)
        records = [one(evaluator, parallel, fresh=True) for _ in range(2)]
        pool.workers[0].renew()
        records.append(one(evaluator, parallel, fresh=True))
    assert all(record.status.verified for record in records)
    assert records[0].environment["threads"] == "2"


def test_a_wrong_baseline_is_an_error_that_says_so():
    wrong = Evaluator(parse(MATMUL), baseline=parse(WRONG), rules=QUICK)
    with pytest.raises(EvaluatorError, match="the default schedule is wrong: output C differs"):
        one(wrong, TILED)


def test_a_target_that_can_not_run_here_is_refused():
    with pytest.raises(ValueError, match="cuda is compiled only"):
        Evaluator(parse(MATMUL), "cuda")


def test_the_exactness_of_the_trace_sets_the_tolerance(evaluator):
    keys = {evaluator.key(parse(TILED), exactness) for exactness in Exactness}
    assert len(keys) == 3
    assert one(evaluator, TILED, exactness=Exactness.EXACT).status.verified


def test_a_tiny_task_is_not_admitted_and_a_proper_one_is(monkeypatch):
    tiny = Evaluator(parse("i:16\nA:f32[i] -> C:f32[i]\nL_i C[i] = exp(A[i])\n"), rules=QUICK)
    assert "mostly the call" in tiny.admit()[0]
    proper = Evaluator(parse(MATMUL), rules=QUICK)
    assert proper.admit() == ()


class TestAudit:
    """Results too good to be believed, simulated by a low threshold."""

    @pytest.fixture
    def strict(self, monkeypatch):
        monkeypatch.setattr(evaluate_module, "SUSPICIOUS_SPEEDUP", 0.0)
        monkeypatch.setattr(evaluate_module, "CONFIRMED", 0.0)  # the machine may be busy at either time

        def make(**options):
            return Evaluator(parse(MATMUL), baseline=parse(SCHEDULED), rules=QUICK, **options)

        return make

    def test_an_honest_result_is_confirmed_in_a_fresh_process(self, strict):
        seen = []
        evaluator = strict(audit=lambda program, exactness: seen.append(exactness) or "")
        record = one(evaluator, TILED)
        assert record.status.verified
        assert record.audited
        assert seen == [Exactness.REASSOCIATES]

    def test_a_result_that_the_audit_contradicts_is_suspect(self, strict):
        record = one(strict(audit=lambda *_: "it differs at extent 7"), TILED)
        assert record.status is Status.SUSPECT
        assert "it differs at extent 7" in record.detail
        assert record.speedup is None

    def test_a_speedup_that_does_not_come_back_is_suspect(self, strict, monkeypatch):
        monkeypatch.setattr(evaluate_module, "CONFIRMED", 1e9)
        record = one(strict(), TILED)
        assert record.status is Status.SUSPECT
        assert "times as fast this time" in record.detail

    def test_a_time_near_the_roofline_is_audited(self, monkeypatch):
        monkeypatch.setattr(evaluate_module, "roofline_seconds", lambda root, threads: 1.0)
        monkeypatch.setattr(evaluate_module, "CONFIRMED", 0.0)
        evaluator = Evaluator(parse(MATMUL), baseline=parse(SCHEDULED), rules=QUICK)
        assert one(evaluator, TILED).audited


INTERRUPTED = f"""
import sys
sys.path[:] = {sys.path!r}
from envs.common.store import Store
from {__name__} import *
evaluator = Evaluator(parse(MATMUL), baseline=parse(SCHEDULED), store=Store(sys.argv[1]), rules=QUICK)
evaluator.evaluate([parse(WRONG)])
print("ready", flush=True)
evaluator.evaluate([parse(SLOW.replace("r:200", f"r:{{100_000 + n}}")) for n in range(9)])
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_evaluation_leaves_a_good_store_and_no_processes(tmp_path, number):
    path = tmp_path / "s"
    environment = {**os.environ, "LEIRGYM_CACHE": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.3)
    mine = descendants(process.pid)
    assert mine
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert ("KeyboardInterrupt" in errors) == (number == signal.SIGINT)
    end = time.monotonic() + 5
    while any(map(alive, mine)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(map(alive, mine))
    ((_, record),) = Store(path).rows()
    assert isinstance(record, Evaluation)
    assert record.status is Status.WRONG


def descendants(pid):
    found = subprocess.run(["ps", "-eo", "pid,ppid"], capture_output=True, text=True, check=True)
    pairs = [tuple(map(int, line.split())) for line in found.stdout.splitlines()[1:]]
    below = [child for child, parent in pairs if parent == pid]
    return below + [deeper for child in below for deeper in descendants(child)]


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
