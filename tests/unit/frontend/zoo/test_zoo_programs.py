"""Networks of the zoo whose number of tokens is known when they run, against ONNX Runtime."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

from benchmarks import zoo
from retune.compiler.frontend.importer import load_model
from retune.compiler.frontend.program import load_program
from retune.compiler.graph.program import Call, Loop
from tests.support.run_program import run_program
from tests.support.zoo_sizes import PROGRAMS, SMALL

Array = NDArray[Any]


def _wanted(model: onnx.ModelProto, inputs: dict[str, Array]) -> list[Array]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, inputs))


def _assert_close(found: tuple[Array, ...], wanted: list[Array]) -> None:
    for ours, theirs in zip(found, wanted, strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def test_every_program_is_tested() -> None:
    assert tuple(PROGRAMS) == zoo.PROGRAM_NAMES


@pytest.mark.parametrize(("batch", "tokens"), [(1, 1), (2, 5), (1, 12)])
def test_bert_of_any_length_is_one_region(batch: int, tokens: int) -> None:
    model = zoo.build("bert_base", **{**SMALL["bert_base"], "batch": "batch", "tokens": "tokens"})
    program = load_program(model)
    (call,) = program.main.body
    assert isinstance(call, Call)
    assert call.region.determining == ()
    rng = np.random.default_rng(tokens)
    inputs = {
        "input_ids": rng.integers(0, 50, (batch, tokens)),
        "attention_mask": (rng.random((batch, tokens)) < 0.8).astype("int64"),
        "token_type_ids": rng.integers(0, 2, (batch, tokens)),
    }
    _assert_close(run_program(program, inputs), _wanted(model, inputs))


def test_bert_of_any_length_has_the_graph_of_bert_of_that_length() -> None:
    program = load_program(zoo.build("bert_base", **{**SMALL["bert_base"], "tokens": "tokens"}))
    (region,) = program.regions()
    graph = region.specialize(dict.fromkeys(region.inputs, (2, 7)), {}, program.constants)
    static = load_model(zoo.build("bert_base", **SMALL["bert_base"]))
    assert [(node.op, node.outputs) for node in graph.nodes] == [(node.op, node.outputs) for node in static.nodes]


@pytest.mark.parametrize(("tokens", "steps"), [(1, 4), (5, 7), (3, 1)])
def test_gpt2_writes_on(tokens: int, steps: int) -> None:
    model = zoo.build("gpt2_greedy", **PROGRAMS["gpt2_greedy"])
    program = load_program(model)
    loop = program.main.body[-1]
    assert isinstance(loop, Loop)
    assert [type(statement) for statement in program.functions[loop.body].body] == [Call]
    assert all(region.determining == () for region in program.regions())
    inputs = {"input_ids": np.random.default_rng(tokens).integers(0, 50, (1, tokens)), "steps": np.array(steps)}
    found = run_program(program, inputs)
    assert found[0].shape == (1, tokens + steps)
    _assert_close(found, _wanted(model, inputs))


def test_gpt2_ends_behind_the_last_word() -> None:
    inputs = {"input_ids": np.array([[3, 1, 4]]), "steps": np.array(8)}
    options = PROGRAMS["gpt2_greedy"]
    (free, _) = run_program(load_program(zoo.build("gpt2_greedy", **options)), inputs)
    end = int(free[0, 5])
    model = zoo.build("gpt2_greedy", **options, end=end)
    found = run_program(load_program(model), inputs)
    first = 3 + list(free[0, 3:]).index(end)
    np.testing.assert_array_equal(found[0], free[:, : first + 1])
    _assert_close(found, _wanted(model, inputs))
