"""Regions with symbolic dimensions: the static graphs that they become are those that the importer makes."""

from collections.abc import Mapping
from random import Random
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from benchmarks import zoo
from retune.compiler.core.errors import ArtifactError, DefinitionError, RetuneError, ShapeMismatchError
from retune.compiler.frontend.program import load_program
from retune.compiler.frontend.region import OnnxRegion
from retune.compiler.graph.ir import Value
from retune.compiler.graph.program import Call, Program
from retune.compiler.graph.region import Region
from retune.compiler.graph.symbolic import SymbolicBuilder
from retune.compiler.graph.symbolic_region import SymbolicRegion
from retune.compiler.ir.dims import Dim
from retune.compiler.ir.guards import Assumptions
from retune.compiler.vm.dim_flow import DimFlow
from tests.support.dynamic_models import INT64, attention, floats, model, tensor
from tests.support.zoo_sizes import SMALL

node = helper.make_node
Shapes = Mapping[str, tuple[int, ...]]


def _read(kind: str, data: bytes) -> Region:
    assert kind == "onnx"
    return OnnxRegion.from_bytes(data)


def _regions(program: Program) -> list[tuple[OnnxRegion, SymbolicRegion]]:
    """Each region of a program, and the symbolic one, which has been data in between."""
    flow, pairs = DimFlow(program), []
    for function in program.functions.values():
        for call in (statement for statement in function.body if isinstance(statement, Call)):
            region = flow.symbolic(function.name, call)
            assert isinstance(call.region, OnnxRegion)
            assert isinstance(region, SymbolicRegion), f"{call.region.name} has no symbolic graph"
            pairs.append((call.region, SymbolicRegion.from_bytes(region.to_bytes(), _read)))
    return pairs


def _serves(region: SymbolicRegion, shapes: Shapes, values: Mapping[str, Any], program: Program) -> bool:
    every = {**values, **{name: program.constants[name] for name in region.constants}}
    return any(variant.numbers(shapes, every) is not None for variant in region.variants)


def _agree(program: Program, shapes: Shapes, values: Mapping[str, Any] | None = None) -> None:
    """The only region of the program serves these shapes, and gives the importer's graph."""
    ((original, region),) = _regions(program)
    held = dict(values or {})
    assert _serves(region, shapes, held, program), f"none of {[v.guards for v in region.variants]} fits {shapes}"
    graphs = [one.specialize(shapes, held, program.constants) for one in (original, region)]
    assert graphs[1].fingerprint() == graphs[0].fingerprint(), f"{graphs[1]}\nnot\n{graphs[0]}"


def positions() -> onnx.ModelProto:
    """A slice of a table as long as the input, and the numbers of its rows as values."""
    nodes = [
        node("Shape", ["x"], ["length"], start=1, end=2),
        node("Slice", ["table", "first", "length", "axis"], ["rows"]),
        node("Squeeze", ["length"], ["scalar"]),
        node("Range", ["nought", "scalar", "step"], ["numbers"]),
        node("Cast", ["numbers"], ["floats"], to=1),
        node("Mul", ["x", "floats"], ["scaled"]),
        node("Add", ["scaled", "rows"], ["sum"]),
        node("Slice", ["sum", "first", "ends", "axes"], ["out"]),
    ]
    weights = {
        "table": floats(16),
        "first": np.array([0]),
        "axis": np.array([0]),
        "axes": np.array([1]),
        "nought": np.array(0),
        "step": np.array(1),
        "ends": np.array([-1]),
    }
    return model(nodes, [tensor("x", ["b", "n"])], [tensor("out", ["b", None])], weights)


def pooled() -> onnx.ModelProto:
    """Extents that strides divide, with a rest."""
    nodes = [
        node("Conv", ["x", "w"], ["first"], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("MaxPool", ["first"], ["second"], kernel_shape=[3, 3], strides=[2, 2]),
        node("Flatten", ["second"], ["out"]),
    ]
    fed = [tensor("x", ["b", 3, "h", "w_"])]
    return model(nodes, fed, [tensor("out", ["b", None])], {"w": floats(4, 3, 3, 3)})


@pytest.mark.parametrize(("rows", "length"), [(0, 3), (1, 1), (1, 5), (2, 2), (3, 3), (4, 9), (5, 1)])
@pytest.mark.parametrize("build", [attention, positions])
def test_one_symbolic_graph_becomes_the_graph_of_every_shape(build: Any, rows: int, length: int) -> None:
    source = build()
    _agree(load_program(source), {"x": (rows, length, 8) if build is attention else (rows, length)})


@pytest.mark.parametrize("size", [(1, 3, 9, 9), (2, 3, 16, 33), (3, 3, 64, 17)])
def test_extents_that_strides_divide(size: tuple[int, ...]) -> None:
    _agree(load_program(pooled()), {"x": size})


@pytest.fixture(scope="module")
def bert() -> Program:
    return load_program(zoo.build("bert_base", **{**SMALL["bert_base"], "batch": 1, "layers": 1, "tokens": "tokens"}))


@pytest.mark.parametrize("tokens", [1, 2, 7, 12, 64, 128, 512])
def test_bert_has_symbolic_graphs_for_every_length(bert: Program, tokens: int) -> None:
    names = ("input_ids", "attention_mask", "token_type_ids")
    _agree(bert, dict.fromkeys(names, (1, tokens)))


def test_a_loop_with_a_growing_cache_needs_no_importer() -> None:
    sizes = {"width": 48, "heads": 4, "hidden": 96, "words": 60, "positions": 128, "end": 7}
    program = load_program(zoo.build("gpt2_greedy", **sizes))
    (_, prompt), (original, step) = _regions(program)
    assert _serves(prompt, {"input_ids": (1, 9)}, {}, program)
    for past in (1, 9, 100):
        cache = (1, 4, past, 12)
        shapes = {"step_ids": (1, past), "step_word": (1, 1), "step_past_key": cache, "step_past_value": cache}
        assert _serves(step, shapes, {}, program)
        graphs = [one.specialize(shapes, {}, program.constants) for one in (original, step)]
        assert graphs[0].fingerprint() == graphs[1].fingerprint()


@pytest.mark.parametrize("target", [(2, 6), (12, 1), (3, 4)])
def test_an_input_that_decides_on_shapes_is_symbols(target: tuple[int, int]) -> None:
    fed = [tensor("x", ["n"]), tensor("target", [2], INT64)]
    source = model([node("Reshape", ["x", "target"], ["out"])], fed, [tensor("out", [None, None])])
    program = load_program(source)
    ((original, _),) = [(call.region, call) for call in program.main.body if isinstance(call, Call)]
    assert original.determining == ("target",)
    region = DimFlow(program).symbolic("main", program.main.body[0])  # type: ignore[arg-type]
    values = {"target": np.array(target)}
    graphs = [one.specialize({"x": (12,), "target": (2,)}, values, {}) for one in (original, region)]
    assert graphs[0].fingerprint() == graphs[1].fingerprint()


def test_shapes_that_no_symbolic_graph_fits_are_left_to_the_importer() -> None:
    """A Fourier transform multiplies by a constant matrix: it has a symbolic graph for one number of samples."""
    fed, out = [tensor("x", ["steps", "b", 2])], [tensor("out", ["steps", "b", 2])]
    program = load_program(model([node("DFT", ["x"], ["out"], axis=0)], fed, out))
    (call,) = program.main.body
    assert isinstance(call, Call)
    assert DimFlow(program).symbolic("main", call) is call.region
    region = call.region.symbolic({"x": (4, "b", 2)}, {}, program.constants)
    assert isinstance(region, SymbolicRegion)
    for steps, serves in ((4, True), (5, False)):
        assert _serves(region, {"x": (steps, 3, 2)}, {}, program) == serves
        found = region.evaluate({"x": floats(steps, 3, 2)}, program.constants)
        np.testing.assert_array_equal(found, call.region.evaluate({"x": floats(steps, 3, 2)}, program.constants))
    with pytest.raises(ShapeMismatchError):
        region.specialize({"x": (3,)}, {}, program.constants)


def test_a_symbolic_graph_joins_many_operands_in_groups() -> None:
    """An expression is as deep as a concatenation has operands, see `GraphBuilder.emit`."""
    joined = node("Concat", ["x"] * 200, ["out"], axis=0)
    program = load_program(model([joined], [tensor("x", ["n", 4])], [tensor("out", [None, 4])], {}))
    ((_, region),) = _regions(program)
    assert max(len(one.inputs) for one in region.variants[0].graph.nodes) == 64
    _agree(program, {"x": (3, 4)})


def test_a_symbolic_graph_has_no_value_beyond_the_largest_size() -> None:
    builder = SymbolicBuilder("large", [Value("x", (1,))], {})
    with pytest.raises(DefinitionError, match="too many elements"):
        builder.emit("broadcast_to", ["x"], {"shape": (2**20, 2**20)})
    with Assumptions({"n": 7}) as assumed:
        builder.emit("broadcast_to", ["x"], {"shape": (Dim.symbol("n"), 2**20)})
    assert all(2**20 not in guard.dim.terms.values() for guard in assumed.guards)


def test_numpy_computes_the_same_by_either_region() -> None:
    program = load_program(positions())
    ((original, region),) = _regions(program)
    inputs = {"x": floats(3, 5)}
    found = [one.evaluate(inputs, program.constants)[0] for one in (original, region)]
    np.testing.assert_array_equal(found[0], found[1])


def test_damaged_symbolic_regions_are_rejected() -> None:
    """Every part has a checksum, so that only the padding between parts may change unseen."""
    ((_, region),) = _regions(load_program(attention()))
    data = region.to_bytes()
    draw, rejected = Random(5), 0
    for _ in range(200):
        damaged = bytearray(data)
        damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
        try:
            again = SymbolicRegion.from_bytes(bytes(damaged), _read)
        except ArtifactError:
            rejected += 1
            continue
        try:
            graph = again.specialize({"x": (2, 3, 8)}, {}, load_program(attention()).constants)
        except RetuneError:
            continue
        assert graph.output_values()[0].shape == (2, 3, 8)
    assert rejected > 100
