"""OpenVINO computes what ONNX Runtime does, and what it cannot read is one sentence."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from retune import compiler
from retune.compiler.core.errors import MeasureError
from retune.compiler.frontend import zoo
from retune.compiler.tune.compare import OPENVINO, OPENVINO_DEFAULT, REFERENCE, compare_networks
from retune.compiler.tune.onnx_runtime import OnnxRuntime
from retune.compiler.tune.openvino import OpenVino
from retune.compiler.tune.report import Comparison, Contender


def test_outputs_agree_with_onnx_runtime() -> None:
    pytest.importorskip("openvino")
    model = zoo.build("mlp", widths=(24, 32, 8)).SerializeToString()
    inputs = {"input": np.random.default_rng(0).standard_normal((1, 24)).astype(np.float32)}
    (found,), (wanted,) = OpenVino(model, 1).run(inputs), OnnxRuntime(model, 1).run(inputs)
    np.testing.assert_allclose(np.asarray(found, np.float32), np.asarray(wanted, np.float32), rtol=1e-4, atol=1e-5)


def test_its_default_precision_is_another_peer_where_it_is_not_float32(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    model = zoo.build("mlp", widths=(24, 32, 8))
    pinned, free = (OpenVino(model.SerializeToString(), 1, is_float32=each) for each in (True, False))
    assert pinned.precision == "f32"
    wanted = {OPENVINO} | ({OPENVINO_DEFAULT.format(precision=free.precision)} if free.precision != "f32" else set())
    network = compiler.build_network(model).network.save(tmp_path / "tuned.retune")
    comparison = compare_networks({"tuned": network}, model.SerializeToString(), 1, 0)
    assert {each.name for each in comparison.contenders} - {"tuned", REFERENCE} == wanted


def test_outputs_of_bfloat16_are_read_as_such() -> None:
    pytest.importorskip("openvino")
    x, y = (helper.make_tensor_value_info(name, TensorProto.BFLOAT16, [3]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "net", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (found,) = OpenVino(model.SerializeToString(), 1).run({"x": np.array([-2, 0.5, 3], "bfloat16")})
    np.testing.assert_array_equal(found.astype(np.float32), [0, 0.5, 3])


def test_a_model_that_is_none_is_refused_in_one_sentence() -> None:
    pytest.importorskip("openvino")
    with pytest.raises(MeasureError, match=r"^OpenVINO cannot load the model: [^\n]*$"):
        OpenVino(b"not a model", 1)


def test_a_peer_that_is_off_does_not_make_our_network_wrong() -> None:
    ours, peer = Contender("tuned", 1.0, 1e-6), Contender("OpenVINO", 1.0, 1.0, is_peer=True)
    assert Comparison("ONNX Runtime", (ours, peer)).is_right
    assert not Comparison("ONNX Runtime", (Contender("tuned", 1.0, 1.0), peer)).is_right


_ALARM = """
import faulthandler, gc, signal, sys, threading
from retune.compiler.tune.openvino import OpenVino
faulthandler.enable()  # gives the main thread a signal stack, as pytest does
models = [OpenVino(sys.argv[1], threads=1)]
release = threading.Thread(target=lambda: (models.clear(), gc.collect()))
release.start()
release.join()
signal.signal(signal.SIGALRM, lambda *_: print("alarm"))
signal.setitimer(signal.ITIMER_REAL, 0.01)
signal.pause()
"""


def test_signals_arrive_after_another_thread_released_a_model(tmp_path: Path) -> None:
    """Its plugin moves the signal stack of the thread that loads it."""
    pytest.importorskip("openvino")
    path = tmp_path / "relu.onnx"
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", tensors[:1], tensors[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    ended = subprocess.run([sys.executable, "-c", _ALARM, path], capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stdout) == (0, "alarm\n"), ended.stderr
