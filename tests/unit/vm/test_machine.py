"""The interface of the virtual machine, on networks of known shapes."""

import copy
import inspect
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retune.compiler import nd, vm
from retune.compiler.core.errors import (
    ArtifactError,
    MachineError,
    ModelError,
    ModelFormatError,
    OptionError,
    ShapeMismatchError,
)
from retune.compiler.core.target import Target
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.graph_region import of_graph
from retune.compiler.graph.ir import Graph, Value
from retune.compiler.graph.pipeline import optimize
from retune.compiler.runtime.device import cpu, cuda
from retune.compiler.runtime.executor.debug_report import Report
from retune.compiler.runtime.executor.graph_executor import GraphExecutor
from retune.compiler.runtime.executor.params import save_param_dict_to_file
from retune.compiler.runtime.executor.plan import Plan
from retune.compiler.runtime.timing import BenchmarkResult
from retune.compiler.vm.allocator import NaiveAllocator, PooledAllocator, allocator
from retune.compiler.vm.interpreter import Interpreter, Profile
from retune.compiler.vm.plan_region import PlanRegion
from retune.compiler.vm.values import argument
from tests.support.dynamic_models import floats
from tests.support.fresh_process import run_afresh


def sums(shape: tuple[int, ...] = (3, 4), dtype: str = "float32") -> Graph:
    """(x1 + y1) and (x1 - y1)."""
    builder = GraphBuilder("sums", [Value("x1", shape, dtype), Value("y1", shape, dtype)])
    return builder.finish({"sum": builder.emit("add", ("x1", "y1")), "difference": builder.emit("sub", ("x1", "y1"))})


def layers(width: int = 24) -> Graph:
    """Two products with weights, a softmax between them, and their sum with the input."""
    builder = GraphBuilder("layers", [Value("x", (5, width))])
    first = builder.constant(floats(width, width), "first")
    second = builder.constant(floats(width, width, seed=1), "second")
    product = builder.emit("dense", ("x", first))
    soft = builder.emit("softmax", (builder.emit("relu", (product,)),), {"axis": 1})
    return builder.finish({"out": builder.emit("add", (builder.emit("dense", (soft, second)), "x"))})


def machine_of(graph: Graph, **options: Any) -> vm.VirtualMachine:
    return vm.VirtualMachine(vm.compile(graph), cpu(), **options)


def by_executor(graph: Graph, **inputs: Any) -> list[Any]:
    executor = GraphExecutor(compile_graph(optimize(graph), Target.host()))
    executor.run(**inputs)
    return [executor.get_output(index) for index in range(executor.get_num_outputs())]


X, Y = floats(3, 4), floats(3, 4, seed=1)


def test_a_network_gives_what_the_graph_executor_gives() -> None:
    x = floats(5, 24)
    machine = machine_of(layers())
    (expected,) = by_executor(layers(), x=x)
    for _ in range(3):
        np.testing.assert_array_equal(machine.run(x), expected)
    np.testing.assert_array_equal(machine.run(x=x), expected)


def test_results_stay_when_the_machine_runs_again() -> None:
    machine = machine_of(layers())
    one = machine.run(floats(5, 24))
    kept = one.copy()
    machine.run(floats(5, 24, seed=3))
    np.testing.assert_array_equal(one, kept)


def test_memory_planning_and_single_steps_keep_the_results() -> None:
    x = floats(5, 24)
    pooled, naive = machine_of(layers()), machine_of(layers(), memory_cfg="naive")
    np.testing.assert_array_equal(pooled.run(x), naive.run(x))
    timed = Interpreter(pooled._program, pooled._callees, Profile())
    np.testing.assert_array_equal(timed.run("main", [argument(x)])[0], naive.run(x))


@pytest.mark.parametrize("config", [None, "pooled", "naive", 1, 2, {cpu(): "naive"}, {}])
def test_memory_is_configured_by_name_number_or_device(config: Any) -> None:
    machine = machine_of(sums(), memory_cfg=config)
    kind = NaiveAllocator if config in ("naive", 1, {cpu(): "naive"}) else PooledAllocator
    assert isinstance(machine._resources.allocator, kind)
    assert (vm.VirtualMachine.NAIVE_ALLOCATOR, vm.VirtualMachine.POOLED_ALLOCATOR) == (1, 2)


def test_another_configuration_or_device_is_refused() -> None:
    exe = vm.compile(sums())
    with pytest.raises(OptionError, match="memory_cfg"):
        vm.VirtualMachine(exe, cpu(), "arena")
    with pytest.raises(OptionError, match="cuda"):
        vm.VirtualMachine(exe, [cpu(), cuda()])


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_vm_scalars_are_arrays_numpy_scalars_or_numbers(dtype: str) -> None:
    builder = GraphBuilder("scalars", [Value("x", (), dtype), Value("y", (), dtype)])
    machine = machine_of(builder.finish({"out": builder.emit("add", ("x", "y"))}))
    given: list[Any] = [np.array(3, dtype), np.dtype(dtype).type(3)]
    if dtype != "float16":
        given.append(3 if dtype == "int32" else 3.0)
    for each in given:
        found = machine.run(each, each)
        assert found.dtype == dtype
        assert found.shape == ()
        assert found == 6
        assert found.numpy() == 6


def test_arguments_of_other_kinds_are_refused() -> None:
    machine = machine_of(sums())
    with pytest.raises(MachineError, match="set"):
        machine.run({1}, X)
    with pytest.raises(ShapeMismatchError, match="x1"):
        machine.run(X[:2], Y)
    with pytest.raises(ShapeMismatchError, match="float64"):
        machine.run(X.astype("float64"), Y)
    with pytest.raises(MachineError, match="y1 missing"):
        machine.set_input("main", X)
    with pytest.raises(MachineError, match="3 are given"):
        machine.set_input("main", X, Y, X)
    with pytest.raises(MachineError, match="twice"):
        machine.set_input("main", X, Y, x1=X)
    with pytest.raises(ArtifactError, match="no function 'f'"):
        machine.invoke("f", X)
    for other in ([X], (X, Y), "x", np.array([None]), np.array(["a"]), np.zeros((3, 4), [("a", "f4")])):
        with pytest.raises(MachineError, match="array"):
            machine.run(other, Y)
    with pytest.raises(OptionError, match="output 1"):
        machine.invoke_with_outputs("main", {"x1": X, "y1": Y}, [np.empty_like(X), [1.0]])  # type: ignore[list-item]


def test_running_before_inputs_are_set_is_an_error() -> None:
    machine = machine_of(sums())
    with pytest.raises(MachineError, match="was not given x1, y1"):
        machine.run()
    machine.set_one_input("main", "y1", Y)
    with pytest.raises(MachineError, match="was not given x1:"):
        machine.run()


def test_stateful_calls_keep_their_outputs() -> None:
    machine = machine_of(sums())
    machine.invoke_stateful("main", X, Y)
    total, difference = machine.get_outputs()
    np.testing.assert_array_equal(total, X + Y)
    np.testing.assert_array_equal(difference, X - Y)
    single = machine_of(layers())
    single.invoke_stateful("main", floats(5, 24))
    assert len(single.get_outputs()) == 1
    assert [machine.get_input_index(name) for name in ("y1", "x1", "z")] == [1, 0, -1]


def test_inputs_are_set_by_index_or_name_all_or_one() -> None:
    machine = machine_of(sums())
    machine.set_input("main", X, Y)
    np.testing.assert_array_equal(machine.run()[1], X - Y)
    machine.set_input("main", y1=X, x1=Y, other=X)
    np.testing.assert_array_equal(machine.run()[1], Y - X)
    machine.set_input("main", X, y1=X)
    np.testing.assert_array_equal(machine.run()[1], X - X)
    for first, second in (((1, Y), (0, X)), (("x1", X), ("y1", Y)), ({"y1": Y}, {"x1": X})):
        machine.set_input("main", Y, X)
        for one in (first, second):
            machine.set_one_input("main", **one) if isinstance(one, dict) else machine.set_one_input("main", *one)
        np.testing.assert_array_equal(machine.run()[1], X - Y)
    for wrong in ((2, X), (-1, X), ("z", X), (True, X)):
        with pytest.raises(MachineError, match="has no input"):
            machine.set_one_input("main", *wrong)
    with pytest.raises(MachineError, match="takes one argument"):
        machine.set_one_input("main", x1=X, y1=Y)


def test_arrays_of_the_ffi_and_of_any_layout_go_in() -> None:
    machine = machine_of(sums())
    np.testing.assert_array_equal(machine.run(nd.array(X), nd.array(Y))[0], X + Y)
    wide = floats(4, 6)
    np.testing.assert_array_equal(machine.run(wide[:, :3].T, Y)[0], wide[:, :3].T + Y)


def test_outputs_may_be_allocated_by_the_caller() -> None:
    machine = machine_of(sums())
    outputs: list[Any] = [np.empty((3, 4), np.float32), nd.empty((3, 4))]
    for x in (X, Y):
        machine.invoke_with_outputs("main", {"x1": x, "y1": Y}, outputs)
        np.testing.assert_array_equal(outputs[0], x + Y)
        np.testing.assert_array_equal(outputs[1].numpy(), x - Y)
    with pytest.raises(OptionError, match="2 results, 1 arrays"):
        machine.invoke_with_outputs("main", {"x1": X, "y1": Y}, outputs[:1])
    with pytest.raises(OptionError, match="result 0"):
        machine.invoke_with_outputs("main", {"x1": X, "y1": Y}, [np.empty((4, 3), np.float32), outputs[1]])


@pytest.mark.parametrize("end_to_end", [False, True])
def test_vm_benchmark_returns_a_result_per_repeat(end_to_end: bool) -> None:
    machine = machine_of(sums())
    found = machine.benchmark(cpu(), X, Y, func_name="main", repeat=2, number=1, end_to_end=end_to_end)
    assert isinstance(found, BenchmarkResult)
    assert len(found.results) == 2
    assert found.mean == found.median > 0
    defaults = {name: each.default for name, each in inspect.signature(machine.benchmark).parameters.items()}
    assert {name: value for name, value in defaults.items() if value is not inspect.Parameter.empty} == {
        "func_name": "main",
        "repeat": 5,
        "number": 5,
        "min_repeat_ms": None,
        "limit_zero_time_iterations": 100,
        "end_to_end": False,
        "cooldown_interval_ms": 0,
        "repeats_to_cooldown": 1,
    }


def test_a_profiler_report_of_a_vm_call_survives_json() -> None:
    machine = machine_of(layers())
    report = machine.profile(floats(5, 24))
    names = [call["Name"] for call in report.calls]
    assert "layers" in names
    assert any(str(name).startswith("dense") for name in names)
    assert report.configuration["Executor"] == "VM"
    assert "Total" in report.table()
    assert Report.from_json(report.json()).table() == report.table()
    assert "Duration (us)" in json.loads(report.json())["calls"][0]


def test_executables_print_and_survive_files(tmp_path: Path) -> None:
    exe = vm.compile(sums())
    code, library = exe.save()
    assert isinstance(code, bytearray)
    assert exe.globals == ["main"]
    assert exe.get_function_params("main") == ["x1", "y1"]
    assert "function main(x1: float32[3, 4], y1: float32[3, 4]) -> (" in exe.bytecode
    assert [name.split("_")[0] for name in exe.primitive_ops] == ["add", "sub"]
    assert all(name in exe.primitives for name in exe.primitive_ops)
    assert "functions (main)" in exe.stats
    assert "cpu(0) (host)" in exe.virtual_devices
    (tmp_path / "code.bin").write_bytes(code)
    library.export_library(tmp_path / "lib.retune")
    loaded = vm.Executable.load_exec(
        bytearray((tmp_path / "code.bin").read_bytes()), vm.load_module(tmp_path / "lib.retune")
    )
    assert str(loaded) == str(exe)
    whole = vm.Executable.load(exe.export_library(tmp_path / "whole.retune"))
    for each in (loaded, whole):
        total, difference = vm.VirtualMachine(each, cpu()).run(X, Y)
        np.testing.assert_array_equal(total, X + Y)
        np.testing.assert_array_equal(difference, X - Y)


def test_a_fresh_process_loads_no_compiler(tmp_path: Path) -> None:
    x = floats(5, 24)
    path = vm.compile(layers()).export_library(tmp_path / "layers.retune")
    found, modules = run_afresh(path, x)
    assert not {"onnx", "retune.compiler.tune", "retune.compiler.codegen"} & set(modules)
    np.testing.assert_array_equal(found, by_executor(layers(), x=x)[0])


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = vm.compile(sums()).export_library(tmp_path / "sums.retune")
    content = path.read_bytes()
    for place in range(0, len(content), max(1, len(content) // 200)):
        damaged = bytearray(content)
        damaged[place] ^= 0xFF
        path.write_bytes(damaged)
        try:
            machine = vm.VirtualMachine(vm.Executable.load(path), cpu())
        except ArtifactError:
            continue
        np.testing.assert_array_equal(machine.run(X, Y)[0], X + Y)  # the damage was in a place that says nothing
    with pytest.raises(ArtifactError, match="no such file"):
        vm.Executable.load(tmp_path / "nothing.retune")


def test_large_constants_are_bound_late(tmp_path: Path) -> None:
    x = floats(5, 24)
    (expected,) = by_executor(layers(), x=x)
    exe = vm.compile(layers())
    whole = len(exe.save()[0])
    exe.move_late_bound_consts(tmp_path / "consts.params", 256)
    assert "bound late" in exe.constants
    code, library = exe.save()
    assert len(code) < whole - 2 * 24 * 24 * 4
    with pytest.raises(MachineError, match="bound late"):
        vm.VirtualMachine(vm.Executable.load_exec(code, library), cpu()).run(x)

    loaded = vm.Executable.load_exec(code, library)
    loaded.load_late_bound_consts(tmp_path / "consts.params")
    np.testing.assert_array_equal(vm.VirtualMachine(loaded, cpu()).run(x), expected)
    with pytest.raises(ArtifactError, match="bound already"):
        loaded.load_late_bound_consts(tmp_path / "consts.params")

    late = vm.VirtualMachine(vm.Executable.load_exec(code, library), cpu())
    late.load_late_bound_consts(str(tmp_path / "consts.params"))
    np.testing.assert_array_equal(late.run(x), expected)


def test_constants_are_bound_by_name() -> None:
    exe = vm.compile(layers())
    consts = exe.get_late_bound_consts(256)
    assert sorted(name.partition("_")[0] for name in consts) == ["const"] * len(consts)
    assert len(consts) == 2
    some = dict(list(consts.items())[:1])
    with pytest.raises(ArtifactError, match="no array is given"):
        exe.load_late_bound_consts_from_map(some)
    with pytest.raises(ArtifactError, match="no late-bound constants other"):
        exe.load_late_bound_consts_from_map({**consts, "other": X})
    exe.load_late_bound_consts_from_map(consts)
    np.testing.assert_array_equal(
        vm.VirtualMachine(exe, cpu()).run(floats(5, 24)), by_executor(layers(), x=floats(5, 24))[0]
    )


def test_late_bound_constants_are_arrays_that_stay() -> None:
    exe = vm.compile(layers())
    consts = {name: np.array(array) for name, array in exe.get_late_bound_consts(256).items()}
    for wrong in ([[1.0]], None, "x", np.array([None])):
        with pytest.raises(ArtifactError, match=f"constant {min(consts)}"):
            exe.load_late_bound_consts_from_map({**consts, min(consts): wrong})  # type: ignore[dict-item]
    name = min(consts)
    for other, message in ((consts[name] + 1, "other values"), (consts[name][:1], r"is float32\[.*, not float32\[1")):
        with pytest.raises(ArtifactError, match=f"{name} .*{message}"):
            exe.load_late_bound_consts_from_map({**consts, name: other})
    exe.load_late_bound_consts_from_map(consts)
    for array in consts.values():
        array[...] = 0
    np.testing.assert_array_equal(
        vm.VirtualMachine(exe, cpu()).run(floats(5, 24)), by_executor(layers(), x=floats(5, 24))[0]
    )


def test_without_large_constants_nothing_is_bound_late(tmp_path: Path) -> None:
    exe = vm.compile(sums())
    exe.move_late_bound_consts(tmp_path / "consts.params", 256)
    assert exe.get_late_bound_consts(1 << 30) == {}
    exe.load_late_bound_consts(tmp_path / "consts.params")
    np.testing.assert_array_equal(vm.VirtualMachine(exe, cpu()).run(X, Y)[0], X + Y)
    save_param_dict_to_file({"const_9": X}, tmp_path / "other.params")
    with pytest.raises(ArtifactError, match="const_9"):
        exe.load_late_bound_consts(tmp_path / "other.params")


def _reshapes(*shapes: tuple[int, ...]) -> Plan:
    builder = GraphBuilder("shapes", [Value("x", (2, 12))])
    name = "x"
    for shape in shapes:
        name = builder.emit("reshape", (name,), {"shape": shape})
    exe = vm.compile(builder.finish({"out": name}))
    machine = vm.VirtualMachine(exe, cpu())
    x = floats(2, 12)
    found = machine.run(x)
    np.testing.assert_array_equal(found, x.reshape(shapes[-1]))
    assert not np.may_share_memory(found, x)
    return _plan(exe)


def _plan(exe: vm.Executable) -> Plan:
    (region,) = exe.program.regions()
    assert isinstance(region, PlanRegion)
    return region.plan


def test_reshapes_are_views_and_two_become_one() -> None:
    for shapes in ([(4, 6)], [(4, 6), (3, 8)]):
        plan = _reshapes(*shapes)
        assert plan.calls == ()
        assert [plan.root(number).name for number in plan.outputs] == ["x"]


def test_a_network_of_known_shapes_is_one_call_of_a_plan() -> None:
    exe = vm.compile(layers())
    assert len(exe.program.main.body) == 1
    assert str(_plan(exe)) in exe.bytecode
    assert all(name in exe.bytecode for name in exe.primitive_ops)


def test_parameters_become_constants() -> None:
    compiler = vm.VMCompiler()
    optimized, params = compiler.optimize(sums(), "llvm", params={"y1": Y})
    assert [param.name for param in optimized.inputs] == ["x1"]
    np.testing.assert_array_equal(params["y1"], Y)
    machine = vm.VirtualMachine(vm.compile(sums(), "llvm", params={"y1": nd.array(Y)}), cpu())
    np.testing.assert_array_equal(machine.run(X)[1], X - Y)
    bound = vm.compile(of_graph(sums()), params={"y1": Y})
    assert bound.get_function_params("main") == ["x1"]
    np.testing.assert_array_equal(vm.VirtualMachine(bound, cpu()).run(X)[1], X - Y)
    for wrong in ({"z": Y}, {"y1": Y[:2]}, {"y1": Y.astype("int32")}):
        with pytest.raises(ModelFormatError):
            vm.compile(sums(), params=wrong)


def test_the_compiler_goes_step_by_step() -> None:
    compiler = vm.VMCompiler()
    with pytest.raises(MachineError, match="lower first"):
        compiler.codegen()
    compiler.set_params({"y1": Y})
    assert list(compiler.get_params()) == ["y1"]
    compiler.lower(sums(), "llvm", "llvm")
    with pytest.raises(MachineError, match="codegen first"):
        compiler.get_exec()
    compiler.codegen()
    np.testing.assert_array_equal(vm.VirtualMachine(compiler.get_exec(), cpu()).run(X)[0], X + Y)


def test_an_executor_evaluates() -> None:
    executor = vm.VMExecutor(sums(), cpu(), "llvm")
    np.testing.assert_array_equal(executor.evaluate()(X, y1=Y)[0], X + Y)
    assert executor.evaluate(layers())(floats(5, 24)).shape == (5, 24)
    with pytest.raises(ModelError):
        vm.VMExecutor(None, cpu(), "llvm")


def test_pooled_memory_is_used_again_and_never_twice() -> None:
    pool = PooledAllocator()

    def bytes_of(count: int) -> tuple[Any, int]:
        return pool.array((count,), np.dtype(np.uint8), count)

    first, address = bytes_of(5000)
    view = first[64:128].view(np.float32).reshape(4, 4)
    del first
    other, elsewhere = bytes_of(5000)
    assert elsewhere != address  # the view is alive
    del view
    again, start = bytes_of(6000)
    assert start == address
    assert again.nbytes == 6000
    assert bytes_of(100_000)[1] not in (address, elsewhere)
    assert other.size == 5000
    with pytest.raises(MachineError, match="pooled"):
        allocator("heap")
    with pytest.raises(MachineError):
        bytes_of(1 << 62)


@pytest.mark.parametrize("about", [{"threads": 0}, {"needs": [1]}, {"needs": "avx2"}])
def test_facts_that_make_no_sense_are_refused(tmp_path: Path, about: dict[str, Any]) -> None:
    exe = vm.compile(sums())
    library = vm.VMLibrary(exe.library.kernels, about={**exe.library.about, **about})
    path = vm.Executable(exe.program, library).export_library(tmp_path / "sums.retune")
    with pytest.raises(ArtifactError, match=r"makes no sense|is damaged"):
        vm.VirtualMachine(vm.Executable.load(path), cpu())


def test_a_number_of_threads_that_cannot_be_started_is_refused() -> None:
    for threads in (0, -1, 5000, True):
        with pytest.raises(OptionError, match="threads"):
            machine_of(sums(), threads=threads)
    machine = machine_of(layers(), threads=2)
    np.testing.assert_array_equal(machine.run(floats(5, 24)), by_executor(layers(), x=floats(5, 24))[0])


def test_the_calls_of_a_computation_may_come_from_several_threads() -> None:
    machine = vm.VirtualMachine(vm.compile(sums()), cpu())
    for seed in range(3):
        x = floats(3, 4, seed=seed)
        with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:
            one.submit(machine.set_input, "main", x, x).result()
            two.submit(machine.invoke_stateful, "main").result()
            np.testing.assert_array_equal(machine.get_outputs()[0], x + x)


def test_arguments_and_outputs_that_another_thread_replaced_are_refused() -> None:
    machine = vm.VirtualMachine(vm.compile(sums()), cpu())
    one, two = floats(3, 4), floats(3, 4, seed=1)
    with ThreadPoolExecutor(1) as pool:
        machine.set_input("main", one, one)
        np.testing.assert_array_equal(pool.submit(machine.run, two, two).result()[0], two + two)
        with pytest.raises(OptionError, match="what main takes was set by another thread"):
            machine.invoke_stateful("main")
        machine.invoke_stateful("main", one, one)
        pool.submit(machine.invoke_stateful, "main", two, two).result()
        with pytest.raises(OptionError, match="another thread has run"):
            machine.get_outputs()
        np.testing.assert_array_equal(pool.submit(machine.get_outputs).result()[0], two + two)


def test_a_machine_is_not_copied() -> None:
    with pytest.raises(ArtifactError, match="a virtual machine cannot be copied or pickled"):
        copy.deepcopy(vm.VirtualMachine(vm.compile(sums()), cpu()))
