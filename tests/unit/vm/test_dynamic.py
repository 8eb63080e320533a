"""Networks whose shapes are known only when they run, beside ONNX Runtime."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from retune.compiler import vm
from retune.compiler.core.errors import ArtifactError, MachineError, RetuneError, ShapeMismatchError
from retune.compiler.core.input_shapes import Size
from retune.compiler.frontend.program import load_program
from retune.compiler.runtime.archive import archive_bytes
from retune.compiler.runtime.buffers import aligned_array
from retune.compiler.runtime.device import cpu
from retune.compiler.vm.library import VERSION
from retune.compiler.vm.saved_program import program_parts
from tests.support.dynamic_models import Dims, branching, floats, model, reference, staying, tensor

Array = NDArray[Any]
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
node = helper.make_node


def machine_of(source: onnx.ModelProto) -> vm.VirtualMachine:
    """A machine for it, after it went through bytes and back."""
    code, library = vm.compile(source).save()
    return vm.VirtualMachine(vm.Executable.load_exec(code, library), cpu())


def outputs_of(machine: vm.VirtualMachine, inputs: Mapping[str, Array]) -> list[Array]:
    found = machine.run(**inputs)
    return list(found) if isinstance(found, vm.ADT) else [found]


def check(source: onnx.ModelProto, *given: Mapping[str, Array], machine: vm.VirtualMachine | None = None) -> None:
    """The machine gives what ONNX Runtime gives, for one set of inputs after the other."""
    machine = machine or machine_of(source)
    for inputs in given:
        for mine, theirs in zip(outputs_of(machine, inputs), reference(source, inputs), strict=True):
            assert mine.dtype == theirs.dtype
            np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=1e-5)


def one_node(
    op: str,
    inputs: Sequence[tuple[str, Dims, int]],
    rank: int | None,
    weights: Mapping[str, Array] | None = None,
    kind: int = FLOAT,
    operands: Sequence[str] | None = None,
    **attributes: Any,
) -> onnx.ModelProto:
    """A model of one node that reads its inputs and then the weights; its result has `rank` unknown dimensions."""
    names = operands or [*(name for name, _, _ in inputs), *(weights or {})]
    out = tensor("out", None if rank is None else [None] * rank, kind)
    fed = [tensor(name, dims, each) for name, dims, each in inputs]
    return model([node(op, list(names), ["out"], **attributes)], fed, [out], weights)


@pytest.mark.parametrize(
    ("one", "two", "shapes"),
    [
        ((None,), (3, 2), [((1,), (3, 2)), ((2,), (3, 2))]),
        ((None, 2), (1, 2), [((1, 2), (1, 2)), ((4, 2), (1, 2))]),
        ((None, 2), (3, None), [((3, 2), (3, 1)), ((1, 2), (3, 2))]),
        ((None, 2), (None, 2), [((5, 2), (1, 2)), ((1, 2), (5, 2)), ((3, 2), (3, 2))]),
        ((None, None), (None, None), [((1, 4), (4, 1)), ((2, 3), (2, 3))]),
        ((3, None), (None,), [((3, 5), (5,)), ((3, 1), (7,))]),
    ],
)
def test_additions_of_unknown_dimensions_broadcast(one: Dims, two: Dims, shapes: Any) -> None:
    source = one_node("Add", [("x", one, FLOAT), ("y", two, FLOAT)], 2)
    check(source, *({"x": floats(*first), "y": floats(*second, seed=1)} for first, second in shapes))


@pytest.mark.parametrize(
    ("one", "two"), [((3,), (3, 2)), ((4, 2), (3, 2)), ((2, 3), (2, 2)), ((5, 2), (4, 1, 3)), ((2, 2, 2), (3, 2))]
)
def test_dimensions_that_do_not_fit_are_an_error(one: tuple[int, ...], two: tuple[int, ...]) -> None:
    fed: list[tuple[str, Dims, int]] = [("x", [None] * len(one), FLOAT), ("y", [None] * len(two), FLOAT)]
    machine = machine_of(one_node("Add", fed, max(len(one), len(two))))
    with pytest.raises(RetuneError):
        machine.run(x=floats(*one), y=floats(*two))
    fitting = machine.run(x=floats(*one), y=floats(*one[-1:] if len(two) == 1 else (1,) * len(two)))
    assert fitting.size == floats(*one).size


@pytest.mark.parametrize("op", ["Sqrt", "Neg", "Exp", "Round"])
def test_elementwise_operators_take_dynamic_shapes(op: str) -> None:
    source = one_node(op, [("x", [None, "n"], FLOAT)], 2)
    check(source, {"x": floats(3, 4, low=0.1)}, {"x": floats(5, 1, low=0.1)})


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_arrays_take_the_dynamic_shape_of_another(rank: int, value: float) -> None:
    filled = helper.make_tensor("value", FLOAT, [1], [value])
    nodes = [node("Shape", ["x"], ["shape"]), node("ConstantOfShape", ["shape"], ["out"], value=filled)]
    source = model(nodes, [tensor("x", [None] * rank)], [tensor("out", [None] * rank)])
    check(source, {"x": floats(*range(2, 2 + rank))})


def test_full_takes_its_shape_from_an_input() -> None:
    source = one_node(
        "Expand", [("shape", [3], INT64)], 3, {"one": np.ones((1,), np.float32)}, operands=["one", "shape"]
    )
    check(source, {"shape": np.array([2, 1, 3])}, {"shape": np.array([1, 4, 2])})


X = [("x", [None, None], FLOAT)]
SHAPE_CHANGING: dict[str, tuple[onnx.ModelProto, list[dict[str, Array]]]] = {
    "concat": (
        one_node("Concat", [("x", [None, 2], FLOAT), ("y", [None, 2], FLOAT)], 2, axis=0),
        [{"x": floats(3, 2), "y": floats(4, 2)}, {"x": floats(1, 2), "y": floats(1, 2)}],
    ),
    "reshape": (
        one_node("Reshape", X, 2, {"shape": np.array([2, -1])}),
        [{"x": floats(4, 3)}, {"x": floats(2, 5)}],
    ),
    "reshape by data": (
        one_node("Reshape", [*X, ("shape", [2], INT64)], 2),
        [{"x": floats(4, 3), "shape": np.array([2, 6])}, {"x": floats(4, 3), "shape": np.array([3, 4])}],
    ),
    "one_hot": (
        one_node(
            "OneHot",
            [("x", [None], INT64)],
            2,
            {"depth": np.array(7), "values": np.array([0, 1], np.float32)},
        ),
        [{"x": np.array([1, 6])}, {"x": np.array([0, 2, 3])}],
    ),
    "argwhere": (
        one_node("NonZero", [("x", [None, None], FLOAT)], 2, kind=INT64),
        [{"x": np.eye(3, dtype=np.float32)}, {"x": np.ones((2, 2), np.float32)}, {"x": np.zeros((2, 2), np.float32)}],
    ),
    "take": (
        one_node("Gather", [*X, ("at", [None], INT64)], 2, axis=0),
        [{"x": floats(4, 3), "at": np.array([1, 0, 3])}, {"x": floats(2, 2), "at": np.array([1])}],
    ),
    "tile": (one_node("Tile", X, 2, {"times": np.array([2, 3])}), [{"x": floats(2, 1)}, {"x": floats(3, 2)}]),
    "shape_of": (one_node("Shape", X, 1, kind=INT64), [{"x": floats(2, 1)}, {"x": floats(3, 2)}]),
    "expand_dims": (one_node("Unsqueeze", X, 3, {"axes": np.array([1])}), [{"x": floats(2, 3)}]),
    "transpose": (one_node("Transpose", X, 2, perm=[1, 0]), [{"x": floats(2, 3)}, {"x": floats(4, 1)}]),
    "squeeze": (
        one_node("Squeeze", [("x", [1, None, 1], FLOAT)], 1, {"axes": np.array([0, 2])}),
        [{"x": floats(1, 3, 1)}, {"x": floats(1, 2, 1)}],
    ),
    "batch_flatten": (
        one_node("Flatten", [("x", [None, 2, None], FLOAT)], 2, axis=1),
        [{"x": floats(2, 2, 3)}, {"x": floats(5, 2, 1)}],
    ),
    "pad": (
        one_node("Pad", X, 2, {"pads": np.array([1, 0, 0, 2])}),
        [{"x": floats(2, 3)}, {"x": floats(1, 1)}],
    ),
    "strided_slice": (
        one_node("Slice", X, 2, {name: np.array([n]) for name, n in (("from", 1), ("to", 9), ("axis", 1), ("by", 2))}),
        [{"x": floats(2, 6)}, {"x": floats(3, 3)}],
    ),
    "strided_slice by data": (
        one_node("Slice", [*X, ("from", [1], INT64), ("to", [1], INT64)], 2),
        [{"x": floats(6, 2), "from": np.array([first]), "to": np.array([end])} for first, end in ((1, 4), (0, 1))],
    ),
    "arange": (
        one_node("Range", [("start", [], INT64), ("stop", [], INT64), ("step", [], INT64)], 1, kind=INT64),
        [
            {"start": np.array(0), "stop": np.array(5), "step": np.array(1)},
            {"start": np.array(3), "stop": np.array(12), "step": np.array(4)},
        ],
    ),
    "where": (
        one_node("Where", [("c", [None, None], BOOL), *X, ("y", [None, None], FLOAT)], 2),
        [{"c": np.array([[True, False]]), "x": floats(1, 2), "y": floats(3, 2)}],
    ),
    "gather": (
        one_node("GatherElements", [*X, ("at", [None, None], INT64)], 2, axis=1),
        [{"x": floats(2, 3), "at": np.array([[0, 2], [1, 1]])}, {"x": floats(1, 2), "at": np.array([[1]])}],
    ),
    "gather_nd": (
        one_node("GatherND", [*X, ("at", [None, 2], INT64)], 1),
        [{"x": floats(2, 3), "at": np.array([[0, 2], [1, 1]])}, {"x": floats(4, 4), "at": np.array([[3, 3]])}],
    ),
    "scatter_nd": (
        one_node("ScatterND", [("x", [None], FLOAT), ("at", [None, 1], INT64), ("new", [None], FLOAT)], 1),
        [{"x": floats(5), "at": np.array([[3], [1]]), "new": floats(2)}],
    ),
    "unique": (
        one_node("Unique", [("x", [None], FLOAT)], 1, axis=0),
        [{"x": np.array([2, 1, 2, 3], np.float32)}, {"x": np.array([1, 1], np.float32)}],
    ),
    "compress": (
        one_node("Compress", [("x", [None, 2], FLOAT), ("c", [None], BOOL)], 2, axis=0),
        [{"x": floats(3, 2), "c": np.array([True, False, True])}, {"x": floats(1, 2), "c": np.array([True])}],
    ),
}


@pytest.mark.parametrize("name", SHAPE_CHANGING)
def test_operators_that_change_shapes_take_dynamic_shapes(name: str) -> None:
    source, given = SHAPE_CHANGING[name]
    check(source, *given)


def _split() -> onnx.ModelProto:
    outs = [tensor(name, [None, None]) for name in ("a", "b")]
    return model([node("Split", ["x"], ["a", "b"], axis=0, num_outputs=2)], [tensor("x", [None, 3])], outs)


def test_split_takes_dynamic_shapes() -> None:
    check(_split(), {"x": floats(4, 3)}, {"x": floats(5, 3)})


def test_the_rank_of_an_array_may_be_unknown() -> None:
    """A loop whose array has a dimension more after every turn."""
    body = helper.make_graph(
        [
            node("Unsqueeze", ["carried", "first"], ["more"]),
            node("Add", ["more", "one"], ["sum"]),
            node("Identity", ["on"], ["still_on"]),
        ],
        "body",
        [tensor("i", [], INT64), tensor("on", [], BOOL), tensor("carried", None)],
        [tensor("still_on", [], BOOL), tensor("sum", None)],
    )
    nodes = [
        node("Loop", ["count", "", "x"], ["last"], body=body),
        node("Shape", ["last"], ["shape"]),
        node("Reshape", ["last", "flat"], ["out"]),
    ]
    fed = [tensor("count", [], INT64), tensor("x", ["n"])]
    weights = {"first": np.array([0]), "one": np.ones((), np.float32), "flat": np.array([-1])}
    source = model(nodes, fed, [tensor("shape", [None], INT64), tensor("out", [None])], weights)
    check(source, *({"count": np.array(iterations), "x": floats(3)} for iterations in (0, 1, 3)))


HEAVY: dict[str, tuple[onnx.ModelProto, list[dict[str, Array]]]] = {
    "conv2d": (
        one_node("Conv", [("x", [None, 3, None, None], FLOAT)], 4, {"w": floats(4, 3, 3, 3)}, pads=[1, 1, 1, 1]),
        [{"x": floats(1, 3, 6, 5)}, {"x": floats(2, 3, 4, 4)}],
    ),
    "conv2d_transpose": (
        one_node("ConvTranspose", [("x", [1, 2, None, None], FLOAT)], 4, {"w": floats(2, 3, 2, 2)}, strides=[2, 2]),
        [{"x": floats(1, 2, 3, 2)}],
    ),
    "max_pool2d": (
        one_node("MaxPool", [("x", [1, None, None, None], FLOAT)], 4, kernel_shape=[2, 2], strides=[2, 2]),
        [{"x": floats(1, 3, 6, 4)}, {"x": floats(1, 1, 4, 4)}],
    ),
    "global_avg_pool2d": (
        one_node("GlobalAveragePool", [("x", [None, 2, None, None], FLOAT)], 4),
        [{"x": floats(2, 2, 3, 5)}, {"x": floats(1, 2, 2, 2)}],
    ),
    "softmax": (one_node("Softmax", X, 2, axis=1), [{"x": floats(2, 5)}, {"x": floats(3, 2)}]),
    "dense": (
        one_node("MatMul", [("x", [None, 8], FLOAT)], 2, {"w": floats(8, 5)}),
        [{"x": floats(1, 8)}, {"x": floats(7, 8)}],
    ),
    "resize": (
        one_node(
            "Resize",
            [("x", [1, 1, None, None], FLOAT)],
            4,
            {"scales": np.array([1, 1, 2, 2], np.float32)},
            operands=["x", "", "scales"],
            mode="nearest",
        ),
        [{"x": floats(1, 1, 3, 2)}, {"x": floats(1, 1, 2, 2)}],
    ),
    "non_max_suppression": (
        one_node(
            "NonMaxSuppression",
            [("boxes", [1, None, 4], FLOAT), ("scores", [1, 1, None], FLOAT)],
            2,
            {"most": np.array([3]), "overlap": np.array([0.5], np.float32)},
            kind=INT64,
        ),
        [
            {
                "boxes": np.array([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 10, 1, 11]]], np.float32),
                "scores": np.array([[[0.9, 0.75, 0.6]]], np.float32),
            },
        ],
    ),
}


@pytest.mark.parametrize("name", HEAVY)
def test_heavy_operators_take_dynamic_shapes(name: str) -> None:
    source, given = HEAVY[name]
    check(source, *given)


def test_topk_takes_a_dynamic_k() -> None:
    outs = [tensor("v", [None, None]), tensor("i", [None, None], INT64)]
    fed = [tensor("x", [None, None]), tensor("k", [1], INT64)]
    source = model([node("TopK", ["x", "k"], ["v", "i"], axis=1)], fed, outs)
    check(source, {"x": floats(2, 5), "k": np.array([2])}, {"x": floats(3, 4), "k": np.array([4])})


def _growing() -> onnx.ModelProto:
    """A loop that puts its turn behind what it carries."""
    body = helper.make_graph(
        [
            node("Unsqueeze", ["i", "axes"], ["row"]),
            node("Cast", ["row"], ["float_row"], to=FLOAT),
            node("Concat", ["carried", "float_row"], ["longer"], axis=0),
            node("Identity", ["on"], ["still_on"]),
        ],
        "body",
        [tensor("i", [], INT64), tensor("on", [], BOOL), tensor("carried", [None, 1])],
        [tensor("still_on", [], BOOL), tensor("longer", [None, 1])],
    )
    weights = {"axes": np.array([0, 1])}
    loop = node("Loop", ["count", "", "start"], ["out"], body=body)
    fed = [tensor("count", [], INT64), tensor("start", [None, 1])]
    return model([loop], fed, [tensor("out", [None, 1])], weights)


def test_a_loop_may_make_its_array_longer() -> None:
    machine = machine_of(_growing())
    found = machine.run(count=np.array(10), start=np.zeros((1, 1), np.float32))
    assert found.shape == (11, 1)
    assert found.ravel().tolist() == [0.0, *map(float, range(10))]
    check(_growing(), {"count": np.array(0), "start": floats(2, 1)}, machine=machine)


def test_a_dimension_that_differs_is_named() -> None:
    machine = machine_of(one_node("Relu", [("x", [1, None], FLOAT)], 2))
    with pytest.raises(ShapeMismatchError, match="x"):
        machine.run(x=floats(2, 3))


def test_a_symbol_that_two_inputs_share_must_be_one_number() -> None:
    machine = machine_of(one_node("Add", [("x", ["n"], FLOAT), ("y", ["n"], FLOAT)], 1))
    with pytest.raises(ShapeMismatchError, match=r"n is 3 .* and 4"):
        machine.run(x=floats(3), y=floats(4))


def test_extents_out_of_their_range_are_named_also_after_saving(tmp_path: Path) -> None:
    network = model(
        [node("Add", ["a", "b"], ["c"])], [tensor("a", ["n", "t"]), tensor("b", ["n", "t"])], [tensor("c", ["n", "t"])]
    )
    program = load_program(network, shapes={"a": [Size("", 1, 8), Size("", 0, 5)]})
    path = vm.compile(program, threads=1).export_library(tmp_path / "sum.retune")
    machine = vm.VirtualMachine(vm.Executable.load(path))
    for shape in ((1, 0), (8, 5)):
        np.testing.assert_array_equal(machine.run(floats(*shape), floats(*shape)), 2 * floats(*shape))
    for shape, error in (
        ((9, 5), "n is 9 in dimension 0 of a; the network takes 1 to 8"),
        ((0, 5), "n is 0"),
        ((8, 6), "t is 6"),
    ):
        with pytest.raises(ShapeMismatchError, match=f"^{error}"):
            machine.run(floats(*shape), floats(*shape))


@pytest.mark.parametrize("ends", [[3, 1], [-1, 2], [1], [1, "8"], [1, 2, 3]])
def test_a_file_with_a_damaged_range_is_refused(ends: list[Any]) -> None:
    exe = vm.compile(load_program(staying(3), shapes={}), threads=1)
    parts = program_parts(exe.program, {})
    head = {**parts["program.json"], "ranges": {"n": ends}}  # type: ignore[dict-item]
    with pytest.raises(ArtifactError):
        vm.Executable.load_exec(archive_bytes("program", VERSION, {**parts, "program.json": head}), exe.lib)


def test_a_branch_depends_on_data() -> None:
    check(branching(), {"x": floats(4, low=0.5)}, {"x": -floats(4, low=0.5)}, {"x": -floats(3, low=0.5)})


def _collecting(counted: bool) -> onnx.ModelProto:
    """A loop with a captured array, a condition on data, and a row a turn."""
    body = helper.make_graph(
        [
            node("Add", ["carried", "x"], ["more"]),
            node("ReduceMax", ["more"], ["most"], keepdims=0),
            node("Less", ["most", "limit"], ["on_again"]),
            node("Mul", ["more", "more"], ["row"]),
        ],
        "body",
        [tensor("i", [], INT64), tensor("on", [], BOOL), tensor("carried", ["n"])],
        [tensor("on_again", [], BOOL), tensor("more", ["n"]), tensor("row", ["n"])],
    )
    loop = node("Loop", ["count" if counted else "", "on0", "x"], ["last", "rows"], body=body)
    fed = [tensor("x", ["n"]), tensor("on0", [], BOOL), *([tensor("count", [], INT64)] if counted else [])]
    weights = {"limit": np.array(9, np.float32)}
    return model([loop], fed, [tensor("last", ["n"]), tensor("rows", ["t", "n"])], weights)


@pytest.mark.parametrize("counted", [True, False])
def test_loops_have_conditions_captures_and_scan_outputs(counted: bool) -> None:
    source = _collecting(counted)
    counts = [{"count": np.array(number)} for number in (0, 1, 3, 100)] if counted else [{}]
    given = [{"x": floats(3, low=1.0), "on0": np.array(on), **count} for on in (True, False) for count in counts]
    check(source, *given)
    check(source, *({**each, "x": floats(2, low=1.0)} for each in given[:2]))


def test_arrays_changed_in_place_are_read_again() -> None:
    """The result without elements is not fetched, and must not stay behind for the next call."""
    machine = machine_of(one_node("NonZero", [("x", [None], FLOAT)], 2, kind=INT64))
    x = aligned_array((64,), "float32")  # else a copy would be read
    x[...] = 0
    assert machine.run(x).shape == (1, 0)
    x[5] = 1
    assert machine.run().tolist() == [[5]]


def test_values_that_decide_on_shapes_are_part_of_what_is_kept() -> None:
    source, _ = SHAPE_CHANGING["reshape by data"]
    machine = machine_of(source)
    x = floats(4, 3)
    for shape in ([2, 6], [3, 4], [2, 6], [-1, 1]):
        np.testing.assert_array_equal(machine.run(x=x, shape=np.array(shape)), x.reshape(shape))
    assert len(machine.specializations()) == 3
    with pytest.raises(RetuneError):
        machine.run(x=x, shape=np.array([5, 2]))


@pytest.mark.parametrize("rows", [3, "n"])
def test_results_share_no_memory_with_each_other(rows: int | str) -> None:
    nodes = [node("Relu", ["x"], ["one"]), node("Identity", ["one"], ["two"])]
    nodes += [node("Reshape", ["one", "flat"], ["all"])]
    outputs = [tensor("one", [rows, 4]), tensor("two", [rows, 4]), tensor("all", [None])]
    machine = machine_of(model(nodes, [tensor("x", [rows, 4])], outputs, {"flat": np.array([-1])}))
    one, two, flat = machine.run(floats(3, 4))
    one[...] = -1
    np.testing.assert_array_equal(two, np.maximum(floats(3, 4), 0))
    two[...] = -1
    np.testing.assert_array_equal(flat, np.maximum(floats(3, 4), 0).reshape(-1))


@pytest.mark.parametrize("rows", [5, "n"])
def test_kernels_may_read_the_beginning_of_an_array(rows: int | str) -> None:
    """The first rows of an input, and those of what another kernel has computed, are no copies."""
    nodes = [node("Slice", ["x", "zero", "two"], ["first"]), node("Relu", ["x"], ["positive"])]
    nodes += [node("Slice", ["positive", "zero", "two"], ["second"]), node("Sub", ["first", "second"], ["out"])]
    weights = {"zero": np.array([0]), "two": np.array([2])}
    source = model(nodes, [tensor("x", [rows, 4])], [tensor("out", [2, 4]), tensor("positive", [rows, 4])], weights)
    check(source, {"x": floats(5, 4)}, {"x": floats(5, 4, seed=1)})


def test_arrays_without_elements_may_begin_anywhere() -> None:
    nodes = [node("Concat", ["x", "y"], ["both"], axis=0), node("Relu", ["x"], ["out"])]
    fed = [tensor("x", ["n", 3]), tensor("y", ["m", 3])]
    source = model(nodes, fed, [tensor("both", [None, 3]), tensor("out", ["n", 3])])
    machine = machine_of(source)
    for odd in (1, 8, 60):
        empty = np.frombuffer(bytearray(256), np.uint8)[odd : odd + 1].view(np.uint8)[:0].view(np.float32)
        check(source, {"x": empty.reshape(0, 3), "y": floats(2, 3)}, machine=machine)


def test_inputs_that_are_set_one_by_one_must_fit_each_other() -> None:
    fed = [tensor("x", ["n", 3]), tensor("y", ["n", 3])]
    machine = machine_of(model([node("Add", ["x", "y"], ["out"])], fed, [tensor("out", ["n", 3])]))
    x, y = floats(4, 3), floats(4, 3, seed=1)
    machine.set_one_input("main", "x", x)
    machine.set_one_input("main", "y", y[:1])
    for _ in range(2):
        with pytest.raises(ShapeMismatchError, match="n is 4 in dimension 0 of x and 1 in dimension 0 of y"):
            machine.run()
    machine.set_one_input("main", "y", y)
    np.testing.assert_array_equal(machine.run(), x + y)


def test_what_control_flow_does_not_reshape_is_compiled_with_the_network() -> None:
    known, unknown = (vm.compile(staying(rows)).program.regions() for rows in (3, "n"))
    assert {region.kind for region in known} == {"plan"}
    assert {region.kind for region in unknown} == {"symbolic plan"}
    for rows in (3, "n"):
        check(
            staying(rows),
            *({"count": np.array(iterations), "x": floats(3, 4, seed=iterations)} for iterations in (0, 1, 6)),
        )


def test_a_way_whose_shapes_do_not_fit_is_refused_when_it_is_taken() -> None:
    fits = helper.make_graph([node("Neg", ["x"], ["a"])], "fits", [], [tensor("a", [None] * 2)])
    not_fit = helper.make_graph([node("MatMul", ["x", "w"], ["b"])], "does_not", [], [tensor("b", [None] * 2)])
    branch = node("If", ["c"], ["out"], then_branch=fits, else_branch=not_fit)
    fed = [tensor("c", [], BOOL), tensor("x", [3, 4])]
    source = model([branch], fed, [tensor("out", [None] * 2)], {"w": floats(5, 2)})
    machine = machine_of(source)
    np.testing.assert_array_equal(machine.run(np.array(True), floats(3, 4)), -floats(3, 4))
    with pytest.raises(ShapeMismatchError, match="MatMul"):
        machine.run(np.array(False), floats(3, 4))


@pytest.mark.parametrize(("count", "on"), [([2, 3], [True]), ([], [True]), ([3], [True, True]), ([3], [])])
def test_loop_state_may_be_scalars(count: list[int], on: list[bool]) -> None:
    body = helper.make_graph(
        [node("Identity", ["going"], ["still"]), node("Add", ["v", "v"], ["w"])],
        "body",
        [tensor("turn", [], INT64), tensor("going", [], BOOL), tensor("v", [3])],
        [tensor("still", [], BOOL), tensor("w", [3])],
    )
    loop = node("Loop", ["count", "on", "x"], ["out"], body=body)
    fed = [tensor("count", ["a"], INT64), tensor("on", ["b"], BOOL), tensor("x", [3])]
    machine = machine_of(model([loop], fed, [tensor("out", [3])]))
    np.testing.assert_array_equal(machine.run(np.array([2]), np.array([True]), floats(3)), floats(3) * 4)
    with pytest.raises(MachineError, match="must be one integer"):
        machine.run(np.array(count, np.int64), np.array(on, np.bool_), floats(3))


def test_a_loop_without_a_turn_inside_of_what_is_unrolled() -> None:
    """It was refused there, though one by itself runs."""
    iteration, on = tensor("turn", [], INT64), tensor("going", [], BOOL)
    body = helper.make_graph(
        [node("Identity", ["going"], ["still"]), node("Add", ["v", "x"], ["w"]), node("Sin", ["w"], ["row"])],
        "inner",
        [iteration, on, tensor("v", [None, 3])],
        [tensor("still", [], BOOL), tensor("w", [None, 3]), tensor("row", [4, 3])],
    )
    loop = node("Loop", ["none", "", "x"], ["last", "rows"], body=body)
    total = node("ReduceSum", ["rows", "first"], ["a"], keepdims=0)
    arm = helper.make_graph([loop, total], "a", [], [tensor("a", None)])
    other = helper.make_graph([node("Neg", ["x"], ["b"])], "b", [], [tensor("b", None)])
    nodes = [node("Size", ["x"], ["size"]), node("Less", ["size", "limit"], ["small"])]
    nodes += [node("If", ["small"], ["out"], then_branch=arm, else_branch=other)]
    weights = {"none": np.array(0), "limit": np.array(20), "first": np.array([0])}
    source = model(nodes, [tensor("x", ["n", 3])], [tensor("out", [None, None])], weights)
    check(source, {"x": floats(4, 3)}, {"x": floats(8, 3)})
