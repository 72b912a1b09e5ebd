"""The suites defined in PyTorch: complete, imported as they ship, equal to PyTorch, fit to be tasks."""

import math
import random

import pytest

torch = pytest.importorskip("torch")

from datagen.workloads import checks, cli  # noqa: E402
from datagen.workloads.parts import RMSNorm, chain  # noqa: E402
from datagen.workloads.suites import SUITES, table  # noqa: E402
from envs.leir_env import workloads  # noqa: E402
from envs.leir_env.from_torch import from_torch, program_of  # noqa: E402
from envs.leir_env.importer.dtypes import retyped  # noqa: E402
from envs.leir_env.ir import DType, Role  # noqa: E402
from envs.leir_env.oracle import iterations  # noqa: E402
from envs.leir_env.parser import parse  # noqa: E402
from envs.leir_env.printer import show  # noqa: E402
from envs.leir_env.suite_tables import SIZES, Reference, entries  # noqa: E402
from envs.leir_env.torch_files import instantiate  # noqa: E402

SIZED = {f"{suite}/{entry.name}": entry for suite in SUITES for entry in entries(suite)}
SAMPLE = random.Random(0).sample(sorted(SIZED), 24)
"""What stands for all of them here; `leirgym workloads --check` takes every one."""


def test_there_are_83_single_operators_and_119_compositions():
    assert {suite: len(members) for suite, members in SUITES.items()} == {"single": 83, "composite": 119}
    assert not SUITES["single"].keys() & SUITES["composite"].keys()


@pytest.mark.parametrize("suite", SUITES)
def test_the_table_that_ships_is_that_of_the_definitions(suite):
    assert (workloads.SUITES / f"{suite}.toml").read_text() == table(suite)


@pytest.mark.parametrize("name", SIZED)
def test_a_definition_has_the_same_extents_in_all_its_sizes(name):
    sizes = [SIZED[name].sizes[word] for word in SIZES]
    assert len({tuple(size) for size in sizes}) == 1
    assert math.prod(sizes[0].values()) < math.prod(sizes[1].values()) <= 2 * math.prod(sizes[2].values())


@pytest.mark.parametrize("name", SIZED)
def test_a_program_has_no_more_iterations_than_its_operators_need(name):
    """A running sum is linear in its length, an elementwise operator in its elements."""
    entry, program = SIZED[name], workloads.load(name).program
    if entry.family in ("elementwise", "scan"):
        assert iterations(program) == max(tensor.size for tensor in program.tensors)


def test_no_two_stages_of_a_workload_are_the_same():
    for name in SIZED:
        values = [line.partition(" = ")[2] for line in show(workloads.load(name).program).splitlines() if " = " in line]
        assert len(values) == len(set(values)), name


@pytest.mark.parametrize("name", [*workloads.names("basic"), *SAMPLE])
def test_a_shipped_file_is_what_pytorch_gives(name):
    entry = SIZED.get(name) or workloads.imported()[name]
    assert cli.different([entry]) == []


@pytest.mark.parametrize("name", SAMPLE)
def test_a_workload_equals_pytorch_and_is_fit_to_be_a_task(name):
    entry = SIZED[name]
    assert checks.problems(entry.reference(entry.sizes["small"])) == ()


@pytest.mark.parametrize("name", SAMPLE[::2])
@pytest.mark.parametrize("dtype", ["f16", "f64"])
def test_changing_the_dtype_of_a_program_is_the_same_as_importing_it_in_that_dtype(name, dtype):
    small = SIZED[name].sizes["small"]
    changed = retyped(program_of(SIZED[name].reference(small)), DType(dtype))
    assert show(changed) == show(from_torch(*instantiate(SIZED[name].reference(small, dtype)), compare=False).program)


@pytest.mark.parametrize(
    ("module", "inputs", "expected"),
    [
        ("degenerate", "f32[4,6]", "the answer 'zeros' passes"),
        ("deaf", "f32[4,6] f32[4,6]", "no output depends on input B"),
    ],
)
def test_a_task_that_needs_no_work_is_refused(module, inputs, expected):
    found = checks.problems(Reference(f"{__name__}:{module}", (), inputs))
    assert any(expected in reason for reason in found), found


def degenerate():
    return chain(lambda x: x.amax(1, keepdim=True), lambda x: x - x.mean(1, keepdim=True))


def deaf():
    from datagen.workloads.parts import Function

    return Function(lambda a, b: torch.tanh(a) + 0 * b)


def test_a_schedule_that_is_wrong_is_seen(monkeypatch):
    program = parse("i:4 j:8\nA:f32[i,j] -> C:f32[i]\nL_i,j C[i] += A[i,j]\n")
    assert checks.misscheduled(program) == ()
    monkeypatch.setattr(checks, "default_schedule", lambda program: parse(show(program).replace("+=", "max=")))
    assert "the default schedule is wrong: normal/C" in checks.misscheduled(program)


def test_an_import_that_differs_from_pytorch_is_seen(monkeypatch):
    entry = SIZED["single/leaky_relu"]

    def wrong(*arguments, **options):
        made = from_torch(*arguments, **options)
        text = show(made.program).replace("0.01", "0.011")
        return type(made)(parse(text), made.parameters, made.origins)

    monkeypatch.setattr(checks, "from_torch", wrong)
    assert "differs from PyTorch by" in checks.problems(entry.reference(entry.sizes["small"]))[0]


def test_normalisations_get_weights_that_differ():
    module = SUITES["composite"]["conv3d_groupnorm_mean"].module(SIZED["composite/conv3d_groupnorm_mean"].size)
    (norm,) = (part for part in module.modules() if isinstance(part, torch.nn.GroupNorm))
    assert len(norm.weight.unique()) == norm.weight.numel()


def test_a_module_is_made_in_the_dtype_asked_for():
    module, inputs = instantiate(
        SIZED["composite/gemm_add_relu"].reference({"m": 3, "k": 4, "n": 6, "groups": 3}, "f64")
    )
    assert {tensor.dtype for tensor in (*inputs, *module.parameters(), module(*inputs))} == {torch.float64}


def test_a_comparison_can_be_left_out_and_gives_the_same_program():
    x = torch.ones(2, 3, 4)
    assert from_torch(RMSNorm(), (x,), compare=False).program == from_torch(RMSNorm(), (x,)).program


def test_a_file_is_written_once(tmp_path):
    path = tmp_path / "suite" / "twice.leir"
    assert cli.write(path, "A") and not cli.write(path, "A") and cli.write(path, "B")
    assert path.read_text() == "B"


def test_inputs_and_outputs_have_names_in_the_order_of_the_module():
    program = workloads.load("matmul_transposed_a").program
    assert [tensor.shape for tensor in program.with_role(Role.INPUT)] == [(1024, 512), (1024, 768)]
