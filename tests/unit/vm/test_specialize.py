"""Regions that are compiled for the shapes that turn up: what is kept, shared, tuned, and done meanwhile."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from retune.compiler import vm
from retune.compiler.core.errors import ArtifactError, MachineError, OptionError, ShapeMismatchError
from retune.compiler.core.target import Target
from retune.compiler.driver.dispatch import ApplyHistoryBest
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.frontend.importer import load_model
from retune.compiler.graph.partition.partition import partition
from retune.compiler.graph.pipeline import optimize
from retune.compiler.graph.program import MAIN, Call
from retune.compiler.graph.symbolic_region import SymbolicRegion
from retune.compiler.measure.logs.log import LoggedTask, LoggedTrial
from retune.compiler.measure.record import MeasureStatus, TaskProgram
from retune.compiler.runtime.device import cpu
from retune.compiler.runtime.executor.params import load_param_dict_from_file
from retune.compiler.runtime.kernel_row import ProgramOrigin
from retune.compiler.schedule.default.cpu import default_steps
from retune.compiler.schedule.state import replay
from retune.compiler.schedule.steps import dump_steps, load_steps
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.transfer import transfer_program
from retune.compiler.tune.winners import untested_candidates
from retune.compiler.vm import specialize
from retune.compiler.vm.kernel_store import STORE
from retune.compiler.vm.subgraph import compile_subgraph
from retune.compiler.vm.symbolic_plan import SymbolicPlanRegion
from tests.support.dynamic_models import attention, branching, floats, model, reference, tensor
from tests.support.fresh_process import run_afresh

TARGET = Target.host()
WEIGHTS = {"w": floats(32, 48), "v": floats(48, 16)}
node = helper.make_node


def two_products(rows: int | str = "n") -> onnx.ModelProto:
    """relu(x w) v, and a sum of the weights' rows, which no input decides on."""
    nodes = [
        node("MatMul", ["x", "w"], ["first"]),
        node("Relu", ["first"], ["positive"]),
        node("MatMul", ["positive", "v"], ["out"]),
    ]
    return model(nodes, [tensor("x", [rows, 32])], [tensor("out", [rows, 16])], WEIGHTS)


def with_fixed_part() -> onnx.ModelProto:
    """A product whose size the length does not change, beside one that has the length."""
    nodes = [
        node("MatMul", ["fixed", "w"], ["same"]),
        node("MatMul", ["x", "w"], ["longer"]),
        node("Concat", ["same", "longer"], ["out"], axis=0),
    ]
    fed = [tensor("fixed", [7, 32]), tensor("x", ["n", 32])]
    return model(nodes, fed, [tensor("out", [None, 48])], WEIGHTS)


def machine_of(source: onnx.ModelProto, specialize: str = "now", **options: Any) -> vm.VirtualMachine:
    return vm.VirtualMachine(vm.compile(source), cpu(), options=vm.VMOptions(specialize, **options))


def expect(machine: vm.VirtualMachine, source: onnx.ModelProto, rows: int) -> None:
    x = floats(rows, 32, seed=rows)
    np.testing.assert_allclose(machine.run(x), reference(source, {"x": x})[0], rtol=1e-4, atol=1e-4)


def test_a_shape_is_compiled_once() -> None:
    machine = machine_of(two_products())
    for rows in (3, 5, 3, 5, 3):
        expect(machine, two_products(), rows)
    found = machine.specializations()
    assert [dict(each.shapes) for each in found] == [{"x": (5, 32)}, {"x": (3, 32)}]
    assert all(each.seconds > 0 and each.built > 0 for each in found)
    assert "x [3, 32]" in str(found[1])


def test_the_shapes_met_last_are_kept() -> None:
    machine = machine_of(two_products(), specializations=2)
    for rows in (2, 3, 2, 4):
        expect(machine, two_products(), rows)
    assert [each.shapes["x"][0] for each in machine.specializations()] == [2, 4]


def test_kernels_whose_shapes_stay_are_built_once_a_process() -> None:
    source = with_fixed_part()
    machine = machine_of(source)
    fixed = floats(7, 32)
    for rows in (11, 12, 13):
        x = floats(rows, 32)
        expected = reference(source, {"fixed": fixed, "x": x})[0]
        np.testing.assert_allclose(machine.run(fixed=fixed, x=x), expected, rtol=1e-4, atol=1e-4)
    first, *others = machine.specializations()
    assert all(0 < each.built < len(each.coverage) for each in others)
    before = STORE.use.built
    again = machine_of(source)
    again.run(fixed=fixed, x=floats(12, 32))
    assert STORE.use.built == before, "another machine finds all kernels built"
    assert first.built >= others[0].built


def test_meanwhile_numpy_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    original = compile_subgraph

    def slow(*args: Any) -> Any:
        assert gate.wait(60)
        return original(*args)

    monkeypatch.setattr(specialize, "compile_subgraph", slow)
    machine = machine_of(two_products(), specialize="background")
    expect(machine, two_products(), 9)
    assert [region.reports for region in machine._callees.specialized.values()] == [()]
    gate.set()
    (found,) = machine.specializations()
    assert found.shapes == {"x": (9, 32)}
    expect(machine, two_products(), 9)


@pytest.mark.parametrize("error", [ArtifactError("no compiler today"), ZeroDivisionError("no compiler today")])
def test_what_cannot_be_compiled_in_the_background_is_left_to_numpy_and_told_once(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(specialize, "compile_subgraph", broken)
    machine = machine_of(two_products(), specialize="background")
    for rows in (9, 9, 8):
        expect(machine, two_products(), rows)
        assert machine.specializations() == ()
    (told,) = [each for each in caplog.records if each.levelname == "WARNING"]
    assert f"{type(error).__name__}: no compiler today" in told.message
    assert (told.exc_info is not None) == isinstance(error, ZeroDivisionError)


def test_nothing_need_ever_be_compiled() -> None:
    machine = machine_of(two_products(), specialize="never")
    before = STORE.use.asked
    for rows in (3, 4):
        expect(machine, two_products(), rows)
    assert STORE.use.asked == before
    assert machine.specializations() == ()


@pytest.mark.parametrize("options", [{"specialize": "soon"}, {"specializations": 0}, {"specializations": True}])
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        vm.VMOptions(**options)


def _tasks(rows: int) -> list[SearchTask]:
    graph = optimize(load_model(two_products(rows)))
    cut = partition(graph, TARGET, hardware_of(TARGET, 1))
    return [task for task, tunable in zip(cut.tasks, cut.tunable, strict=True) if tunable]


def _trials(rows: int) -> list[LoggedTrial]:
    """A record for every task of that many rows."""
    found = []
    for task in _tasks(rows):
        steps = load_steps(untested_candidates(task)[0].steps)
        found.append(LoggedTrial(LoggedTask.of(task), steps, (1e-4,), MeasureStatus.OK, 1.0, 1))
    return found


def test_a_record_serves_its_shape_and_the_shapes_near_it() -> None:
    with ApplyHistoryBest(_trials(64)):
        exe = vm.compile(two_products())
    machine = vm.VirtualMachine(exe, cpu())
    for rows in (64, 96):
        expect(machine, two_products(), rows)
    tuned, fitted = machine.specializations()
    assert {row.origin for row in tuned.coverage if row.tunable} == {ProgramOrigin.RECORD}
    assert {row.origin for row in fitted.coverage if row.tunable} == {ProgramOrigin.TRANSFER}
    assert "2 record" in str(tuned)
    assert "2 transfer" in str(fitted)


def test_records_travel_with_the_executable(tmp_path: Path) -> None:
    with ApplyHistoryBest(_trials(64)):
        path = vm.compile(two_products()).export_library(tmp_path / "net.retune")
    machine = vm.VirtualMachine(vm.Executable.load(path), cpu())
    expect(machine, two_products(), 64)
    (found,) = machine.specializations()
    assert {row.origin for row in found.coverage if row.tunable} == {ProgramOrigin.RECORD}


def test_without_records_kernels_are_untuned() -> None:
    machine = machine_of(two_products())
    expect(machine, two_products(), 21)
    (found,) = machine.specializations()
    assert {row.origin for row in found.coverage} == {ProgramOrigin.DEFAULT}


def test_a_program_is_fitted_to_other_sizes_and_computes_the_same() -> None:
    source, other = _tasks(64), _tasks(80)
    for task, wanted in zip(source, other, strict=True):
        guess = untested_candidates(task)[0]
        relatives = [TaskProgram(task.workload_key, guess.steps, 1e-4)]
        steps = transfer_program(wanted, relatives)
        assert steps is not None
        assert dump_steps(steps) != dump_steps(default_steps(wanted.dag))
        replay(wanted.dag, steps)
        assert transfer_program(wanted, []) is None
        assert transfer_program(wanted, [TaskProgram(task.workload_key, "[]", 1.0)]) is None


def test_constants_of_later_compilations_are_bound_late_too(tmp_path: Path) -> None:
    exe = vm.compile(two_products())
    exe.move_late_bound_consts(tmp_path / "weights.params", 256)
    path = exe.export_library(tmp_path / "net.retune")
    machine = vm.VirtualMachine(vm.Executable.load(path), cpu(), options=vm.VMOptions("now"))
    with pytest.raises(MachineError, match=r"the constants .*, .* are bound late"):
        machine.run(floats(3, 32))
    other = load_param_dict_from_file(tmp_path / "weights.params")
    name = max(other)
    other[name] = other[name] * 2
    with pytest.raises(ArtifactError, match=f"{name} has other values"):
        machine.load_late_bound_consts_from_map(other)
    machine.load_late_bound_consts(str(tmp_path / "weights.params"))
    expect(machine, two_products(), 3)


@pytest.mark.parametrize(
    ("source", "x"),
    [
        pytest.param(attention(), floats(2, 5, 8), marks=pytest.mark.long),
        pytest.param(branching(), floats(3), marks=pytest.mark.long),
        (two_products(), floats(1, 32)),
    ],
)
def test_new_shapes_need_nothing_of_the_front_end(source: onnx.ModelProto, x: Any, tmp_path: Path) -> None:
    path = vm.compile(source).export_library(tmp_path / "net.retune")
    found, modules = run_afresh(path, x)
    np.testing.assert_allclose(found, reference(source, {"x": x})[0], rtol=1e-4, atol=1e-4)
    assert [name for name in modules if name.startswith(("retune.compiler.frontend", "onnx"))] == []


def test_a_region_without_a_graph_for_the_shapes_loads_the_front_end(tmp_path: Path) -> None:
    """A Fourier transform multiplies by a constant matrix, so symbolic graphs have a fixed number of samples."""
    fed, out = [tensor("x", ["steps", "b", 2])], [tensor("out", ["steps", "b", 2])]
    source = model([node("DFT", ["x"], ["out"], axis=0)], fed, out)
    x = floats(4, 2, 2)
    found, modules = run_afresh(vm.compile(source).export_library(tmp_path / "net.retune"), x)
    np.testing.assert_allclose(found, reference(source, {"x": x})[0], rtol=1e-4, atol=1e-4)
    assert "retune.compiler.frontend.region" in modules


def test_the_number_of_steps_of_a_recurrent_layer_is_symbolic(tmp_path: Path) -> None:
    weights = {"w": floats(2, 12, 2), "r": floats(2, 12, 3), "n": np.array([2, 3], np.int32)}
    fed, out = [tensor("x", ["steps", 2, 2])], [tensor("out", ["steps", 2, 2, 3])]
    layer = node("LSTM", ["x", "w", "r", "", "n"], ["out"], hidden_size=3, direction="bidirectional")
    source = model([layer], fed, out, weights)
    found, modules = run_afresh(vm.compile(source).export_library(tmp_path / "net.retune"), floats(4, 2, 2))
    np.testing.assert_allclose(found, reference(source, {"x": floats(4, 2, 2)})[0], rtol=1e-4, atol=1e-4)
    assert "retune.compiler.frontend.region" not in modules


def test_a_region_without_symbolic_dimensions_is_compiled_from_its_onnx_nodes() -> None:
    exe = vm.compile(two_products())
    (region,) = exe.program.regions()
    assert isinstance(region, SymbolicPlanRegion)
    assert isinstance(region.original, SymbolicRegion)
    main = exe.program.main
    (call,) = main.body
    assert isinstance(call, Call)
    main = replace(main, body=(replace(call, region=region.original.original),))
    changed = vm.Executable(replace(exe.program, functions={MAIN: main}), exe.library)
    loaded = vm.Executable.load_exec(*changed.save())
    assert [each.kind for each in loaded.program.regions()] == ["onnx"]
    expect(vm.VirtualMachine(loaded, cpu()), two_products(), 5)


def test_dynamic_shapes_are_computed_at_run_time() -> None:
    exe = vm.compile(two_products())
    assert "out = call main_0(x; constants w, v" in exe.bytecode
    assert [region.kind for region in exe.program.regions()] == ["symbolic plan"]


def test_parameters_that_are_fixed_are_constants_of_the_kernels() -> None:
    nodes = [node("MatMul", ["x", "w"], ["out"])]
    source = model(nodes, [tensor("x", ["n", 32]), tensor("w", [32, "m"])], [tensor("out", ["n", "m"])])
    exe = vm.compile(source, params={"w": WEIGHTS["w"]})
    assert exe.get_function_params("main") == ["x"]
    x = floats(4, 32)
    found = vm.VirtualMachine(exe, cpu()).run(x)
    np.testing.assert_allclose(found, x @ WEIGHTS["w"], rtol=1e-4, atol=1e-4)


def test_an_input_of_another_width_is_refused_before_anything_runs() -> None:
    machine = machine_of(two_products())
    with pytest.raises(ShapeMismatchError, match="x"):
        machine.run(floats(3, 31))
