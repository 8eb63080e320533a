"""Operators by name and workloads of modules become tuning tasks; what makes no sense is said in words."""

import math
from pathlib import Path

import numpy as np
import pytest

from retune.compiler.core.errors import OptionError
from retune.compiler.core.target import Target
from retune.compiler.driver.build import build_kernel
from retune.compiler.schedule.default.cpu import default_steps
from retune.compiler.tune.operators import OPERATORS, Operator, extract_operator, is_operator

HOST = str(Target.host())

SIZES = {
    "matmul": (8, 12, 16),
    "batch_matmul": (2, 4, 6, 8),
    "conv2d": (9, 9, 4, 8, 3, 2),
    "depthwise_conv2d": (8, 8, 4, 3),
    "softmax": (4, 16),
    "layer_norm": (4, 16),
}
OUTPUTS = {
    "matmul": (8, 12),
    "batch_matmul": (2, 4, 6),
    "conv2d": (1, 5, 5, 8),
    "depthwise_conv2d": (1, 8, 8, 4),
    "softmax": (4, 16),
    "layer_norm": (4, 16),
}


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_an_operator_is_a_task_that_can_be_built(name: str) -> None:
    text = str(Operator.of(name, SIZES[name]))
    assert is_operator(text)
    assert str(Operator.parse(text)) == text
    found = extract_operator(text, HOST, 1)
    (task,) = found.tasks
    assert found.task_keys == (task.workload_key,)
    assert task.dag.outputs[0].shape == OUTPUTS[name]
    assert math.isfinite(task.flop_count)
    assert build_kernel(task, default_steps(task.dag), "k").object_code


def test_a_convolution_counts_its_operations() -> None:
    (task,) = extract_operator(str(Operator.of("conv2d", (56, 56, 64, 64, 3))), HOST, 1).tasks
    assert task.flop_count == pytest.approx(2 * 56 * 56 * 64 * 64 * 9, rel=0.05)


def test_a_workload_of_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_workloads.py").write_text(
        "from retune.compiler import auto_scheduler, te\n\n"
        "@auto_scheduler.register_workload('doubled rows')\n"
        "def doubled(n, m):\n"
        "    x = te.placeholder((n, m), name='x')\n"
        "    return [x, te.compute((n, m), lambda i, j: x[i, j] * 2.0, name='y')]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    text = str(Operator.of("doubled rows", [4, 8], "my_workloads"))
    assert text == 'operator:my_workloads:["doubled rows", 4, 8]'
    (task,) = extract_operator(text, HOST, 2).tasks
    assert np.prod(task.dag.outputs[0].shape) == 32
    with pytest.raises(OptionError, match="halved"):
        extract_operator(str(Operator.of("halved", [4, 8], "my_workloads")), HOST, 2)
    with pytest.raises(OptionError, match="missing 1 required positional"):
        extract_operator(str(Operator.of("doubled rows", [4], "my_workloads")), HOST, 2)


@pytest.mark.parametrize(
    ("name", "args", "said"),
    [
        ("matrix", (1, 2, 3), "there is no operator 'matrix'; there are matmul"),
        ("matmul", (1, 2), "missing a required argument: 'inner'"),
        ("matmul", (1, 2, 3, 4), "too many positional arguments"),
        ("matmul", (1, 0, 3), "integers of at least 1"),
        ("matmul", (1, "x", 3), "integers of at least 1"),
    ],
)
def test_what_makes_no_sense(name: str, args: tuple[int, ...], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        Operator.of(name, args)


@pytest.mark.parametrize("text", ["resnet18", "operator:", "operator:[5]", "operator:module", 'operator:["a"'])
def test_other_texts_are_no_operators(text: str) -> None:
    with pytest.raises(OptionError, match="is no operator"):
        Operator.parse(text)


def test_a_module_that_is_not_there() -> None:
    with pytest.raises(OptionError, match="no_such_module cannot be imported"):
        extract_operator('operator:no_such_module:["f", 1]', HOST, 1)
