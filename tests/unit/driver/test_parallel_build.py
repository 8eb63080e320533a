"""The kernels of a network, built in several processes."""

import pytest

from retune.compiler.codegen.backend import default_steps_of
from retune.compiler.core.errors import ScheduleError
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.driver import parallel_build
from retune.compiler.driver.compile_network import ChosenProgram, build_in_process
from retune.compiler.driver.parallel_build import build_in_parallel
from retune.compiler.frontend.importer import load_model
from retune.compiler.frontend.zoo import build
from retune.compiler.graph.partition.partition import partition
from retune.compiler.graph.pipeline import optimize
from retune.compiler.ir import trace
from retune.compiler.measure.processes.worker_process import WorkerProcess, WorkerStartError
from retune.compiler.schedule.steps import Fuse


def programs() -> list[ChosenProgram]:
    graph = optimize(load_model(build("mlp", widths=(24, 32, 40, 48), batch=4)))
    tasks = partition(graph, Target.host(), HardwareParams(num_cores=1)).tasks
    return [ChosenProgram(task, default_steps_of(task)) for task in tasks]


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> list[ChosenProgram]:
    """Few programs, of which each counts as enough for a process, on two CPUs."""
    monkeypatch.setattr(parallel_build, "_KERNELS_EACH", 1)
    monkeypatch.setattr(parallel_build, "usable_cpus", lambda: (0, 1))
    return programs()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What processes are asked to build."""
    found: list[object] = []
    real = WorkerProcess.call

    def call(worker: WorkerProcess, function: str, *args: object, timeout_s: float | None = None) -> object:
        found.append(args)
        return real(worker, function, *args, timeout_s=timeout_s)

    monkeypatch.setattr(WorkerProcess, "call", call)
    return found


def test_kernels_are_those_of_one_process_in_order(many: list[ChosenProgram], calls: list[object]) -> None:
    assert build_in_parallel(many) == build_in_process(many)
    assert len(calls) == len(many)


def test_few_kernels_are_built_in_this_process(calls: list[object]) -> None:
    few = programs()
    assert build_in_parallel(few) == build_in_process(few)
    assert not calls


def test_stages_are_observed_in_this_process(many: list[ChosenProgram], calls: list[object]) -> None:
    seen: list[str] = []
    with trace.observe_stages(lambda name, *_: seen.append(name)):
        build_in_parallel(many)
    assert {program.task.name for program in many} <= set(seen)
    assert not calls


def test_a_program_that_cannot_be_built_costs_no_other(many: list[ChosenProgram]) -> None:
    wrong = ChosenProgram(many[1].task, (Fuse(99, (0, 1)),))
    first, failed, *others = build_in_parallel([many[0], wrong, *many[2:]])
    assert isinstance(failed, ScheduleError)
    assert [first, *others] == build_in_process([many[0], *many[2:]])


def test_kernels_are_built_here_where_no_process_starts(
    many: list[ChosenProgram], monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(*_: object, **__: object) -> object:
        raise WorkerStartError("processes are forbidden")

    monkeypatch.setattr(WorkerProcess, "call", call)
    assert build_in_parallel(many) == build_in_process(many)
