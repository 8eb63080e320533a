"""Lines of TVM scripts about networks, libraries and targets, as literal as the import line allows."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import retune.compiler as tvm
from retune.compiler import auto_scheduler, graph_executor, nd, te, vm
from retune.compiler.core import config
from retune.compiler.core.errors import DefinitionError, DynamicShapeError, OptionError, TargetError
from retune.compiler.core.target import Target
from retune.compiler.runtime.executor.library import Library
from retune.compiler.runtime.loader import BoundKernel, Kernel


@pytest.fixture(scope="module")
def lib() -> Library:
    return tvm.build_network("mlp", "llvm")


def test_the_exported_library_is_loaded_by_the_runtime_and_gives_arrays(lib: Library, tmp_path: Path) -> None:
    dev, data = tvm.cpu(0), np.random.rand(1, 784).astype("float32")
    lib.export_library(tmp_path / "compiled_lib.so")
    loaded = tvm.runtime.load_module(tmp_path / "compiled_lib.so")
    gmod = graph_executor.GraphModule(loaded["default"](dev))
    gmod.set_input("input", data)
    gmod.run()
    out = gmod.get_output(0).numpy()
    assert gmod.get_output(0, nd.empty(out.shape)).numpy().tobytes() == out.tobytes()
    first = graph_executor.GraphModule(lib["default"](dev))
    first.run(input=data)
    np.testing.assert_array_equal(first.get_output(0).numpy(), out)


def test_one_load_module_recognizes_modules_networks_and_virtual_machines(lib: Library, tmp_path: Path) -> None:
    a = te.placeholder((4,), name="a")
    module = tvm.build([a, te.compute((4,), lambda i: a[i] + 1.0)])
    assert isinstance(tvm.load_module(module.save(tmp_path / "m.retune")), tvm.runtime.Module)
    assert isinstance(tvm.load_module(module.export_library(tmp_path / "m.so")), tvm.runtime.Module)
    assert isinstance(tvm.load_module(lib.export_library(tmp_path / "n.retune")), Library)
    executable = vm.compile("mlp", "llvm")
    code, kernels = executable.save()
    kernels.export_library(tmp_path / "lib.so")
    again = vm.Executable.load_exec(code, tvm.runtime.load_module(tmp_path / "lib.so"))
    assert again.globals == executable.globals
    assert isinstance(tvm.load_module(executable.export_library(tmp_path / "vm.retune")), vm.Executable)


def test_inputs_are_converted_as_tvm_converts_them(lib: Library) -> None:
    module = graph_executor.GraphModule(lib["default"](tvm.cpu(0)))
    module.set_input(key="input", value=np.full((1, 784), 0.5))
    assert module.get_input("input").dtype == np.float32
    module.set_input("input", [[0.25] * 784])
    assert set(module.get_input("input").ravel()) == {0.25}
    module.run(input=np.ones((1, 784)))
    with pytest.raises(OptionError, match="must be float32"):
        module.set_input("input", np.zeros((1, 784), "complex64"))
    with pytest.raises(OptionError, match=r"must be float32\[1, 784\]"):
        module.set_input("input", np.zeros((2, 784)))


def test_networks_and_functions_run_on_all_cores_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "usable_cores", lambda: 3)
    monkeypatch.setattr(config, "thread_count", lambda default: default)
    assert [tvm.build_network("mlp", target).threads for target in ("llvm", "llvm -num-cores=2")] == [3, 2]
    assert tvm.build_network("mlp", "llvm", threads=1).threads == 1
    assert vm.compile("mlp", "llvm").lib.about["threads"] == 3
    a = te.placeholder((64,), name="a")
    b = te.compute((64,), lambda i: a[i] + 1.0, name="b")
    function = auto_scheduler.build(auto_scheduler.ComputeDAG([a, b]).get_init_state(), [a, b])
    counts: list[int] = []
    bind = Kernel.bind

    def noted(kernel: Kernel, arrays: Any, threads: int, sizes: Any) -> BoundKernel:
        counts.append(threads)
        return bind(kernel, arrays, 1, sizes)

    monkeypatch.setattr(Kernel, "bind", noted)
    x, y = np.ones(64, "float32"), np.zeros(64, "float32")
    function(x, y)
    function(x, y, threads=2)
    assert (counts, set(y)) == ([3, 2], {2.0})


def test_lower_prints_loops_with_the_arguments_in_order() -> None:
    a, b = te.placeholder((8, 8), name="A"), te.placeholder((8, 8), name="B")
    k = te.reduce_axis((0, 8), name="k")
    c = te.compute((8, 8), lambda i, j: te.sum(a[i, k] * b[k, j], axis=[k]), name="C")
    sch = auto_scheduler.ComputeDAG([a, b, c]).get_init_state()
    sch.split(c, 0, [4])
    text = str(tvm.lower(sch, [a, c, b], simple_mode=True))  # type: ignore[operator] # a package too
    assert text.startswith("def main(A: float32[8, 8], C: float32[8, 8], B: float32[8, 8]):\n  for i.0")
    assert "in 4:" in text
    assert tvm.lower([a, b, c], name="plain").startswith("def plain(A: ")  # type: ignore[operator]
    assert "blockIdx.x" in tvm.lower([a, b, c], target="cuda")  # type: ignore[operator]
    with pytest.raises(DefinitionError, match="are the tensors of a schedule"):
        tvm.lower(sch, "llvm")  # type: ignore[operator]
    with pytest.raises(DefinitionError, match="the steps of a program"):
        tvm.lower(3, [a, b, c])  # type: ignore[operator]


def test_an_array_prints_its_values_and_is_pickled() -> None:
    x = nd.array(np.array([1.5, 2.5], "float32"))
    assert str(x) == "[1.5 2.5]"
    assert repr(x) == "<NDArray float32[2], cpu:0>\narray([1.5, 2.5], dtype=float32)"
    again = pickle.loads(pickle.dumps(x))
    assert isinstance(again, nd.NDArray)
    again.numpy()[0] = 0
    assert (x.numpy().tolist(), again.numpy().tolist()) == ([1.5, 2.5], [0, 2.5])


GRAPH = json.dumps(
    {
        "nodes": [
            {"op": "null", "name": "x", "inputs": []},
            {
                "op": "tvm_op", "name": "add", "inputs": [[0, 0, 0]],
                "attrs": {"flatten_data": "0", "func_name": "myadd", "num_inputs": "1", "num_outputs": "1"},
            },
        ],
        "arg_nodes": [0],
        "node_row_ptr": [0, 1, 2],
        "heads": [[1, 0, 0]],
        "attrs": {
            "shape": ["list_shape", [[4], [4]]], "dltype": ["list_str", ["float32", "float32"]],
            "storage_id": ["list_int", [0, 1]],
        },
    }
)  # fmt: skip


def test_the_functions_of_a_graph_are_those_of_a_module_or_a_packed_func() -> None:
    a = te.placeholder((4,), name="A")
    module = tvm.build([a, te.compute((4,), lambda i: a[i] + 1.0, name="B")], "llvm", name="myadd")
    for libmod in (module, {"myadd": module["myadd"]}):
        made = graph_executor.create(GRAPH, libmod, tvm.cpu(0))
        made.run(x=np.ones(4, "float32"))
        assert made.get_output(0).numpy().tolist() == [2.0] * 4
    with pytest.raises(OptionError, match="a library, a module"):
        graph_executor.create(GRAPH, 3, tvm.cpu(0))  # type: ignore[arg-type]


def test_the_targets_of_a_virtual_machine_are_checked() -> None:
    assert vm.compile("mlp", {tvm.cpu(0): "llvm"}, target_host="llvm").globals == ["main"]
    assert vm.compile("mlp", ["llvm"]).globals == ["main"]
    with pytest.raises(TargetError, match="foo"):
        vm.compile("mlp", "llvm", target_host="foo")
    with pytest.raises(TargetError, match="one target, not for 2"):
        vm.compile("mlp", ["llvm", "llvm"])


def test_targets_are_read_in_tvms_words() -> None:
    wanted = Target("llvm -mcpu=core-avx2")
    texts = ("llvm -keys=cpu -link-params=0 -mcpu=core-avx2 -num-cores=8", "llvm --mcpu=core-avx2 --num-cores=8")
    row = {"kind": "llvm", "mcpu": "core-avx2", "num-cores": 8, "keys": ["cpu"]}
    for text in (*texts, row, json.dumps(row), Target(texts[0])):
        found = Target(text)
        assert (found, str(found), found.num_cores) == (wanted, "llvm -mcpu=core-avx2", 8)
        assert pickle.loads(pickle.dumps(found)).num_cores == 8
    assert str(Target("nvidia/nvidia-a100")) == "cuda -arch=sm_80"
    gpu = Target("cuda -keys=cuda,gpu -arch=sm_80 -max_num_threads=1024", host="llvm")
    assert (str(gpu), gpu.host_target) == ("cuda -arch=sm_80", Target("llvm"))
    for wrong in ("llvm -num-cores=0", "llvm mcpu=core-avx2", "{", "nvidia/none", {"mcpu": "core-avx2"}):
        with pytest.raises(TargetError, match="target"):
            Target(wrong)


def test_a_task_is_tuned_for_the_cores_that_its_target_names() -> None:
    a = te.placeholder((4,), name="a")
    dag = auto_scheduler.ComputeDAG([a, te.compute((4,), lambda i: a[i] + 1.0)])
    task = auto_scheduler.SearchTask(compute_dag=dag, target="llvm -num-cores=3")
    assert task.hardware_params.num_cores == 3
    assert dag.get_init_state().compute_dag is dag


def test_shapes_are_given_to_a_network_whose_dimensions_are_not_numbers() -> None:
    source = onnx.helper.make_model(
        onnx.helper.make_graph(
            [onnx.helper.make_node("Gemm", ["x", "w"], ["y"])],
            "dynamic",
            [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["rows", 8])],
            [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["rows", 4])],
            [onnx.numpy_helper.from_array(np.ones((8, 4), "float32"), "w")],
        ),
        opset_imports=[onnx.helper.make_opsetid("", 17)],
        ir_version=8,
    )
    with pytest.raises(DynamicShapeError, match="shapes="):
        auto_scheduler.extract_tasks(source, None, "llvm")
    tasks, weights = auto_scheduler.extract_tasks(source, None, "llvm", shapes={"x": (2, 8)})
    assert (len(tasks), weights) == (1, [1])
    module = graph_executor.GraphModule(tvm.build_network(source, "llvm", shapes={"x": (2, 8)})["default"](tvm.cpu(0)))
    module.run(x=np.ones((2, 8), "float32"))
    assert module.get_output(0).numpy().tolist() == [[8.0] * 4] * 2


def test_a_task_is_built_for_its_own_target_and_for_another() -> None:
    a, b = te.placeholder((8, 8), name="A"), te.placeholder((8, 8), name="B")
    k = te.reduce_axis((0, 8), name="k")
    free = {"layout_free_placeholders": [b]}
    c = te.compute((8, 8), lambda i, j: te.sum(a[i, k] * b[k, j], axis=[k]), name="C", attrs=free)
    task = auto_scheduler.SearchTask(compute_dag=auto_scheduler.ComputeDAG([a, b, c]), target="llvm")
    x = np.random.rand(8, 8).astype("float32")
    for module in (tvm.build(task), tvm.build(task, "llvm"), tvm.build(task, target=Target.host())):
        out = nd.empty((8, 8))
        module(nd.array(x), nd.array(x), out)
        np.testing.assert_allclose(out.numpy(), x @ x, rtol=1e-5)
