"""Golden texts: for every pass a graph before and after it.

The texts lie in tests/golden/graph. `pytest --update-golden` writes them anew; read the difference before keeping it.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Attribute, Graph, Node, Value
from retune.compiler.graph.passes.base import GraphPass
from retune.compiler.graph.passes.channels_last import ChannelsLast
from retune.compiler.graph.passes.common_subexpressions import CommonSubexpressions
from retune.compiler.graph.passes.even_rows import EvenRows
from retune.compiler.graph.passes.fold_batch_norm import FoldBatchNorm
from retune.compiler.graph.passes.fold_constants import FoldConstants
from retune.compiler.graph.passes.fold_scales import FoldScales
from retune.compiler.graph.passes.phases import Phases
from retune.compiler.graph.passes.quantised import Quantised
from retune.compiler.graph.passes.recognise import Recognise
from retune.compiler.graph.passes.simplify import SETTLING_RULES, Simplify
from retune.compiler.graph.passes.slice_weights import SliceWeights
from retune.compiler.graph.passes.transposed_products import TransposedProducts
from retune.compiler.graph.pipeline import PIPELINE
from retune.compiler.graph.verify import verify
from tests.encoder_layer import encoder_layer
from tests.golden_texts import GOLDEN, compared
from tests.unit.graph.passes.expanded import Writer, gelu, log_softmax, normalize, softmax
from tests.unit.graph.passes.quantised_networks import residual_block

CONV: dict[str, Attribute] = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1}
NCHW: dict[str, Attribute] = {**CONV, "layout": "NCHW"}


def _start(*shape: int) -> GraphBuilder:
    return GraphBuilder("net", [Value("x", shape)])


def _ones(b: GraphBuilder, *shape: int) -> str:
    return b.constant(np.full(shape, 0.5, np.float32), "w")


def _unfolded() -> Graph:
    """Shape arithmetic that nobody has evaluated yet; the builder would do so at once."""
    b = _start(2, 6)
    whole = b.finish({"y": b.emit("tanh", ["x"])})
    sizes = np.asarray([2, 3], np.int64)
    nodes = (
        Node("slice", ("sizes",), ("columns",), {"starts": (1,), "stops": (2,), "steps": (1,)}),
        Node("concat", ("columns", "columns"), ("shape",), {"axis": 0}),
        Node("cast", ("shape",), ("numbers",), {"dtype": "float32"}),
        Node("reduce_sum", ("numbers",), ("total",), {"axes": (0,), "keepdims": True}),
        Node("mul", ("x", "total"), ("y",)),
    )
    values = [Value("sizes", (2,), "int64"), Value("columns", (1,), "int64"), Value("shape", (2,), "int64")]
    values += [Value("numbers", (2,)), Value("total", (1,)), Value("y", (2, 6)), whole.inputs[0]]
    return replace(whole, nodes=nodes, constants={"sizes": sizes}, values={value.name: value for value in values})


def _normalised() -> Graph:
    b = _start(1, 2, 3, 3)
    product = b.emit("conv2d", ["x", _ones(b, 4, 2, 3, 3)], NCHW)
    statistics = [b.constant(np.full(4, value, np.float32), "s") for value in (2.0, 1.0, 0.25, 4.0)]
    return b.finish({"y": b.emit("batch_norm", [product, *statistics], {"axis": 1, "epsilon": 0.0})})


def _twice() -> Graph:
    b = _start(2, 3)
    one, other = (b.emit("add", ["x", b.scalar(1, "float32")]) for _ in range(2))
    first, second = b.emit("mul", [one, "x"]), b.emit("mul", ["x", other])
    return b.finish({"y": b.emit("sub", [first, b.emit("exp", [second])])})


def _expanded() -> Graph:
    b = _start(2, 4, 8)
    write = Writer(b, lambda: False)
    x = normalize(write, softmax(write, gelu(write, "x")))
    return b.finish({"y": log_softmax(write, b.emit("relu", [x]))})


def _simplifiable() -> Graph:
    b = _start(2, 3, 4)
    write = Writer(b, lambda: True)
    turned = write("transpose", "x", perm=(0, 2, 1))
    x = write("add", write("div", write("sub", turned, 1.0), 2.0), write("pow", turned, 2.0))
    x = write("minimum", write("relu", x), 6.0)
    return b.finish({"y": write("transpose", x, perm=(0, 2, 1))})


def _settling() -> Graph:
    b = _start(1, 4, 8)
    return b.finish({"y": b.emit("exp", [b.emit("transpose", ["x"], {"perm": (1, 0, 2)})])})


def _scaled() -> Graph:
    b = _start(2, 4)
    write = Writer(b, lambda: True)
    x = write("dense", write("add", write("mul", "x", _ones(b, 4)), _ones(b, 4)), _ones(b, 4, 3))
    return b.finish({"y": write("mul", write("add", x, _ones(b, 3)), 2.0)})


def _cut() -> Graph:
    b = _start(2, 4)
    x = b.emit("add", [b.emit("dense", ["x", _ones(b, 4, 6)]), _ones(b, 6)])
    x = b.emit("reshape", [x], {"shape": (2, 2, 3)})
    parts = [
        b.emit("slice", [x], {"starts": (0, part, 0), "stops": (2, part + 1, 3), "steps": (1, 1, 1)})
        for part in range(2)
    ]
    return b.finish({"y": b.emit("tanh", [parts[0]]), "z": b.emit("exp", [parts[1]])})


def _headed() -> Graph:
    return Recognise().apply(encoder_layer(rows=4, width=6, heads=2, masked=False))


def _seventeen_rows() -> Graph:
    b = _start(17, 64)
    x = b.emit("add", [b.emit("dense", ["x", _ones(b, 64, 64)]), _ones(b, 64)])
    return b.finish({"y": b.emit("softmax", [x], {"axis": 1}), "z": b.emit("softmax", [x], {"axis": 0})})


def _two_convolutions() -> Graph:
    b = _start(1, 4, 6, 6)
    first = b.emit("conv2d", ["x", _ones(b, 8, 4, 3, 3)], NCHW, name="first")
    second = b.emit("conv2d", [first, _ones(b, 8, 1, 3, 3)], {**NCHW, "groups": 8}, name="second")
    pool: dict[str, Attribute] = {"kernel": (2, 2), "strides": (2, 2), "pads": (0, 0, 0, 0), "layout": "NCHW"}
    return b.finish({"y": b.emit("avg_pool2d", [second], {**pool, "count_include_pad": True})})


def _transposed() -> Graph:
    b = _start(1, 4, 4, 2)
    attrs: dict[str, Attribute] = {"strides": (2, 2), "pads": (1, 1, 1, 1), "layout": "NHWC"}
    return b.finish({"y": b.emit("relu", [b.emit("conv_transpose2d", ["x", _ones(b, 4, 4, 2, 3)], attrs)])})


CASES: dict[str, tuple[GraphPass, Callable[[], Graph]]] = {
    "quantised": (Quantised(), residual_block),
    "fold_constants": (FoldConstants(), _unfolded),
    "fold_batch_norm": (FoldBatchNorm(), _normalised),
    "common_subexpressions": (CommonSubexpressions(), _twice),
    "recognise": (Recognise(), _expanded),
    "simplify": (Simplify(), _simplifiable),
    "settle": (Simplify(name="settle", rules=SETTLING_RULES), _settling),
    "fold_scales": (FoldScales(), _scaled),
    "slice_weights": (SliceWeights(), _cut),
    "transposed_products": (TransposedProducts(), _headed),
    "channels_last": (ChannelsLast(), _two_convolutions),
    "phases": (Phases(), _transposed),
    "even_rows": (EvenRows(), _seventeen_rows),
}


@pytest.mark.parametrize("name", CASES)
def test_what_a_pass_does(name: str, update_golden: bool) -> None:
    graph_pass, write = CASES[name]
    before = write()
    verify(before)
    after = graph_pass.apply(before)
    verify(after)
    assert str(after) != str(before)
    compared(f"graph/{name}", f"== before\n{before}\n\n== after\n{after}\n", update_golden)


def test_every_pass_has_a_golden_text() -> None:
    kinds = {(type(one), getattr(one, "rules", None)) for one in PIPELINE}
    assert kinds == {(type(one), getattr(one, "rules", None)) for one, _ in CASES.values()}
    assert {path.stem for path in (GOLDEN / "graph").glob("*.txt")} == set(CASES)
