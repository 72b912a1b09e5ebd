"""The importer: its texts are golden files, its results are PyTorch's, its errors are one clear line."""

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from datagen.workloads import basic  # noqa: E402
from envs.leir_env.from_torch import ImportProblem, from_torch  # noqa: E402
from envs.leir_env.interp import run  # noqa: E402
from envs.leir_env.ir import DType, Role  # noqa: E402
from envs.leir_env.parser import parse  # noqa: E402
from envs.leir_env.printer import show  # noqa: E402
from envs.leir_env.torch_files import instantiate, is_file, load_module, parse_inputs, sample  # noqa: E402
from envs.leir_env.verify import verify  # noqa: E402
from envs.leir_env.workloads import Reference, load  # noqa: E402
from tests.leir_env import torch_modules as modules  # noqa: E402
from tests.leir_env.torch_modules import Function  # noqa: E402

GOLDEN = Path(__file__).parents[1] / "golden" / "from_torch"
EXAMPLES = Path(__file__).parents[2] / "examples" / "modules.py"


def imported(module, inputs):
    torch.manual_seed(0)
    made = module() if isinstance(module, type) else module
    return from_torch(made.eval(), sample(parse_inputs(inputs)))


USER_MODULES = {
    "attention": lambda: from_torch(*load_module(f"{EXAMPLES}:Attention")),
    "softmax": lambda: from_torch(*load_module(f"{EXAMPLES}:Softmax")),
    "swiglu": lambda: imported(modules.SwiGLU, "f32[4,16]"),
    "residual_block": lambda: imported(modules.ResidualBlock, "f32[1,4,6,6]"),
    "causal_attention": lambda: imported(modules.CausalAttention, "f32[2,6,16]"),
    "lookup": lambda: imported(modules.Lookup, "i64[3,6]"),
    "group_norm": lambda: imported(nn.GroupNorm(2, 8), "f32[2,8,6,6]"),
    "encoder": lambda: imported(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), "f32[2,5,16]"),
    "half": lambda: imported(nn.Linear(16, 8).half(), "f16[4,16]"),
}


@pytest.mark.parametrize("name", USER_MODULES)
def test_a_users_module_reads_as_its_golden_file(name):
    text = show(USER_MODULES[name]().program)
    assert text == (GOLDEN / f"{name}.leir").read_text()
    assert show(parse(text)) == text


def regenerate():
    """Write the golden files: `python -m tests.leir_env.test_from_torch`."""
    for name, make in USER_MODULES.items():
        (GOLDEN / f"{name}.leir").write_text(show(make().program))


SMALL = {
    "matmul": (basic.Matmul, {}, "f32[3,5] f32[5,4]"),
    "bmm": (basic.Matmul, {}, "f32[2,3,5] f32[2,5,4]"),
    "linear_relu": (basic.LinearReLU, {"features": 5}, "f32[3,5]"),
    "mlp": (basic.MLP, {"features": 5, "hidden": 7}, "f32[3,5]"),
    "softmax": (basic.Softmax, {}, "f32[3,7]"),
    "logsoftmax": (basic.LogSoftmax, {}, "f32[3,7]"),
    "layernorm": (basic.LayerNorm, {"normalized_shape": 7}, "f32[3,7]"),
    "rmsnorm": (basic.RMSNorm, {"features": 7}, "f32[3,7]"),
    "gelu": (basic.GELU, {}, "f32[3,7]"),
    "conv2d": (
        basic.Conv2d,
        {"in_channels": 3, "out_channels": 4, "kernel_size": 3, "padding": 1},
        "f32[2,3,5,7]",
    ),
    "conv2d_bn_relu": (basic.Conv2dBatchNormReLU, {"inputs": 3, "outputs": 4}, "f32[2,3,5,7]"),
    "depthwise_conv": (
        basic.Conv2d,
        {"in_channels": 4, "out_channels": 4, "kernel_size": 3, "padding": 1, "groups": 4},
        "f32[1,4,5,7]",
    ),
    "max_pool": (basic.MaxPool2d, {"kernel_size": 3, "stride": 2, "padding": 1}, "f32[2,3,7,9]"),
    "sum": (basic.Sum, {}, "f32[3,7]"),
    "argmax": (basic.ArgMax, {}, "f32[3,7]"),
    "attention": (basic.Attention, {}, "f32[2,5,8] f32[2,7,8] f32[2,7,8]"),
    "causal_attention": (basic.Attention, {"causal": True}, "f32[2,5,8] f32[2,5,8] f32[2,5,8]"),
    "gemm_gelu_softmax": (basic.GemmGELUSoftmax, {"inputs": 5, "outputs": 6}, "f32[3,5]"),
}
"""Every family of the suite, with odd extents."""


@pytest.mark.parametrize("name", SMALL)
def test_the_program_computes_what_the_module_does(name):
    kind, arguments, inputs = SMALL[name]
    torch.manual_seed(1)
    module = kind(**arguments).eval()
    for tensor in module.buffers():
        if tensor.is_floating_point():
            tensor.uniform_(0.5, 1.5)
    result = from_torch(module, sample(parse_inputs(inputs), seed=1))
    fresh = sample(parse_inputs(inputs), seed=2)
    given = {t.name: x.numpy() for t, x in zip(result.program.with_role(Role.INPUT), fresh, strict=True)} | dict(
        result.parameters
    )
    (output,) = result.program.outputs
    with torch.no_grad():
        single = module(*fresh).numpy()
        double = module.double()(*(x.double() for x in fresh)).numpy()
    np.testing.assert_allclose(run(result.program, given, DType.F64)[output.name], double, rtol=0, atol=1e-12)
    np.testing.assert_allclose(run(result.program, given)[output.name], single, rtol=2e-5, atol=2e-6)


MORE = {
    "avg_pool": (nn.AvgPool2d(3, 2, 1), "f32[1,3,8,8]"),
    "adaptive_avg_pool": (nn.AdaptiveAvgPool2d(1), "f32[1,3,8,8]"),
    "cat": (Function(lambda a, b: torch.cat((a, b), 1)), "f32[4,3] f32[4,5]"),
    "conv_transpose": (nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1), "f32[1,3,5,5]"),
    "cross_entropy": (Function(F.cross_entropy), "f32[8,5] i64[8]"),
    "einsum": (Function(lambda a, b: torch.einsum("bijl,lk->bijk", a, b)), "f32[2,3,4,5] f32[5,6]"),
    "elu_chain": (Function(lambda x: F.hardtanh(F.hardswish(F.selu(F.leaky_relu(x))))), "f32[4,6]"),
    "frobenius": (Function(lambda x: x / torch.norm(x, p="fro")), "f32[4,6]"),
    "grouped_query": (
        Function(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True)),
        "f32[1,4,5,8] f32[1,2,5,8] f32[1,2,5,8]",
    ),
    "instance_norm": (nn.InstanceNorm2d(4), "f32[2,4,6,6]"),
    "lstm_cell": (nn.LSTMCell(8, 6), "f32[3,8]"),
    "max_with_index": (Function(lambda x: torch.max(x, 1)), "f32[4,6]"),
    "multihead": (nn.MultiheadAttention(16, 2, batch_first=True), "f32[2,5,16] f32[2,5,16] f32[2,5,16]"),
    "positions": (Function(lambda x: x + torch.arange(6) * 0.5), "f32[4,6]"),
    "running_sum_of_a_map": (Function(lambda x: torch.exp(x.tanh().cumsum(1)) + x), "f32[3,5]"),
    "running_sum_down": (Function(lambda x: x.cumsum(0).T), "f32[3,5]"),
    "running_sum_of_sums": (Function(lambda x: x.cumsum(1).cumsum(0)), "f32[3,5]"),
    "running_sum_of_pairs": (Function(lambda x: x.cumsum(1).reshape(3, 2, 3).sum(2)), "f32[3,6]"),
    "running_sum_of_one_row": (Function(lambda x: x.reshape(-1).cumsum(0)), "f32[3,4]"),
    "running_product": (Function(lambda x: x.cumprod(-1)), "f32[2,3,4]"),
    "running_count": (Function(lambda x: (x > 0).cumsum(1)), "f32[3,5]"),
    "running_sum_used_twice": (Function(lambda x: (lambda y: y / y.amax(1, keepdim=True))(x.cumsum(1))), "f32[3,5]"),
    "unit_running_sum": (Function(lambda x: x.cumsum(1)), "f32[3,1]"),
    "flipped_matmul": (Function(lambda x, y: (x @ y).flip(0, 1)), "f32[3,4] f32[4,5]"),
    "any_and_all": (Function(lambda x: torch.where((x > 0).any(1) & (x > -1).all(1), 1.0, x.sum(1))), "f32[3,5]"),
    "rolled": (Function(lambda x: x.roll(2, 1)), "f32[3,5]"),
    "rolled_twice": (Function(lambda x: x.roll((-1, 7), (0, 1)) + x.roll(3)), "f32[3,5]"),
    "slices": (Function(lambda x: x[1:3, ::2]), "f32[4,8]"),
}


@pytest.mark.parametrize("name", MORE)
def test_an_operator_beyond_the_suite_imports_and_agrees(name):
    # from_torch itself compares with the module in float64 and refuses what differs.
    module, inputs = MORE[name]
    assert not verify(imported(module, inputs).program)


def test_a_running_sum_is_a_recurrence_in_linear_time():
    flipped = Function(lambda x: x.flip(1).cumsum(1).flip(1))
    program = imported(flipped, "f32[3,7]").program
    assert show(program) == ("i:3 j:7\nA:f32[i,7] -> B:f32[i,7]\nL_i,j B[i,6-j] = select(j>=1,B[i,7-j],0)+A[i,6-j]\n")


def test_a_running_sum_of_halves_is_kept_in_single_precision():
    text = show(imported(Function(lambda x: x.cumsum(0)), "f16[7]").program)
    assert "L_i C[i] = select(i>=1,C[i-1],0)+f32(A[i])\nL_i B[i] = f16(C[i])\n" in text


def test_a_long_chain_of_operators_becomes_several_equations():
    def chain(x):
        for _ in range(200):
            x = torch.sin(x) + x
        return x

    program = imported(Function(chain), "f32[4]").program
    assert len(program.body) == 200


def test_one_tensor_passed_twice_stays_two_inputs():
    x = torch.randn(3, 4)
    program = from_torch(Function(lambda a, b: a - 2 * b), (x, x)).program
    assert show(program) == "i:3 j:4\nA,B:f32[i,j] -> C:f32[i,j]\nL_i,j C[i,j] = A[i,j]-2*B[i,j]\n"


def test_a_sum_of_squares_into_a_scalar_is_computed_in_float64_too():
    program = parse("i:4\nA:f32[i] -> B:f32\nL_i B += A[i] A[i]\n")
    assert run(program, {"A": np.arange(4.0)}, DType.F64)["B"] == 14


def test_parameters_keep_their_paths_and_values():
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    result = imported(module, "f32[2,4]")
    paths = ["0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var"]
    assert list(result.origins.values()) == paths
    names = {path: name for name, path in result.origins.items()}
    np.testing.assert_array_equal(result.parameters[names["0.weight"]], module[0].weight.detach().numpy())


def test_the_module_is_left_as_it_was():
    module = nn.BatchNorm1d(3).eval()
    imported(module, "f32[2,3]")
    assert set(dict(module.named_buffers())) == {"running_mean", "running_var", "num_batches_tracked"}
    assert module.weight.dtype == torch.float32


def test_an_embedding_reads_its_table_by_the_index_itself():
    assert "B[A[i,j],k]" in show(imported(modules.Lookup, "i64[3,6]").program)


PROBLEMS = {
    "training": (nn.Sequential(nn.Linear(4, 4), nn.Dropout()), (torch.ones(4),), "module.eval()"),
    "branch": (modules.Branching(), (torch.ones(4),), ": if x.sum() > 0"),
    "dynamic shape": (Function(lambda x: x[x > 0]), (torch.ones(4),), "depends on the values"),
    "no tensor": (nn.ReLU(), (3,), "input 0 is of type int"),
    "no tuple": (nn.ReLU(), torch.ones(4), "a tuple of tensors, got Tensor"),
    "no instance": (nn.ReLU, (torch.ones(4),), "pass an instance, not the class"),
    "wrong shape": (nn.Linear(4, 4), (torch.ones(3, 5),), "Linear fails on inputs f32[3,5]: mat1 and mat2"),
    "no input": (nn.Linear(4, 4), (), "Linear fails on inputs (none)"),
    "unsupported": (Function(torch.linalg.inv), (torch.eye(3),), "aten.linalg_inv_ex.default (node linalg"),
    "sort": (Function(lambda x: x.sort(0).values), (torch.ones(4),), "operator argsort: TVM has no loop form"),
    "one hot": (Function(lambda x: F.one_hot(x.argmax(1), 4)), (torch.randn(3, 4),), "has no loop form"),
    "random shape": (Function(torch.randn_like), (torch.ones(4),), "randn_like.default (node randn_like) draws random"),
    "random": (Function(lambda x: x + torch.rand(4)), (torch.ones(4),), "aten.rand.default"),
    "dtype": (nn.ReLU(), (torch.ones(4, dtype=torch.uint8),), "LEIR has no dtype uint8"),
    "complex": (Function(lambda x: torch.fft.fft(x)), (torch.ones(4),), "_fft_r2c"),
    "empty": (nn.ReLU(), (torch.ones(0),), "at least one element"),
    "no result": (Function(lambda x: None), (torch.ones(4),), "returns NoneType"),
    "pool indices": (nn.MaxPool2d(2, return_indices=True), (torch.randn(1, 1, 4, 4),), "differs from the"),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_what_cannot_be_imported_is_one_line_that_says_why(name, capfd):
    module, inputs, expected = PROBLEMS[name]
    with pytest.raises(ImportProblem) as caught:
        from_torch(module, inputs)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == ""


def test_an_error_in_forward_names_the_users_line():
    def forward(x):
        return x.view(7)  # does not fit

    with pytest.raises(ImportProblem, match=r"at test_from_torch.py:[0-9]+: return x.view\(7\)"):
        from_torch(Function(forward), (torch.ones(4),))


@pytest.fixture
def user_file(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(
        "import torch\nfrom torch import nn\n\n"
        "class Scale(nn.Module):\n    def forward(self, x):\n        return 2 * x\n\n"
        "class Sized(nn.Module):\n    def __init__(self, size, depth):\n        super().__init__()\n\n"
        "class Broken(nn.Module):\n    def __init__(self):\n        raise KeyError('weights')\n\n"
        "class Quits(nn.Module):\n    def __init__(self):\n        raise SystemExit('no licence')\n\n"
        "def helper():\n    pass\n"
    )
    return path


def test_a_module_is_loaded_by_file_and_class(user_file):
    module, inputs = load_module(f"{user_file}:Scale", "f32[2,3]")
    assert show(from_torch(module, inputs).program).endswith("B[i,j] = 2*A[i,j]\n")
    assert not module.training


def test_a_file_and_class_is_told_from_other_workloads():
    assert all(map(is_file, ("models/attention.py:Attention", "model.py", "model.py:")))
    assert not any(map(is_file, ("softmax", "leir://basic/softmax", "a.leir", "package.a:B", "i:4\nA:f32[i] -> B.py")))


def test_inputs_are_read_as_leir_declares_tensors():
    assert parse_inputs(" f32[8,64]  i64[8] bool") == ((DType.F32, (8, 64)), (DType.I64, (8,)), (DType.BOOL, ()))


def test_a_module_is_loaded_twice_with_the_same_values(user_file):
    ((first,), (second,)) = (load_module(f"{user_file}:Scale", "f32[3,5]")[1] for _ in range(2))
    assert first.shape == (3, 5) and first.dtype is torch.float32 and torch.equal(first, second)


def test_constructor_arguments_come_from_the_file(user_file):
    user_file.write_text(
        "import torch\n\nclass Model(torch.nn.Module):\n    def __init__(self, width):\n"
        "        super().__init__()\n        self.linear = torch.nn.Linear(width, 2)\n\n"
        "def get_init_inputs():\n    return [3]\n\ndef get_inputs():\n    return [torch.ones(4, 3)]\n"
    )
    module, (x,) = load_module(f"{user_file}:Model")
    assert module.linear(x).shape == (4, 2)


def test_a_file_may_define_dataclasses(user_file):
    head = "from __future__ import annotations\nfrom dataclasses import dataclass\n"
    user_file.write_text(head + user_file.read_text() + "\n@dataclass\nclass Config:\n    size: int = 3\n")
    assert load_module(f"{user_file}:Scale", "f32[2]")


def test_a_reference_is_a_shipped_module_or_a_users_file(user_file):
    module, inputs = instantiate(load("linear_relu").reference)
    assert module(*inputs).shape == (128, 256)
    module, (x,) = instantiate(Reference(f"{user_file}:Scale", (), "f32[2,3]"))
    assert torch.equal(module(x), 2 * x)


def test_inputs_come_from_the_file_where_none_are_given(user_file):
    user_file.write_text(user_file.read_text() + "\ndef get_inputs():\n    return [torch.ones(5)]\n")
    _, inputs = load_module(f"{user_file}:Scale")
    assert [list(tensor.shape) for tensor in inputs] == [[5]]


@pytest.mark.parametrize(
    ("what", "inputs", "expected"),
    [
        ("Scale", None, "no get_inputs"),
        ("Scael", None, "Scael is not defined in model.py; it has Scale, Sized, Broken, Quits"),
        ("helper", None, "helper is not an nn.Module class"),
        ("Sized", "f32[2]", "needs the constructor arguments size, depth: give defaults, or define get_init_inputs"),
        ("Broken", "f32[2]", "KeyError: 'weights', at model.py:14"),
        ("Scale", "f32[2,]", "expected inputs like"),
        ("Scale", "f33[2]", "dtypes are f16, bf16"),
        ("Scale", "f32[8, 64]", "got 'f32[8,'"),
        ("Scale", "f32[8,64],i64[8]", "got 'f32[8,64],i64[8]'"),
        ("Scale", "f32[8] 12", "got '12'"),
        ("Scale", "f32[0]", "has 0 bytes"),
        ("Quits", "f32[2]", "SystemExit: no licence, at model.py:18"),
        ("Scale", "f32[100000,100000]", "has 40,000,000,000 bytes"),
    ],
)
def test_a_module_that_cannot_be_loaded_says_why(user_file, what, inputs, expected):
    with pytest.raises(ImportProblem) as caught:
        load_module(f"{user_file}:{what}", inputs)
    assert expected in str(caught.value)


@pytest.mark.parametrize("what", ["model.py", "model.txt:A", "nowhere.py:A", ":", ""])
def test_a_malformed_module_name_is_an_error(what):
    with pytest.raises(ImportProblem, match=r"expected file.py:Class|no file"):
        load_module(what)


def test_a_file_that_does_not_run_names_its_line(tmp_path):
    path = tmp_path / "bad.py"
    path.write_text("x = 1\ny = x / 0\n")
    with pytest.raises(ImportProblem, match=r"bad.py: ZeroDivisionError: .*, at bad.py:2: y = x / 0"):
        load_module(f"{path}:A")


def test_a_file_that_is_not_python_names_its_line(tmp_path):
    path = tmp_path / "bad.py"
    path.write_text("def broken(:\n")
    with pytest.raises(ImportProblem, match=r"^bad.py: SyntaxError: invalid syntax \(bad.py, line 1\)$"):
        load_module(f"{path}:A")


if __name__ == "__main__":
    regenerate()
