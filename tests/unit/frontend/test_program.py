"""Models with shapes and a course that are known only when they run, against ONNX Runtime; what regions they become."""

from collections import Counter
from random import Random
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from numpy.typing import NDArray

from retune.compiler.core.errors import ArtifactError, ModelFormatError, ShapeMismatchError, UnsupportedOperatorError
from retune.compiler.core.input_shapes import parse_shape
from retune.compiler.frontend.dependence import bodies
from retune.compiler.frontend.program import load_program
from retune.compiler.frontend.region import OnnxRegion
from retune.compiler.graph.program import Call, HostCall, Loop, Program
from tests.support.dynamic_models import model, node, tensor
from tests.support.run_program import run_program

Array = NDArray[Any]

RNG = np.random.default_rng(5)
_START = RNG.bit_generator.state


@pytest.fixture(autouse=True)
def _draw_from_the_start() -> None:
    """The same numbers for a test, whichever ran before it."""
    RNG.bit_generator.state = _START


def _model(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')


def _agrees(program: Program, model: onnx.ModelProto, **inputs: Array) -> tuple[Array, ...]:
    """The outputs of the program, which are those of ONNX Runtime."""
    found = run_program(program, inputs)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = session.run(None, inputs)
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)  # sums near one may cancel to nearly zero
    return found


def _random(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype("float32")


def _calls(program: Program) -> list[Call]:
    return [statement for statement in program.main.body if isinstance(statement, Call)]


FLATTENED = """
net (float[n, c, h] x, float[n, k] bias) => (float[n, k] y) {
    shape = Shape(x)
    zero = Constant<value_int = 0>()
    first = Gather(shape, zero)
    axis = Constant<value_ints = [0]>()
    row = Unsqueeze(first, axis)
    rest = Constant<value_ints = [-1]>()
    target = Concat<axis = 0>(row, rest)
    flat = Reshape(x, target)
    y = Add(flat, bias)
}"""


def test_shapes_computed_from_shapes_cut_nothing() -> None:
    model = _model(FLATTENED)
    program = load_program(model)
    (call,) = _calls(program)
    assert program.main.body == (call,)
    assert call.region.determining == ()
    for batch in (1, 3):
        _agrees(program, model, x=_random(batch, 2, 5), bias=_random(batch, 10))
    graph = call.region.specialize({"x": (3, 2, 5), "bias": (3, 10)}, {}, program.constants)
    assert [node.op for node in graph.nodes] == ["reshape", "add"]


def test_a_symbol_shared_by_two_inputs_must_be_one_number() -> None:
    program = load_program(_model(FLATTENED))
    with pytest.raises(ShapeMismatchError, match="n is 2 in dimension 0 of x and 3 in dimension 0 of bias"):
        run_program(program, {"x": _random(2, 2, 5), "bias": _random(3, 10)})
    with pytest.raises(ShapeMismatchError, match="has rank 3, and is given an array of rank 2"):
        run_program(program, {"x": _random(2, 5), "bias": _random(2, 10)})


def test_shapes_that_do_not_fit_each_other_name_the_node() -> None:
    model = _model("net (float[n] a, float[m] b) => (float[k] y) { y = Add(a, b) }")
    program = load_program(model)
    with pytest.raises(ShapeMismatchError, match=r"'y' \(Add\).*the shapes do not broadcast"):
        run_program(program, {"a": _random(3), "b": _random(4)})
    (call,) = _calls(program)
    with pytest.raises(ShapeMismatchError, match=r"^'y' \(Add\).*, for a of \[3\], b of \[4\]$"):
        call.region.specialize({"a": (3,), "b": (4,)}, {}, {})


def test_given_dimensions_replace_open_ones() -> None:
    model = _model(FLATTENED)
    program = load_program(model, shapes={"x": (2, 2, "width"), "bias": (None, None)})
    assert [str(param) for param in program.inputs] == ["x: float32[2, 2, width]", "bias: float32[?, ?]"]
    with pytest.raises(ModelFormatError, match="does not fit the input x"):
        load_program(model, shapes={"x": (2, 2)})
    with pytest.raises(ModelFormatError, match="a shape is given for q"):
        load_program(model, shapes={"q": (2, 2)})


def test_an_input_of_unknown_rank() -> None:
    model = _model("net (float x) => (float y) { y = Relu(x) }")
    model.graph.input[0].type.tensor_type.ClearField("shape")
    program = load_program(model)
    assert str(program.inputs[0]) == "x: float32[...]"
    for shape in ((), (2,), (1, 2, 3)):
        np.testing.assert_array_equal(run_program(program, {"x": -np.ones(shape, "float32")})[0], np.zeros(shape))


CONDITION = """
net (float[n] x, float[m] z) => (float[k] y, float[n] w) {
    total = ReduceSum<keepdims = 0>(x)
    zero = Constant<value_float = 0.0>()
    above = Greater(total, zero)
    y, w = If (above) <
        then_branch = g1 () => (float[m] a, float[n] b) { a = Relu(z)  b = Identity(x) },
        else_branch = g2 () => (float[k] c, float[n] d) { c = Concat<axis = 0>(x, z)  d = Mul(x, x) }
    >
}"""


@pytest.mark.parametrize("sign", [1, -1])
def test_branches_with_results_of_different_shapes(sign: int) -> None:
    model = _model(CONDITION)
    program = load_program(model)
    assert str(program) == "\n".join(
        [
            "program net -> (y, w)",
            "const zero: float32[]",
            "function main(x: float32[n], z: float32[m]) -> (y: float32[?], w: float32[n])",
            "  above = call main_0(x; constants zero)",
            "  y, w = y_then(z, x) if above else y_else(x, z)",
            "function y_then(z: float32[m], x: float32[n]) -> (a: float32[m], x: float32[n])",
            "  a = call y_then_0(z)",
            "function y_else(x: float32[n], z: float32[m]) -> (c: float32[?], d: float32[n])",
            "  c, d = call y_else_0(x, z)",
        ]
    )
    _agrees(program, model, x=sign * np.abs(_random(3)), z=_random(5))


def test_a_condition_on_shapes_is_no_branch() -> None:
    model = _model("""
        net (float[n] x) => (float[n] y) {
            size = Size(x)
            two = Constant<value_int = 2>()
            small = Less(size, two)
            y = If (small) <
                then_branch = g1 () => (float[n] a) { a = Relu(x) }, else_branch = g2 () => (float[n] b) { b = Neg(x) }
            >
        }""")
    program = load_program(model)
    (call,) = _calls(program)
    assert len(program.functions) == 1
    graph = call.region.specialize({"x": (4,)}, {}, program.constants)
    assert [node.op for node in graph.nodes] == ["neg"]
    for size in (1, 4):
        _agrees(program, model, x=_random(size))


def test_the_branch_of_a_known_condition_is_put_in_place() -> None:
    model = _model("""
        net (float[n] x, bool c) => (float[n] y) {
            yes = Constant<value = bool {1}>()
            inner = If (yes) <
                then_branch = g1 () => (float[n] a) { b = Neg(x)  a = Mul(b, b) },
                else_branch = g2 () => (float[n] b) { b = Unique(x) }
            >
            y = If (c) <
                then_branch = g3 () => (float[n] p) { p = Relu(inner) },
                else_branch = g4 () => (float[n] q) { q = Add(inner, x) }
            >
        }""")
    program = load_program(model)
    assert list(program.functions) == ["main", "y_then", "y_else"]
    for holds in (True, False):
        _agrees(program, model, x=_random(4), c=np.array(holds))
        fixed = load_program(model, constants={"c": np.array(holds)})
        assert len(fixed.functions) == 1
        assert len(_calls(fixed)) == 1


GROWING = """
net (float[n] x, int64 iterations, float limit) => (float[k] all, float[t] sums, int64 last) {
    yes = Constant<value = bool {1}>()
    all, last, sums = Loop (iterations, yes, x, iterations) <
        body = b (int64 i, bool on, float[m] v, int64 c) => (bool still, float[l] longer, int64 i_out, float row) {
            zero = Constant<value_ints = [0]>()
            size = Shape(x)
            v_first = Slice(v, zero, size)
            twice = Add(x, v_first)
            longer = Concat<axis = 0>(v, twice)
            row = ReduceSum<keepdims = 0>(longer)
            still = Less(row, limit)
            i_out = Add(i, c)
        }
    >
}"""


def test_a_loop_that_carries_a_growing_tensor() -> None:
    model = _model(GROWING)
    program = load_program(model)
    (loop,) = program.main.body
    assert isinstance(loop, Loop)
    (step,) = program.functions[loop.body].body
    assert isinstance(step, Call)
    assert step.region.determining == ()
    x = np.abs(_random(3))
    for iterations, limit in ((4, 1e9), (9, 20.0), (1, 0.0)):
        _agrees(program, model, x=x, iterations=np.array(iterations), limit=np.array(limit, "float32"))
    whole, sums, last = run_program(program, {"x": x, "iterations": np.array(0), "limit": np.array(1, "float32")})
    assert (whole.shape, sums.shape, last.item()) == ((3,), (0,), 0)


@pytest.mark.parametrize(
    ("dim", "row_dim", "extent"), [("n", "3", 3), ("?", "3", 3), ("3", "m", 3), ("n", "m", 0), ("3", "4", 3)]
)
def test_rows_of_a_loop_without_iterations_have_the_declared_extents(dim: str, row_dim: str, extent: int) -> None:
    # The row is a value of the enclosing graph, of which less may be known than the body declares.
    model = _model(f"""
        net (float[{dim}] x, float v, int64 iterations) => (float last, float[k, l] rows) {{
            last, rows = Loop (iterations, , v) <
                body = b (int64 i, bool on, float w) => (bool on2, float w2, float[{row_dim}] row) {{
                    on2 = Identity(on) w2 = Sin(w) row = Identity(x)
                }}
            >
        }}""")
    program, inputs = load_program(model), {"x": _random(3), "v": np.array(1, "float32")}
    if row_dim == "4":  # ONNX Runtime takes 0 for numbers that contradict each other
        _, rows = run_program(program, {**inputs, "iterations": np.array(0)})
    else:
        _, rows = _agrees(program, model, **inputs, iterations=np.array(0))
        _agrees(program, model, **inputs, iterations=np.array(2))
    assert rows.shape == (0, extent)


def test_rows_of_a_loop_without_iterations_whose_values_a_scan_with_a_loop_computes() -> None:
    model = _model("""
        net (float[3] x, float[n, 3] steps, int64 iterations, bool on) => (float[3] last, float[k, 3] rows) {
            state, scanned = Scan<num_scan_inputs = 1, body = s (float[3] a, float[3] d) => (float[3] b, float[3] c) {
                b = Sin(a)
                c = Loop (iterations, , d) <
                    body = t (int64 i, bool on1, float[3] u) => (bool on2, float[3] w) {
                        on2 = Identity(on1) w = Add(u, a)
                    }
                >
            }>(x, steps)
            axis = Constant<value_ints = [0]>()
            sum = ReduceSum<keepdims = 0>(scanned, axis)
            last, rows = Loop (iterations, on, state) <
                body = l (int64 j, bool on3, float[3] p) => (bool on4, float[3] q, float[3] row) {
                    on4 = Identity(on3) q = Cos(p) row = Identity(sum)
                }
            >
        }""")
    program = load_program(model)
    for iterations, on in ((2, True), (2, False), (0, True)):
        inputs = {"x": _random(3), "steps": _random(2, 3), "iterations": np.array(iterations), "on": np.array(on)}
        _, rows = _agrees(program, model, **inputs)
        assert rows.shape == (iterations * on, 3)


def test_short_loops_of_a_known_length_are_unrolled_and_long_ones_are_not() -> None:
    text = """
        net (float[n] x) => (float[n] y) {{
            iterations = Constant<value_int = {iterations}>()
            y = Loop (iterations, , x) <
                body = b (int64 i, bool on, float[n] v) => (bool on2, float[n] w) {{
                    on2 = Identity(on) s = Sin(v) w = Add(s, x)
                }}
            >
        }}"""
    for iterations, unrolled in ((5, True), (2000, False)):
        model = _model(text.format(iterations=iterations))
        program = load_program(model)
        assert isinstance(program.main.body[0], Call) == unrolled
        _agrees(program, model, x=_random(3))


def test_loops_inside_of_others_count_with_all_their_turns() -> None:
    text = """
        net (float[n] x) => (float[n] y) {{
            few = Constant<value_int = {few}>()
            many = Constant<value_int = {many}>()
            y = Loop (few, , x) <
                body = b (int64 i, bool on, float[n] v) => (bool on2, float[n] w) {{
                    on2 = Identity(on)
                    w = Loop (many, , v) <
                        body = c (int64 j, bool on3, float[n] u) => (bool on4, float[n] z) {{
                            on4 = Identity(on3) s = Sin(u) z = Add(s, x)
                        }}
                    >
                }}
            >
        }}"""
    for few, many, unrolled in ((3, 4, True), (30, 30, False)):
        model = _model(text.format(few=few, many=many))
        program = load_program(model)
        assert isinstance(program.main.body[0], Call) == unrolled
        _agrees(program, model, x=_random(3))


@pytest.mark.parametrize("iterations", [5, 2000])
def test_a_branch_with_a_long_loop_is_chosen_when_it_runs(iterations: int) -> None:
    model = _model(f"""
        net (float[n] x) => (float[n] y) {{
            size = Size(x)
            two = Constant<value_int = 2>()
            iterations = Constant<value_int = {iterations}>()
            large = Greater(size, two)
            y = If (large) <
                then_branch = t () => (float[n] a) {{
                    a = Loop (iterations, , x) <
                        body = b (int64 i, bool on, float[n] v) => (bool on2, float[n] w) {{
                            on2 = Identity(on) s = Sin(v) w = Add(s, x)
                        }}
                    >
                }},
                else_branch = e () => (float[n] c) {{ c = Neg(x) }}
            >
        }}""")
    program = load_program(model)
    assert isinstance(program.main.body[-1], Call) == (iterations == 5)
    for length in (2, 3):
        _agrees(program, model, x=_random(length))


def _scan(attributes: str) -> onnx.ModelProto:
    return _model(f"""
        net (float[b] start, float[b, t, c] s1, float[t, c, b] s2) => (float[b] end, float[u, v, w] rows) {{
            end, rows = Scan (start, s1, s2) <
                num_scan_inputs = 2, {attributes},
                body = g (float[b] h, float[b, c] r1, float[c, b] r2) => (float[b] h2, float[b, b] row) {{
                    row = MatMul(r1, r2)
                    axes = Constant<value_ints = [1]>()
                    total = ReduceSum<keepdims = 0>(row, axes)
                    sum = Add(total, h)
                    h2 = Tanh(sum)
                }}
            >
        }}""")


@pytest.mark.parametrize(
    "attributes",
    [
        "scan_input_axes = [1, 0]",
        "scan_input_axes = [-2, 0], scan_input_directions = [1, 0], scan_output_directions = [1]",
        "scan_input_axes = [1, 0], scan_output_axes = [1]",
        "scan_input_axes = [1, -3], scan_output_axes = [-1], scan_output_directions = [1]",
    ],
)
def test_scans_become_loops(attributes: str) -> None:
    model = _scan(attributes)
    program = load_program(model)
    assert any(isinstance(statement, Loop) for statement in program.main.body)
    for iterations in (1, 4):
        _agrees(program, model, start=_random(2), s1=_random(2, iterations, 3), s2=_random(iterations, 3, 2))


def test_sequences_of_a_scan_must_have_one_length() -> None:
    program = load_program(_scan("scan_input_axes = [1, 0]"), shapes={"s2": (None, None, None)})
    with pytest.raises(ShapeMismatchError, match="end"):
        run_program(program, {"start": _random(2), "s1": _random(2, 3, 3), "s2": _random(4, 3, 2)})


def test_a_scan_of_known_length_is_unrolled() -> None:
    model = _scan("scan_input_axes = [1, 0]")
    program = load_program(model, shapes={"s1": (2, 4, 3)})
    assert isinstance(program.main.body[0], Call)
    _agrees(program, model, start=_random(2), s1=_random(2, 4, 3), s2=_random(4, 3, 2))


def test_data_that_decides_shapes_is_computed_on_the_host() -> None:
    model = _model("""
        net (float[n, m] x) => (int64[k, r] y, float[n, m] z) {
            t = Tanh(x)
            r = Relu(t)
            found = NonZero(r)
            places = Transpose<perm = [1, 0]>(found)
            y = Add(places, places)
            z = Mul(t, t)
        }""")
    program = load_program(model)
    assert [type(statement).__name__ for statement in program.main.body] == ["Call", "HostCall", "Call"]
    host = program.main.body[1]
    assert isinstance(host, HostCall)
    assert host.region.determining == host.region.inputs
    for sign in (1, -1):
        _agrees(program, model, x=sign * np.abs(_random(3, 4)))


def test_a_computed_length_is_cut_off_before_it_decides() -> None:
    model = _model("""
        net (float[n, m] x, int64[b] lengths) => (float[k, m] y) {
            t = Tanh(x)
            most = ReduceMax<keepdims = 1>(lengths)
            start = Constant<value_ints = [0]>()
            y = Slice(t, start, most)
        }""")
    program = load_program(model)
    first, second = _calls(program)
    assert set(first.region.outputs) == {"t", "most"}
    assert second.region.determining == ("most",)
    _agrees(program, model, x=_random(5, 2), lengths=np.array([1, 3, 2]))


def test_a_small_number_decides_without_a_cut() -> None:
    model = _model("""
        net (float[n] x, int64 k) => (float[r] y, int64[r] places) {
            axes = Constant<value_ints = [0]>()
            one = Constant<value_int = 1>()
            more = Add(k, one)
            count = Unsqueeze(more, axes)
            y, places = TopK(x, count)
        }""")
    program = load_program(model)
    (call,) = _calls(program)
    assert call.region.determining == ("k",)
    for count in (1, 3):
        _agrees(program, model, x=_random(6), k=np.array(count))


@pytest.mark.parametrize(
    ("text", "inputs"),
    [
        (
            "net (float[n, m] x, int64[r] shape) => (float[a, b] y) { y = Reshape(x, shape) }",
            {"x": _random(4, 3), "shape": np.array([2, -1])},
        ),
        (
            "net (int64 start, int64 stop, int64 step) => (int64[k] y) { y = Range(start, stop, step) }",
            {"start": np.array(2), "stop": np.array(11), "step": np.array(4)},
        ),
        (
            "net (float[n] x) => (float[k] y, int64[k] a, int64[n] b, int64[k] c) { y, a, b, c = Unique(x) }",
            {"x": np.array([3, 1, 3, 2, 1], "float32")},
        ),
        (
            "net (float[n, m] x, bool[n] c) => (float[k, m] y) { y = Compress<axis = 0>(x, c) }",
            {"x": _random(3, 2), "c": np.array([True, False, True])},
        ),
        (
            "net (int64[r] shape) => (float[a, b] y) { y = ConstantOfShape(shape) }",
            {"shape": np.array([2, 3])},
        ),
    ],
)
def test_inputs_that_decide_on_shapes(text: str, inputs: dict[str, Array]) -> None:
    model = _model(text)
    _agrees(load_program(model), model, **inputs)


def test_loops_within_branches_within_loops() -> None:
    model = _model("""
        net (float[n] x, int64 iterations) => (float[k] y, float[t] sums) {
            yes = Constant<value = bool {1}>()
            y, sums = Loop (iterations, yes, x) <
                body = outer (int64 i, bool on, float[a] v) => (bool on2, float[b] w, float s) {
                    on2 = Identity(on)
                    s = ReduceSum<keepdims = 0>(v)
                    zero = Constant<value_float = 0.0>()
                    up = Greater(s, zero)
                    w = If (up) <
                        then_branch = yes () => (float[c] shorter) {
                            shorter = Loop (i, up, v) <
                                body = inner (int64 j, bool go, float[d] u) => (bool go2, float[d] u2) {
                                    go2 = Identity(go)
                                    x_ = Identity(s)
                                    h = Sub(u, x_)
                                    u2 = Tanh(h)
                                }
                            >
                        },
                        else_branch = no () => (float[e] longer) { longer = Concat<axis = 0>(v, x) }
                    >
                }
            >
        }""")
    program = load_program(model)
    for iterations in (1, 2, 5):
        _agrees(program, model, x=_random(4), iterations=np.array(iterations))


def test_regions_come_back_from_bytes() -> None:
    program = load_program(_model(FLATTENED))
    (region,) = program.regions()
    again = OnnxRegion.from_bytes(region.to_bytes())
    assert again.key == region.key
    assert again.name == region.name
    shapes = {"x": (3, 2, 5), "bias": (3, 10)}
    graphs = [one.specialize(shapes, {}, program.constants) for one in (region, again)]
    assert graphs[0].fingerprint() == graphs[1].fingerprint()
    for damaged in (b"", b"x", region.to_bytes()[:40], b"\x0a\x01\x00"):
        with pytest.raises(ArtifactError, match="these bytes are not a region"):
            OnnxRegion.from_bytes(damaged)


def test_damaged_regions_are_refused_or_fail_with_our_errors() -> None:
    draw = Random(3)
    program = load_program(_model(FLATTENED))
    (region,) = program.regions()
    data = region.to_bytes()
    inputs = {"x": _random(2, 2, 3), "bias": _random(2, 6)}
    outcomes = Counter[str]()
    for _ in range(400):
        damaged = bytearray(data)
        for _ in range(draw.randrange(1, 4)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        try:
            again = OnnxRegion.from_bytes(bytes(damaged[: draw.choice([None, draw.randrange(len(damaged))])]))
        except ArtifactError:
            outcomes["refused"] += 1
            continue
        try:
            again.evaluate(inputs, program.constants)
            outcomes["ran"] += 1
        except (ShapeMismatchError, UnsupportedOperatorError):
            outcomes["failed"] += 1
    assert set(outcomes) == {"refused", "ran", "failed"}
    assert outcomes["refused"] > 200


def test_operators_without_a_converter_are_named() -> None:
    model = _model("net (float[n] x) => (float[n] y) { y = Bernoulli(x) }")
    model.graph.node[0].op_type = "RandomNormalLike"
    with pytest.raises(UnsupportedOperatorError, match=r"'y' \(RandomNormalLike\)"):
        load_program(model)


def test_what_a_body_says_of_extents_does_not_count() -> None:
    """A body that was written for other sizes than it is given."""
    model, other = _scan("scan_input_axes = [1, 0]"), _scan("scan_input_axes = [1, 0]")
    (iteration,) = bodies(other.graph.node[0])
    for entry in (iteration.input[1], iteration.output[1]):
        for dimension in entry.type.tensor_type.shape.dim:
            dimension.dim_value = 7
    inputs = {"start": _random(2), "s1": _random(2, 3, 3), "s2": _random(3, 3, 2)}
    for ours, theirs in zip(*(run_program(load_program(each), inputs) for each in (model, other)), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_weights_keep_their_names_and_their_memory() -> None:
    weight = RNG.standard_normal((200, 200)).astype("float32")
    model = _model("net (float[n, 200] x) => (float[n, 200] y) { y = MatMul(x, w) }")
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    program = load_program(model)
    np.testing.assert_array_equal(program.constants["w"], weight)
    graphs = [program.regions()[0].specialize({"x": (n, 200)}, {}, program.constants) for n in (1, 2)]
    assert all(np.shares_memory(graph.constants["w"], program.constants["w"]) for graph in graphs)


def _added() -> onnx.ModelProto:
    return model(
        [node("Add", ["a", "b"], ["c"])], [tensor("a", ["n", "t"]), tensor("b", ["n", "t"])], [tensor("c", ["n", "t"])]
    )


def _sized(*texts: str) -> Program:
    return load_program(_added(), shapes=dict(map(parse_shape, texts)))


def test_ranges_belong_to_symbols_which_other_inputs_share() -> None:
    program = _sized("a=1..8,1..512")
    assert [param.dims for param in program.inputs] == [("n", "t"), ("n", "t")]
    assert program.ranges == {"n": (1, 8), "t": (1, 512)}
    program = _sized("a=2,k:1..4")
    assert [param.dims for param in program.inputs] == [(2, "k"), (2, "k")]
    assert program.ranges == {"k": (1, 4)}
    assert [param.dims for param in _sized("a=?").inputs] == [("n", "t"), ("n", "t")]


@pytest.mark.parametrize(
    ("texts", "error"),
    [
        (("a=1..8,3", "b=1..4,3"), r"n is 1\.\.8, and 1\.\.4 in dimension 0 of b: these must be equal"),
        (("a=1..8",), "a shape of rank 1 does not fit the input a"),
        (("q=1..8",), "a shape is given for q, but the inputs are a, b"),
    ],
)
def test_ranges_that_do_not_fit_the_model_are_refused(texts: tuple[str, ...], error: str) -> None:
    with pytest.raises(ModelFormatError, match=error):
        _sized(*texts)
