"""Networks exported to ONNX Runtime: their outputs there are those of the original, whole or in parts."""

import ctypes
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

import retune
from benchmarks import zoo
from benchmarks.network_peers import BOUND, contender, seeded_inputs
from retune.compiler.codegen.abi import constant_table
from retune.compiler.codegen.abi.c_module import INT, CModule
from retune.compiler.codegen.abi.cpu_guard import CPUID_BITS, cpu_guard
from retune.compiler.codegen.cpu import describe
from retune.compiler.core.errors import ArtifactError, OptionError, UnsupportedOperatorError
from retune.compiler.core.target import Target
from retune.compiler.driver.export import export_network
from retune.compiler.runtime.loader import host_features, native_address
from tests.support.onnx_networks import (
    Arrays,
    draw_weights,
    make_model,
    make_tensor,
    mlp_model,
    residual_model,
    unsupported_model,
)
from tests.support.tiers import long_except
from tests.support.zoo_sizes import SMALL

TOLERANCE = 1e-4


@pytest.fixture(autouse=True)
def _store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETUNE_HOME", str(tmp_path / "state"))


def _session(model: Path | bytes, library: Path | None = None, threads: int = 2) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    if library is not None:
        options.register_custom_ops_library(str(library))
    source = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def _assert_equal(found: Sequence[NDArray[Any]], wanted: Sequence[NDArray[Any]]) -> None:
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.shape == theirs.shape
        assert ours.dtype == theirs.dtype
        assert np.abs(ours - theirs).max(initial=0) <= TOLERANCE * np.abs(theirs).max(initial=0)


def _compared(model: onnx.ModelProto, path: Path, *, threads: int = 2, inputs: Arrays | None = None) -> Any:
    """Export a model, and compare its outputs with those of the original."""
    exported = retune.export(model, path, threads=threads)
    feeds = dict(inputs or seeded_inputs(model))
    wanted = _session(model.SerializeToString()).run(None, feeds)
    session = _session(exported.model, exported.library, threads)
    for _ in range(2):
        _assert_equal(session.run(None, feeds), wanted)
    onnx.checker.check_model(onnx.load(exported.model))
    return exported


def _ops(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


@pytest.mark.parametrize("build", [mlp_model, residual_model])
@pytest.mark.parametrize("threads", [1, 3])
def test_an_exported_network_computes_the_same(build: Any, threads: int, tmp_path: Path) -> None:
    exported = _compared(build(), tmp_path / "net.onnx", threads=threads)
    assert exported.remaining == ()
    (name,) = _ops(exported.model)
    assert name.startswith("net_")
    assert exported.library == tmp_path / "net.so"


@pytest.mark.parametrize(
    "name", long_except(["gpt2_block"], ["gpt2_block", "bert_base", "vit_small", "resnet18", "unet"])
)
def test_networks_of_the_zoo_compute_the_same(name: str, tmp_path: Path) -> None:
    assert _compared(zoo.build(name, **SMALL[name]), tmp_path / "net.onnx").remaining == ()


def test_unsupported_operators_stay_between_compiled_parts(tmp_path: Path) -> None:
    exported = _compared(unsupported_model(), tmp_path / "net.onnx")
    first, *middle, second, last = _ops(exported.model)
    assert middle == ["Normalizer", "ArrayFeatureExtractor"]
    assert last == "Normalizer"
    assert "_0_" in first
    assert "_1_" in second
    assert len(exported.remaining) == 3
    assert [tensor.name for tensor in onnx.load(exported.model).graph.initializer] == ["order"]


def test_nodes_whose_shapes_follow_from_data_stay(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("Relu", ["y"], ["z"]),
        helper.make_node("NonZero", ["z"], ["places"]),
        helper.make_node("Cast", ["places"], ["out"], to=TensorProto.FLOAT),
    ]
    outputs = [make_tensor("out", (2, "n")), make_tensor("y", (3, 48))]
    model = make_model(nodes, [make_tensor("x", (3, 64))], outputs, {"w": draw_weights(64, 48)})
    exported = _compared(model, tmp_path / "net.onnx")
    assert _ops(exported.model)[1:] == ["NonZero", "Cast"]


def test_a_loop_on_data_stays_with_what_its_body_reads(tmp_path: Path) -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["v", "c"], ["next"]), helper.make_node("Identity", ["on"], ["goes_on"])],
        "body",
        [
            make_tensor("number", (), TensorProto.INT64),
            make_tensor("on", (), TensorProto.BOOL),
            make_tensor("v", (144,)),
        ],
        [make_tensor("goes_on", (), TensorProto.BOOL), make_tensor("next", (144,))],
    )
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("Reshape", ["y", "flat"], ["line"]),
        helper.make_node("ArgMax", ["line"], ["count"], axis=0, keepdims=0),
        helper.make_node("Add", ["bias", "bias"], ["c"]),
        helper.make_node("Loop", ["count", "", "line"], ["raised"], body=body),
        helper.make_node("Softmax", ["raised"], ["out"]),
    ]
    weights = {"w": draw_weights(64, 48), "bias": draw_weights(144), "flat": np.array([144], "int64")}
    known = [make_tensor("raised", (144,))]
    model = make_model(nodes, [make_tensor("x", (3, 64))], [make_tensor("out", (144,))], weights, known)
    exported = _compared(model, tmp_path / "net.onnx")
    first, loop, second = _ops(exported.model)
    assert (loop, "_0_" in first, "_1_" in second) == ("Loop", True, True)
    assert [tensor.name for tensor in onnx.load(exported.model).graph.initializer] == ["c"]


def test_outputs_that_are_inputs_constants_or_views_are_copied(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Reshape", ["x", "turned"], ["view"]),
        helper.make_node("Identity", ["w"], ["fixed"]),
        helper.make_node("Relu", ["x"], ["y"]),
        helper.make_node("Reshape", ["y", "turned"], ["z"]),
        helper.make_node("Slice", ["y", "zeros", "ends"], ["rows"]),
    ]
    shapes = {"view": (8, 4), "fixed": (5,), "y": (4, 8), "z": (8, 4), "rows": (2, 8)}
    outputs = [make_tensor(name, shape) for name, shape in shapes.items()]
    integers = {"turned": [8, 4], "zeros": [0, 0], "ends": [2, 8]}
    weights = {"w": draw_weights(5), **{name: np.array(value, "int64") for name, value in integers.items()}}
    _compared(make_model(nodes, [make_tensor("x", (4, 8))], outputs, weights), tmp_path / "net.onnx")


def test_arrays_of_any_alignment_are_read_and_written(tmp_path: Path) -> None:
    model = residual_model()
    exported = retune.export(model, tmp_path / "net.onnx", threads=2)
    (x,) = seeded_inputs(model).values()
    wanted = _session(model.SerializeToString()).run(None, {"x": x})
    session = _session(exported.model, exported.library)
    for offset in (0, 4, 60):
        memory = np.zeros(2 * x.nbytes + 256, "uint8")
        begin = -memory.ctypes.data % 64 + offset
        moved = memory[begin : begin + x.nbytes].view("float32").reshape(x.shape)
        moved[...] = x
        out = memory[begin + x.nbytes : begin + 2 * x.nbytes].view("float32").reshape(x.shape)
        binding = session.io_binding()
        binding.bind_cpu_input("x", moved)
        binding.bind_output("flat")
        binding.bind_output("t", "cpu", 0, np.float32, out.shape, out.ctypes.data)
        session.run_with_iobinding(binding)
        _assert_equal([binding.copy_outputs_to_cpu()[0], out], wanted)


def test_two_sessions_run_at_once_from_several_threads(tmp_path: Path) -> None:
    models = {"one": residual_model(), "two": unsupported_model()}
    sessions, inputs, wanted = {}, {}, {}
    for name, model in models.items():
        exported = retune.export(model, tmp_path / f"{name}.onnx", threads=2)
        sessions[name] = _session(exported.model, exported.library)
        (key,) = seeded_inputs(model)
        shape = seeded_inputs(model)[key].shape
        draws = [np.random.default_rng(seed).standard_normal(shape).astype("float32") for seed in range(8)]
        inputs[name] = [{key: draw} for draw in draws]
        plain = _session(model.SerializeToString())
        wanted[name] = [plain.run(None, feed) for feed in inputs[name]]
    jobs = [(name, number) for _ in range(20) for number in range(8) for name in models]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda job: sessions[job[0]].run(None, inputs[job[0]][job[1]]), jobs))
    for (name, number), result in zip(jobs, found, strict=True):
        _assert_equal(result, wanted[name][number])


def test_the_library_needs_nothing_of_retune(tmp_path: Path) -> None:
    model = residual_model()
    exported = retune.export(model, tmp_path / "net.onnx", threads=2)
    (x,) = seeded_inputs(model).values()
    np.save(tmp_path / "x.npy", x)
    code = (
        "import sys, numpy, onnxruntime\n"
        "options = onnxruntime.SessionOptions()\n"
        f"options.register_custom_ops_library({str(exported.library)!r})\n"
        f"session = onnxruntime.InferenceSession({str(exported.model)!r}, options)\n"
        "found = session.run(None, {'x': numpy.load('x.npy')})\n"
        "numpy.savez('found.npz', *found)\n"
        "print([name for name in sys.modules if name.startswith(('retune', 'llvmlite'))])\n"
        "print([line.split()[-1] for line in open('/proc/self/maps') if 'libgomp' in line])\n"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout == "[]\n[]\n"
    with np.load(tmp_path / "found.npz") as found:
        _assert_equal(list(found.values()), _session(model.SerializeToString()).run(None, {"x": x}))


def test_parallel_loops_run_on_the_threads_of_the_session(tmp_path: Path) -> None:
    """A process whose session has one thread makes no other one."""
    exported = retune.export(residual_model(), tmp_path / "net.onnx", threads=3)
    code = (
        "import os, numpy, onnxruntime\n"
        "before = len(os.listdir('/proc/self/task'))\n"
        "options = onnxruntime.SessionOptions()\n"
        "options.intra_op_num_threads = 1\n"
        f"options.register_custom_ops_library({str(exported.library)!r})\n"
        f"session = onnxruntime.InferenceSession({str(exported.model)!r}, options)\n"
        "session.run(None, {'x': numpy.ones((1, 8, 12, 12), 'float32')})\n"
        "print(len(os.listdir('/proc/self/task')) - before)\n"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"


def test_an_input_of_another_size_is_an_error(tmp_path: Path) -> None:
    """ONNX Runtime checks the inputs of the model, but trusts what the model says of its other tensors."""
    exported = retune.export(mlp_model(), tmp_path / "net.onnx")
    model = onnx.load(exported.model)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    session = _session(model.SerializeToString(), exported.library)
    with pytest.raises(Exception, match=r"the input x must be float32\[3, 64\]"):
        session.run(None, {"x": np.ones((2, 64), "float32")})


@pytest.mark.skipif(platform.machine() != "x86_64", reason="CPUID is an instruction of x86")
def test_a_cpu_without_the_features_is_refused(tmp_path: Path) -> None:
    network = retune.compile(mlp_model())._program.network  # type: ignore[union-attr]
    lacking = sorted(set(CPUID_BITS) - host_features())
    if not lacking:
        pytest.skip("this CPU has all of them")
    for feature in lacking:
        metadata = {**network.metadata, "needs": [*network.metadata["needs"], feature]}
        exported = export_network(replace(network, metadata=metadata), tmp_path / "net.onnx")
        with pytest.raises(Exception, match="this machine lacks instructions that it uses"):
            _session(exported.model, exported.library)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="CPUID is an instruction of x86")
def test_features_of_this_cpu_are_found() -> None:
    """What LLVM says of this CPU, and what the CPU says, agree for every feature."""
    triple = describe(Target.host())[0]
    answers = {}
    for feature in CPUID_BITS:
        module = CModule()
        asked, answer = cpu_guard(module, "asked", triple, [feature]), module.define("answer", "i32", linkage="")
        answer.ret(answer.builder.zext(answer.call(asked), INT))
        answers[feature] = bool(ctypes.CFUNCTYPE(ctypes.c_int32)(native_address(str(module), "answer"))())
    assert answers == {feature: feature in host_features() for feature in CPUID_BITS}


def test_a_model_refuses_the_library_of_another(tmp_path: Path) -> None:
    one = retune.export(mlp_model(), tmp_path / "one.onnx")
    two = retune.export(residual_model(), tmp_path / "two.onnx")
    with pytest.raises(Exception, match=r"net_\w+"):
        _session(one.model, two.library)


def test_a_compiled_network_exports_itself(tmp_path: Path) -> None:
    model = mlp_model()
    (x,) = seeded_inputs(model).values()
    network = retune.compile(model, threads=2)
    network.save(tmp_path / "net.retune")
    for each in (network, retune.load(tmp_path / "net.retune")):
        exported = retune.export(each, tmp_path / "net.onnx")
        np.testing.assert_array_equal(_session(exported.model, exported.library).run(None, {"x": x})[0], network(x))


@pytest.mark.parametrize("kind", ["float64", "float16", "int8", "uint8", "int32", "int64", "bool", "bfloat16"])
def test_tensors_of_every_type_cross_the_border(kind: str, tmp_path: Path) -> None:
    number = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    nodes = [helper.make_node("Concat", ["x", "x"], ["y"], axis=0)]
    model = make_model(nodes, [make_tensor("x", (3, 5), number)], [make_tensor("y", (6, 5), number)])
    exported = retune.export(model, tmp_path / "net.onnx")
    session = _session(exported.model, exported.library)
    assert session.get_outputs()[0].type == session.get_inputs()[0].type
    if kind != "bfloat16":  # NumPy hands none to ONNX Runtime
        x = np.random.default_rng(0).integers(0, 2, (3, 5)).astype(kind)
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], np.concatenate([x, x]))


def test_wrong_requests_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = mlp_model()
    with pytest.raises(OptionError, match=r"no export for the runtime 'tflite'; there is one for onnxruntime"):
        retune.export(model, tmp_path / "net.onnx", runtime="tflite")
    with pytest.raises(ArtifactError, match=r"is exported to \.onnx"):
        retune.export(model, tmp_path / "net.so")
    with pytest.raises(OptionError, match="the network is compiled"):
        retune.export(retune.compile(model), tmp_path / "net.onnx", threads=1)
    network = retune.compile(model)
    network.save(tmp_path / "state" / "net.so")
    with pytest.raises(ArtifactError, match="was loaded from a shared library"):
        retune.load(tmp_path / "state" / "net.so").export(tmp_path / "net.onnx")
    monkeypatch.setattr(constant_table, "_MOST_BYTES", 100)
    with pytest.raises(ArtifactError, match="the constants take"):
        network.export(tmp_path / "net.onnx")
    alien = [helper.make_node("Normalizer", ["x"], ["y"], domain="ai.onnx.ml", norm="L2")]
    with pytest.raises(UnsupportedOperatorError, match=r"ai\.onnx\.ml\.Normalizer"):
        retune.export(make_model(alien, [make_tensor("x", (2,))], [make_tensor("y", (2,))]), tmp_path / "net.onnx")
    assert [path.name for path in tmp_path.iterdir() if path.name != "state"] == []


def test_a_given_shape_fixes_a_dynamic_input(tmp_path: Path) -> None:
    model = mlp_model()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    exported = retune.export(model, tmp_path / "net.onnx", shapes={"x": (5, 64)})
    session = _session(exported.model, exported.library)
    assert session.get_inputs()[0].shape == [5, 64]
    x = np.random.default_rng(0).standard_normal((5, 64)).astype("float32")
    _assert_equal(session.run(None, {"x": x}), _session(model.SerializeToString()).run(None, {"x": x}))


def test_files_are_written_both_or_neither(tmp_path: Path) -> None:
    network = retune.compile(mlp_model())._program.network  # type: ignore[union-attr]
    with pytest.raises(ArtifactError, match="no linker is installed"):
        export_network(network, tmp_path / "net.onnx", linkers=("no-such-linker",))
    (tmp_path / "net.so").mkdir()
    with pytest.raises(ArtifactError, match=r"cannot write .*net\.so"):
        export_network(network, tmp_path / "net.onnx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net.so", "state"]


@pytest.mark.parametrize("linker", ["ld", "cc"])
def test_a_linker_alone_or_a_compiler_links_the_library(linker: str, tmp_path: Path) -> None:
    if shutil.which(linker) is None:
        pytest.skip(f"{linker} is not installed")
    model = residual_model()
    network = retune.compile(model, threads=2)._program.network  # type: ignore[union-attr]
    exported = export_network(network, tmp_path / "net.onnx", linkers=(linker,))
    inputs = seeded_inputs(model)
    found = _session(exported.model, exported.library).run(None, inputs)
    _assert_equal(found, _session(model.SerializeToString()).run(None, inputs))


def test_the_same_network_is_exported_as_the_same_bytes(tmp_path: Path) -> None:
    network = retune.compile(mlp_model())
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    one, two = (network.export(tmp_path / folder / "net.onnx") for folder in ("a", "b"))
    assert one.model.read_bytes() == two.model.read_bytes()
    assert one.library.read_bytes() == two.library.read_bytes()


def test_an_exported_network_runs_on_bound_tensors(tmp_path: Path) -> None:
    model = mlp_model()
    exported, inputs = retune.export(model, tmp_path / "net.onnx", threads=1), seeded_inputs(model)
    run, answer = contender(BOUND, exported.model, inputs, 1)
    run()
    run()
    _assert_equal(answer(), _session(model.SerializeToString()).run(None, dict(inputs)))
