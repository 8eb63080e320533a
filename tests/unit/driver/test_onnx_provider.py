"""Execution providers for ONNX Runtime: the original model computes the same with one, and other models are let be.

Each test runs ONNX Runtime in a process of its own: a provider belongs to a process.
"""

import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from benchmarks import zoo
from benchmarks.network_peers import seeded_inputs
from retune.compiler.codegen import provider
from retune.compiler.codegen.cpu_guard import AT
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.driver.onnx_export import export_provider
from retune.compiler.errors import ArtifactError, UnsupportedOperatorError
from retune.compiler.frontend.network import network_regions
from retune.compiler.frontend.onnx.offload import offload_model
from retune.compiler.runtime.loader import host_features
from retune.compiler.target import Target
from tests.support.onnx_networks import (
    draw_weights,
    make_model,
    make_tensor,
    mlp_model,
    residual_model,
    unsupported_model,
)
from tests.support.tiers import long_except
from tests.support.zoo_sizes import SMALL

_RUN = """
import collections, json, os, sys
from concurrent.futures import ThreadPoolExecutor
import numpy, onnxruntime

library, level, *models = sys.argv[1:]
onnxruntime.register_execution_provider_library("Retune", library)
devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == "Retune"]
sessions = []
for model in models:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.add_provider_for_devices(devices, {})
    options.enable_profiling = True
    sessions.append(onnxruntime.InferenceSession(model, options))
with numpy.load("inputs.npz") as held:
    inputs = dict(held)
with ThreadPoolExecutor(4) as pool:
    results = list(pool.map(lambda number: sessions[number % len(sessions)].run(None, inputs), range(8)))
plain = onnxruntime.InferenceSession(models[0], providers=["CPUExecutionProvider"]).run(None, inputs)
for found in results:
    for ours, theirs in zip(found, plain, strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        assert numpy.abs(ours - theirs).max(initial=0) <= 1e-4 * numpy.abs(theirs).max(initial=0)
with open(sessions[0].end_profiling()) as file:
    nodes = {event["name"]: event["args"]["provider"] for event in json.load(file) if event["cat"] == "Node"}
print(json.dumps(collections.Counter(nodes.values())))
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETUNE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def _export(model: onnx.ModelProto, needs: Sequence[str] = ()) -> tuple[str, ...]:
    """Write `net.onnx` and the provider `net.so` for it; the nodes that stay."""
    onnx.save(model, "net.onnx")
    offloaded = offload_model(model, name="net")
    networks = [compile_graph(part, Target.host(), {}, threads=2) for part in offloaded.parts]
    networks = [
        replace(each, metadata={**each.metadata, "needs": [*each.metadata["needs"], *needs]}) for each in networks
    ]
    regions = network_regions("net.onnx", offloaded.parts)
    return export_provider(regions, networks, Path("net.so"), offloaded.remaining).remaining


def _run(model: onnx.ModelProto, *models: str, level: str = "ORT_DISABLE_ALL") -> tuple[str, str]:
    """Which provider computed how many nodes of the first model, `net.onnx` unless named; and the log."""
    held: dict[str, Any] = dict(seeded_inputs(model))
    np.savez("inputs.npz", **held)
    library = str(Path("net.so").absolute())
    command = [sys.executable, "-I", "-c", _RUN, library, level, *(models or ("net.onnx",))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    return done.stdout.strip(), done.stderr


@pytest.mark.parametrize("build", [mlp_model, residual_model])
def test_the_original_model_runs_as_one_node(build: Any) -> None:
    assert _export(build()) == ()
    assert _run(build()) == ('{"Retune": 1}', "")


@pytest.mark.parametrize("name", long_except(["resnet18"], ["gpt2_block", "bert_base", "vit_small", "resnet18"]))
def test_networks_of_the_zoo_run_as_one_node(name: str) -> None:
    model = zoo.build(name, **SMALL[name])
    assert _export(model) == ()
    assert _run(model) == ('{"Retune": 1}', "")


def test_unsupported_operators_stay_with_onnx_runtime() -> None:
    remaining = _export(unsupported_model())
    assert len(remaining) == 3
    found, log = _run(unsupported_model())
    assert '"Retune": 2' in found
    assert '"CPUExecutionProvider": 3' in found
    assert "does not find" not in log


def test_two_sessions_share_a_provider() -> None:
    _export(residual_model())
    assert _run(residual_model(), "net.onnx", "net.onnx") == ('{"Retune": 1}', "")


def _with_other_weights() -> onnx.ModelProto:
    model = mlp_model()
    array = numpy_helper.to_array(model.graph.initializer[0]).copy()
    array[-1, -1] += 1
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(array, model.graph.initializer[0].name))
    return model


def _with_another_operator() -> onnx.ModelProto:
    model = mlp_model()
    model.graph.node[1].op_type = "Abs"
    return model


def _with_another_attribute() -> onnx.ModelProto:
    model = mlp_model()
    model.graph.node[1].CopyFrom(helper.make_node("LeakyRelu", ["y"], ["z"], alpha=0.25))
    return model


@pytest.mark.parametrize("build", [_with_other_weights, _with_another_operator, _with_another_attribute])
def test_another_model_is_left_to_onnx_runtime(build: Any) -> None:
    model = build()
    first = mlp_model()
    if build is _with_another_attribute:
        first.graph.node[1].CopyFrom(helper.make_node("LeakyRelu", ["y"], ["z"]))
    _export(first)
    onnx.save(model, "other.onnx")
    found, log = _run(model, "other.onnx")
    assert found == '{"CPUExecutionProvider": 3}'
    assert log.count("does not find all parts of the network") == 1


def test_attributes_with_defaults_and_of_every_type_match() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["y"], auto_pad="SAME_UPPER", strides=[2, 2]),
        helper.make_node("LeakyRelu", ["y"], ["z"]),
        helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(draw_weights(4, 1, 1))),
        helper.make_node("Clip", ["z", "", "top"], ["u"]),
        helper.make_node("Add", ["u", "c"], ["out"]),
    ]
    weights = {"w": draw_weights(4, 3, 3, 3), "top": np.array(0.5, "float32")}
    model = make_model(nodes, [make_tensor("x", (1, 3, 9, 9))], [make_tensor("out", (1, 4, 5, 5))], weights)
    _export(model)
    assert _run(model) == ('{"Retune": 1}', "")


def test_an_input_of_another_shape_is_an_error() -> None:
    _export(mlp_model())
    model = mlp_model()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    onnx.save(model, "rows.onnx")
    np.savez("inputs.npz", x=np.ones((2, 64), "float32"))
    command = [sys.executable, "-I", "-c", _RUN, str(Path("net.so").absolute()), "ORT_DISABLE_ALL", "rows.onnx"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    assert "the input x must be float32[3, 64]" in done.stderr


@pytest.mark.skipif(platform.machine() != "x86_64", reason="CPUID is an instruction of x86")
def test_a_cpu_without_the_features_is_refused() -> None:
    lacking = sorted(set(AT) - host_features())
    if not lacking:
        pytest.skip("this CPU has all of them")
    _export(mlp_model(), lacking[:1])
    assert "this machine lacks instructions that it uses" in _run(mlp_model())[1]


def test_an_older_onnx_runtime_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider, "VERSION", 999)
    _export(mlp_model())
    assert "a provider by Retune needs ONNX Runtime 1.999 or newer" in _run(mlp_model())[1]


def test_wrong_requests_are_refused() -> None:
    with pytest.raises(ArtifactError, match=r"is exported to \.so"):
        export_provider([], [], Path("net.onnx"))
    body = helper.make_graph([helper.make_node("Relu", ["x"], ["r"])], "body", [], [make_tensor("r", (4,))])
    nodes = [
        helper.make_node("Constant", [], ["yes"], value=numpy_helper.from_array(np.array(True))),
        helper.make_node("If", ["yes"], ["out"], then_branch=body, else_branch=body),
    ]
    model = make_model(nodes, [make_tensor("x", (4,))], [make_tensor("out", (4,))])
    with pytest.raises(UnsupportedOperatorError, match="has a graph of its own"):
        _export(model)
