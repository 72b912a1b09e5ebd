"""Modules of common practice import and agree with PyTorch, or the error names the operator."""

import pytest

torch = pytest.importorskip("torch")

from envs.leir_env.from_torch import ImportProblem, from_torch  # noqa: E402
from envs.leir_env.parser import parse  # noqa: E402
from envs.leir_env.printer import show  # noqa: E402
from envs.leir_env.torch_files import parse_inputs, sample  # noqa: E402
from tests.datagen.practice import MODULES, UNSUPPORTED  # noqa: E402


def imported(make, inputs):
    torch.manual_seed(0)
    return from_torch(make().eval(), sample(parse_inputs(inputs))).program


@pytest.mark.parametrize("name", MODULES)
def test_a_module_of_common_practice_imports_and_agrees_with_pytorch(name):
    # from_torch verifies the program and compares it with the module in float64.
    text = show(imported(*MODULES[name]))
    assert show(parse(text)) == text


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_cannot_be_imported_names_the_operator(name):
    make, inputs, operator = UNSUPPORTED[name]
    with pytest.raises(ImportProblem, match=operator) as caught:
        imported(make, inputs)
    assert "\n" not in str(caught.value)


def test_a_clamped_index_stays_clamped():
    text = show(imported(*MODULES["clamped_lookup"]))
    assert "C[i,j,k] = B[max(min(10*A[i,j]-3,5),0),k]" in text
