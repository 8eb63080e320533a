"""A new operator is one `Op` in one module: described, evaluated, fused, compiled and run without another line."""

import importlib
from pathlib import Path

import numpy as np
import pytest

from retune.compiler.core.errors import DefinitionError
from retune.compiler.core.target import Target
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.evaluate import evaluate
from retune.compiler.graph.ir import Value
from retune.compiler.graph.partition.fuse import fuse
from retune.compiler.graph.pipeline import optimize
from retune.compiler.ops import OPS
from retune.compiler.runtime.executor.executors import executor_of

MODULE = '''
import numpy as np

from retune.compiler import te
from retune.compiler.ops import FusionKind, Lowered, Op


def _lower(call):
    """Elements `shift` places on along the last axis, in a circle."""
    (x,) = call.types
    call.require(len(x.shape) > 0, "a scalar cannot be rolled")
    extent, shift = x.shape[-1], call.integer("shift")

    def build(source):
        return te.compute(x.shape, lambda *i: source[(*i[:-1], (i[-1] + shift) % extent)], name=call.name)

    return Lowered(x.shape, x.dtype, build)


def _evaluate(call, arrays):
    return np.roll(arrays[0], -call.integer("shift"), axis=-1)


ROLL = Op("roll", 1, FusionKind.INJECTIVE, _lower, _evaluate, {"shift": int})
'''


@pytest.fixture
def roll(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table with an operator of a module that was not there before."""
    (tmp_path / "rolling_operator.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(OPS, "roll", importlib.import_module("rolling_operator").ROLL)


@pytest.mark.usefixtures("roll")
def test_an_operator_of_one_module_compiles_and_runs() -> None:
    builder = GraphBuilder("rolled", [Value("x", (3, 5))])
    rolled = builder.emit("roll", ["x"], {"shift": 2}, name="turn")
    graph = optimize(builder.finish({"y": builder.emit("relu", [rolled])}))
    assert [str(group) for group in fuse(graph).groups] == ["roll+relu -> y"]
    executor = executor_of(compile_graph(graph, Target.host()), 1)
    x = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    executor.run(x=x)
    wanted = np.maximum(np.roll(x, -2, axis=-1), 0)
    np.testing.assert_array_equal(executor.get_output(0), wanted)
    np.testing.assert_array_equal(evaluate(graph, {"x": x})[0], wanted)


@pytest.mark.usefixtures("roll")
def test_a_misfit_of_an_added_operator_is_explained() -> None:
    builder = GraphBuilder("rolled", [Value("x", ())])
    with pytest.raises(DefinitionError, match=r"roll 'turn' of \(x: float32\[\]\): a scalar cannot be rolled"):
        builder.emit("roll", ["x"], {"shift": 2}, name="turn")
