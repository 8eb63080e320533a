"""Names of TVM's public documents, called as these say."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import retune.compiler as compiler
from retune.compiler import auto_scheduler, graph_executor, nd, vm
from retune.compiler.core.errors import DefinitionError, DeviceError, ModelFormatError, OptionError
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Graph, Value
from retune.compiler.measure.builder import LocalBuilder
from retune.compiler.measure.logs.log import LoggedTask
from retune.compiler.measure.options import MeasureOptions
from retune.compiler.measure.record import Measurement, MeasureStatus
from retune.compiler.measure.runner import LocalRunner
from retune.compiler.runtime.cuda.driver import why_not
from retune.compiler.runtime.device import cpu
from retune.compiler.runtime.ffi.bindings import PackedFunc
from retune.compiler.te.tensor import Tensor
from retune.compiler.tvm.auto_scheduler import MeasureInput, SearchTask
from tests.support.tvm_scripts import matmul

IDENTITY, X = np.eye(3, dtype="float32"), np.arange(6, dtype="float32").reshape(2, 3)


def _task(rows: int = 32) -> SearchTask:
    auto_scheduler.register_workload("lines_of_seeds", matmul, override=True)
    return SearchTask(func="lines_of_seeds", args=(rows, 32, 32), target="llvm")


def _model() -> onnx.ModelProto:
    value = onnx.helper.make_tensor_value_info
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    weight = onnx.numpy_helper.from_array(IDENTITY, "w")
    graph = onnx.helper.make_graph([node], "net", [value("x", 1, (2, 3))], [value("y", 1, (2, 3))], [weight])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])


def _graph() -> Graph:
    builder = GraphBuilder("net", [Value("x", (2, 3))])
    return builder.finish({"y": builder.emit("dense", ("x", builder.constant(IDENTITY, "w")))})


def test_the_function_of_workload_keys_is_in_the_table_of_functions() -> None:
    task = _task()
    function = compiler.get_global_func("auto_scheduler.workload_key_to_tensors")
    assert isinstance(function, PackedFunc)
    found = function(task.workload_key)
    assert all(isinstance(tensor, Tensor) for tensor in found)
    assert str(auto_scheduler.ComputeDAG(found)) == str(task.compute_dag)
    assert "auto_scheduler.workload_key_to_tensors" in compiler.list_global_func_names()
    echo = compiler.runtime.convert(lambda tensor: tensor)
    assert echo(found[0]) == found[0]


def test_tensors_are_registered_as_a_list() -> None:
    tensors = matmul(4, 4, 4)
    key = auto_scheduler.register_workload_tensors('["tensors of seeds"]', tuple(tensors))
    assert auto_scheduler.workload_registry.WORKLOAD_FUNC_REGISTRY[key] == tensors
    assert auto_scheduler.workload_key_to_tensors(key) == tensors


def test_inputs_of_several_tasks_are_built_and_timed() -> None:
    tasks = [_task(), _task(), _task(16)]
    inputs = [MeasureInput(task, task.compute_dag.get_init_state()) for task in tasks]
    with auto_scheduler.LocalBuilder(n_parallel=1) as builder, auto_scheduler.LocalRunner(min_repeat_ms=1) as runner:
        builds = builder.build(inputs)
        assert [build.status for build in builds] == [MeasureStatus.OK] * 3
        results = runner.run(inputs, builds, verbose=0)
        assert [result.error_no for result in results] == [MeasureStatus.OK] * 3
        assert all(len(result.costs) == 1 and result.costs[0].value > 0 for result in results)
        with auto_scheduler.LocalRPCMeasureContext(min_repeat_ms=1) as context:
            assert isinstance(context.runner, auto_scheduler.RPCRunner)
            assert [result.error_no for result in context.runner.run(inputs, builds)] == [MeasureStatus.OK] * 3
        for wrong in (5, [5], [builds[0]]):
            with pytest.raises(OptionError, match="a list of MeasureInput is needed"):
                builder.build(wrong)
        light = MeasureInput.deserialize((LoggedTask(tasks[0].workload_key, "llvm"), ()))
        with pytest.raises(OptionError, match="recover_measure_input"):
            runner.run([light], builds[:1])


def test_programs_for_a_gpu_need_one() -> None:
    task = SearchTask(workload_key=_task().workload_key, target="nvidia/geforce-rtx-3070")
    inputs = [MeasureInput(task, task.compute_dag.get_init_state())]
    with auto_scheduler.LocalRunner() as runner:
        if why_not():
            with pytest.raises(DeviceError):
                runner.run(inputs, [Measurement(status=MeasureStatus.COMPILE_HOST)])
        else:
            (result,) = runner.run(inputs, [Measurement(status=MeasureStatus.COMPILE_HOST)])
            assert result.error_no == MeasureStatus.COMPILE_HOST


def test_options_take_the_builder_and_the_runner_of_the_compiler() -> None:
    with LocalBuilder(n_parallel=1) as builder, LocalRunner(MeasureOptions(min_repeat_ms=1)) as runner:
        options = auto_scheduler.TuningOptions(builder=builder, runner=runner)
        with auto_scheduler.ProgramMeasurer.of(options, [_task()]) as measurer:
            task = _task()
            (result,) = measurer.measure(None, [MeasureInput(task, task.compute_dag.get_init_state())])
    assert result.error_no == MeasureStatus.OK


def test_a_dispatch_context_of_a_script_answers_queries() -> None:
    task = _task()
    state = task.compute_dag.get_init_state()
    state.split("C", state["C"].iters[0], [8])

    class Own(auto_scheduler.DispatchContext):
        def _query_inside(self, target: Any, workload_key: str) -> Any:  # noqa: ARG002
            return answers.get(workload_key)

    answers: dict[str, Any] = {task.workload_key: state}
    with Own() as context:
        for answers[task.workload_key] in (state, state.state_object):
            found = auto_scheduler.DispatchContext.current.query(task.target, task.workload_key, True, task.compute_dag)
            assert found is not None
            assert found.steps == state.steps
        assert context.query(task.target, "another", False, task.compute_dag) is None
    with pytest.raises(NotImplementedError, match="Own needs update"):
        context.update(task.target, task.workload_key, state.state_object)
    with pytest.raises(NotImplementedError, match="needs _query_inside"):
        auto_scheduler.DispatchContext().query(task.target, task.workload_key, True, task.compute_dag)


@pytest.mark.parametrize("make", [_model, _graph])
def test_a_parameter_takes_the_place_of_a_constant(make: Any, tmp_path: Path) -> None:
    onnx.save(_model(), tmp_path / "net.onnx")
    for network in (make(), str(tmp_path / "net.onnx")):
        for weight in (3 * IDENTITY, nd.array(3 * IDENTITY).numpy()):
            machine = vm.VirtualMachine(vm.compile(network, params={"w": weight}), cpu())
            np.testing.assert_allclose(machine.run(X), 3 * X, rtol=1e-6)
            module = graph_executor.GraphModule(compiler.build_network(network, params={"w": weight})["default"](cpu()))
            module.run(x=X)
            np.testing.assert_allclose(module.get_output(0), 3 * X, rtol=1e-6)
        for wrong in ({"w": IDENTITY[:2]}, {"w": IDENTITY.astype("int32")}, {"z": IDENTITY}):
            for build in (vm.compile, compiler.build_network):
                with pytest.raises(ModelFormatError):
                    build(network, params=wrong)


def test_what_optimize_returned_is_lowered() -> None:
    compilation = vm.VMCompiler()
    optimized, params = compilation.optimize(_model(), "llvm", params={"w": 2 * IDENTITY})
    for array in params.values():
        np.testing.assert_array_equal(array.numpy(), np.asarray(array))
    for network in (optimized, _model()):
        compilation.lower(network, "llvm")
        compilation.codegen()
        machine = vm.VirtualMachine(compilation.get_exec(), cpu())
        np.testing.assert_allclose(machine.run(X), 2 * X, rtol=1e-6)
        assert compilation.get_params().keys() >= {"w"}


def test_a_profile_prints_its_table() -> None:
    report = vm.VirtualMachine(vm.compile(_model()), cpu()).profile(X)
    assert str(report) == report.table()


def test_parameters_of_a_library_have_numpy() -> None:
    library = graph_executor.Library(compile_graph(_graph(), auto_scheduler.Target.host()))
    (array,) = library.get_graph_params().values()
    np.testing.assert_array_equal(array.numpy(), np.asarray(array))


def test_messages_name_what_was_given() -> None:
    state = _task().compute_dag.get_init_state()
    with pytest.raises(DefinitionError, match=r"made of a list of tensors, not of a State$"):
        auto_scheduler.ComputeDAG(state)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a registered function or its name, not 5"):
        auto_scheduler.make_workload_key(5, ())  # type: ignore[arg-type]


def test_python_code_of_an_initial_state_runs() -> None:
    task = _task()
    namespace: dict[str, Any] = {"dag": task.compute_dag}
    exec(task.compute_dag.print_python_code_from_state(task.compute_dag.get_init_state()), namespace)
    assert str(namespace["state"]) == str(task.compute_dag.get_init_state().state_object)
