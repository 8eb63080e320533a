"""Random networks with conditions, loops and scans inside each other compute what ONNX Runtime computes; broken ones
are refused with errors of our own.

The seed is in the header of the test run; `--property-seed N` uses another one.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random

import numpy as np
import onnx
import onnxruntime
import pytest

from retune.compiler.core.errors import ModelError, ShapeMismatchError
from retune.compiler.frontend.dependence import bodies
from retune.compiler.frontend.importer import CONVERTERS
from retune.compiler.frontend.program import load_program
from retune.compiler.graph.program import Program
from retune.compiler.runtime.artifact import Array
from retune.compiler.vm.compiler import compile as vm_compile
from retune.compiler.vm.machine import VirtualMachine
from retune.compiler.vm.resources import VMOptions
from tests.support.property.onnx_models import COLUMNS, random_model
from tests.support.run_program import run_program
from tests.support.tiers import long_except, long_rows

SHARDS = 4
EACH = 25
ROWS = (1, 3, 8)


def _kinds(program: Program) -> Counter[str]:
    return Counter(type(statement).__name__ for function in program.functions.values() for statement in function.body)


@pytest.mark.parametrize("shard", long_except([0], range(SHARDS)))
def test_random_networks_match_onnxruntime(shard: int, property_seed: int) -> None:
    kinds: Counter[str] = Counter()
    for number in range(EACH):
        seed = (property_seed * SHARDS + shard) * EACH + number
        model = random_model(seed)
        program = load_program(model)
        kinds += _kinds(program)
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        rng = np.random.default_rng(seed)
        for rows in ROWS:
            inputs = {name: rng.standard_normal((rows, COLUMNS)).astype("float32") for name in ("x", "z")}
            found = run_program(program, inputs)
            for ours, theirs in zip(found, session.run(None, inputs), strict=True):
                assert ours.shape == theirs.shape, f"seed {seed}, {rows} rows"
                np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-4, err_msg=f"seed {seed}, {rows} rows")
    for kind in ("Call", "HostCall", "Branch", "Loop"):
        assert kinds[kind] >= EACH // 3, kinds


def _outputs(compute: Callable[[], Sequence[Array]]) -> Sequence[Array] | None:
    """The outputs; None where shapes do not fit, as they may not without rows: loops then collect nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy about the mean of no rows
        try:
            return compute()
        except ShapeMismatchError:
            return None


@pytest.mark.parametrize(("policy", "count"), long_rows([("never", 10)], [("now", 5), ("never", 10), ("never", 25)]))
def test_the_virtual_machine_agrees_with_the_interpreter(policy: str, count: int, property_seed: int) -> None:
    for seed in range(property_seed * EACH, property_seed * EACH + count):
        program = load_program(random_model(seed))
        machine = VirtualMachine(vm_compile(program), options=VMOptions(specialize=policy))
        rng = np.random.default_rng(seed)
        for rows in (3, 0, 1):
            inputs = {name: rng.standard_normal((rows, COLUMNS)).astype("float32") for name in ("x", "z")}
            made, wanted = _outputs(partial(machine.run, **inputs)), _outputs(partial(run_program, program, inputs))
            assert (made is None) == (wanted is None), f"seed {seed}, {rows} rows"
            assert made is not None or rows == 0, f"seed {seed}, {rows} rows"
            for ours, theirs in zip(made or (), wanted or (), strict=True):
                assert ours.shape == theirs.shape, f"seed {seed}, {rows} rows"
                np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-4, err_msg=f"seed {seed}, {rows} rows")


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for inner in bodies(node):
            yield from _graphs(inner)


def _break(model: onnx.ModelProto, draw: Random) -> None:
    """Change one thing in one of the graphs."""
    graph = draw.choice([graph for graph in _graphs(model.graph) if graph.node])
    node = draw.choice(graph.node)
    names = [name for other in _graphs(model.graph) for each in other.node for name in (*each.input, *each.output)]
    match draw.randrange(9):
        case 0:
            node.op_type = draw.choice(sorted(CONVERTERS))
        case 1 if node.input:
            node.input[draw.randrange(len(node.input))] = draw.choice([*names, "", "nowhere"])
        case 2 if node.input:
            del node.input[draw.randrange(len(node.input)) :]
        case 3 if node.attribute:
            node.attribute.remove(draw.choice(node.attribute))
        case 4 if graph.input:
            graph.input.remove(draw.choice(graph.input))
        case 5 if graph.output:
            graph.output.remove(draw.choice(graph.output))
        case 6 if graph.output:
            draw.choice(graph.output).name = draw.choice(names)
        case 7:
            draw.choice([*graph.input, *graph.output, *model.graph.input]).type.tensor_type.elem_type = draw.choice(
                [onnx.TensorProto.UNDEFINED, onnx.TensorProto.INT64, onnx.TensorProto.BOOL, onnx.TensorProto.STRING, 99]
            )
        case _:
            del node.output[draw.randrange(len(node.output)) :]


@pytest.mark.parametrize("shard", long_except([0], range(SHARDS)))
def test_broken_networks_are_refused(shard: int, property_seed: int) -> None:
    refused = 0
    for number in range(EACH * 3):
        seed = (property_seed * SHARDS + shard) * EACH * 3 + number
        model = random_model(seed)
        _break(model, Random(seed))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # NumPy about numbers that are none
                program = load_program(model)
                inputs = {param.name: np.ones((3, COLUMNS), "float32") for param in program.inputs}
                run_program(program, inputs)
        except (ModelError, ShapeMismatchError):
            refused += 1
    assert EACH // 2 < refused < EACH * 3
