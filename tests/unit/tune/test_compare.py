"""Errors of outputs, and timing in turns."""

from functools import partial
from itertools import pairwise
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from retune.compiler.core.target import Target
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Graph, Value
from retune.compiler.runtime.executor.executors import executor_of
from retune.compiler.tune import compare
from retune.compiler.tune.report import TOLERANCE, Comparison, Contender


@pytest.mark.parametrize("masked", [True, False])
def test_a_mask_that_leaves_nothing_is_left_out(masked: bool) -> None:
    builder = GraphBuilder("masked", [Value("mask", (64,), "int64"), Value("x", (64,), "float32")])
    shown = builder.emit("cast", ["mask"], {"dtype": "float32"})
    y = builder.emit("mul", ["x", shown])
    # 0 / 0 where the mask is 0
    y = builder.emit("div", [y, shown]) if masked else y
    executor = executor_of(compile_graph(builder.finish({"y": y}), Target.host(), threads=1), 1)
    inputs = compare._comparable_inputs(executor, 0, partial(compare._outputs, executor))
    assert set(inputs["mask"].tolist()) == ({1} if masked else {0, 1})
    assert np.isfinite(compare._outputs(executor, inputs)[0]).all()


def test_a_wrong_network_does_not_choose_what_it_is_compared_on(tmp_path: Path) -> None:
    """Its NaN where the reference has a number counts."""
    weights = np.ones(64, np.float32)
    builder = GraphBuilder("net", [Value("mask", (64,), "int64")])
    shown = builder.emit("cast", ["mask"], {"dtype": "float32"})
    wrong = builder.emit("div", [builder.emit("mul", [shown, builder.constant(weights, "w")]), shown])
    compile_graph(builder.finish({"y": wrong}), Target.host(), threads=1).save(tmp_path / "net.retune")
    nodes = [
        helper.make_node("Cast", ["mask"], ["shown"], to=TensorProto.FLOAT),
        helper.make_node("Max", ["shown", "one"], ["y"]),
    ]
    mask = helper.make_tensor_value_info("mask", TensorProto.INT64, [64])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [64])
    graph = helper.make_graph(nodes, "net", [mask], [y], [numpy_helper.from_array(np.ones(1, np.float32), "one")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    comparison = compare.compare_networks({"tuned": tmp_path / "net.retune"}, model.SerializeToString(), 1, 0)
    assert not comparison.is_right


def test_contenders_are_interleaved_and_timed_separately(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "_PASS_SECONDS", 0.001)
    monkeypatch.setattr(compare, "_PAUSE_SECONDS", 0.0)
    order: list[str] = []
    runs = {name: [lambda name=name: order.append(name)] for name in ("a", "b")}
    found = compare._time_interleaved(runs, 1)
    assert set(found) == {"a", "b"}
    seconds = {name: each for name, (each, _) in found.items()}
    assert all(share is not None and 0.0 <= share <= 1.0 for _, share in found.values())
    assert all(each > 0.0 for each in seconds.values())
    changes = sum(first != second for first, second in pairwise(order))
    assert changes >= 2 * compare._AGREEING - 1


def test_instances_run_at_a_time_and_share_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(compare, "_PASS_SECONDS", 0.0)
    together = Barrier(3, timeout=60.0)
    found = compare._time_interleaved({"three": [lambda: together.wait() and None] * 3, "one": [lambda: None]}, 1)
    assert set(found) == {"three", "one"}  # alone, none would get past the barrier


def test_outputs_of_several_instances_are_those_of_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "_PASSES", 2)
    builder = GraphBuilder("net", [Value("x", (4, 64), "float32")])
    weights = builder.constant(np.random.default_rng(0).standard_normal((64, 8), dtype=np.float32), "w")
    product = builder.emit("dense", ["x", weights])
    graph = builder.finish({"y": product})
    paths = {}
    for count in (1, 2):
        paths[count] = tmp_path / f"{count}.retune"
        compile_graph(graph, Target.host(), threads=2 // count).save(paths[count])
    assert compare.choose_instances(paths, 2, 0) in paths
    comparison = compare.compare_networks({"tuned": paths[2]}, _model_of(graph), 1, 0, 2)
    assert comparison.is_right
    assert comparison.instances == 2


def _model_of(graph: Graph) -> bytes:
    """The product of `graph` in ONNX."""
    (weights,) = graph.constants.values()
    x, y = (helper.make_tensor_value_info(*one) for one in (("x", 1, [4, 64]), ("y", 1, [4, 8])))
    product = helper.make_node("MatMul", ["x", "w"], ["y"])
    made = helper.make_graph([product], "net", [x], [y], [numpy_helper.from_array(np.asarray(weights), "w")])
    opset = [helper.make_opsetid("", 18)]
    serialized: bytes = helper.make_model(made, opset_imports=opset, ir_version=9).SerializeToString()
    return serialized


@pytest.mark.parametrize(("seconds", "is_steady"), [((1.0, 1.02, 1.5, 1.01), True), ((1.0, 1.3, 1.2), False)])
def test_passes_end_when_the_fastest_is_no_accident(seconds: tuple[float, ...], is_steady: bool) -> None:
    assert compare._are_steady(seconds) is is_steady


@pytest.mark.parametrize(
    ("target", "dtype", "tolerance"),
    [
        (Target.host(), "float32", TOLERANCE),
        (Target("cuda"), "float32", TOLERANCE),
        (Target("cuda -math=tf32"), "float32", 3e-2),
        (Target.host(), "float16", 5e-2),
        (Target("cuda -math=tf32"), "bfloat16", 2e-1),
    ],
)
def test_networks_may_be_off_by_what_their_types_and_their_target_round(
    target: Target, dtype: str, tolerance: float
) -> None:
    builder = GraphBuilder("net", [Value("x", (8,), dtype)])
    network = compile_graph(builder.finish({"y": builder.emit("relu", ("x",))}), target)
    least, rough = compare._tolerances(network.kernels)
    assert rough == tolerance
    assert least == (3e-2 if target.allow_tf32 else TOLERANCE)


def test_an_error_is_judged_by_the_tolerance_of_the_comparison() -> None:
    contenders = (Contender("untuned", 1.0, None), Contender("tuned", 1.0, 2e-3))
    assert not Comparison("untuned", contenders).is_right
    assert Comparison("untuned", contenders, tolerance=3e-2).is_right
