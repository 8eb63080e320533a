"""Programs that are built and timed by way of a fleet come to the same as on this machine."""

import math
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retune.compiler.core import config
from retune.compiler.core.errors import MeasureError
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.driver.build import build_kernel
from retune.compiler.measure.options import MeasureOptions
from retune.compiler.measure.processes.device_lock import device_lock, lock_name
from retune.compiler.measure.record import MeasureStatus, TaskProgram
from retune.compiler.measure.remote.fleet import (
    BUILD,
    BuildRequest,
    DescribeRequest,
    FleetBuilder,
    FleetRunner,
    Request,
    TimeRequest,
    device_queue,
    queues_of,
)
from retune.compiler.measure.remote.wire import from_bytes, to_bytes
from retune.compiler.measure.task_inputs import register_task_input_buffer, revision, special_inputs
from retune.compiler.model.base import RandomModel
from retune.compiler.schedule.default.cpu import default_steps
from retune.compiler.schedule.steps import Step, dump_steps, load_steps
from retune.compiler.schedule.steps.loops import Split
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.policy import SketchPolicy
from retune.compiler.tune.winners import choose_best
from retune.compiler.tune.worker_service import THIS_PROCESS, DeviceFacts, WorkerService, serve
from tests.support.workloads import matmul

OPTIONS = MeasureOptions(repeat=2, min_repeat_ms=0.2)
TASK = SearchTask("matmul", matmul(32, 48, 16), Target.host(), HardwareParams(num_cores=1))


class Direct:
    """An engine that sends messages to a service when it is asked for the answer."""

    def __init__(self, service: WorkerService) -> None:
        self.service = service
        self.sent: list[tuple[str, Request]] = []
        self.in_flight = self.most = 0

    def submit(self, queue: str, request: Request, name: str = "") -> "Sent":
        del name
        self.sent.append((queue, request))
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        return Sent(self, to_bytes(request))


class Sent:
    """A request of `Direct`."""

    def __init__(self, engine: Direct, message: bytes) -> None:
        self.engine, self.message = engine, message

    def result(self) -> Any:
        self.engine.in_flight -= 1
        return from_bytes(to_bytes(self.engine.service.do(from_bytes(self.message))))

    def cancel(self) -> None:
        pass


@pytest.fixture(scope="module")
def service() -> Iterator[WorkerService]:
    with WorkerService(parallel=2) as service:
        yield service


def candidates(count: int) -> list[tuple[Step, ...]]:
    asked_for = SketchPolicy(TASK, RandomModel()).ask(count, 0)
    return [load_steps(candidate.steps) for candidate in asked_for]


def test_failed_programs_keep_their_places_among_the_others(service: WorkerService) -> None:
    engine = Direct(service)
    nonsense = (Split(99, 0, 4, (2,), True),)
    programs = [*candidates(4), nonsense, tuple(default_steps(TASK.dag))]
    builds = FleetBuilder(engine, OPTIONS, at_once=3).build(TASK, programs)
    found = FleetRunner(engine, "cpu", OPTIONS, at_once=2).run(TASK, builds)
    assert [one.status for one in found] == [*[MeasureStatus.OK] * 4, MeasureStatus.INSTANTIATION, MeasureStatus.OK]
    assert all(0 < min(one.costs) < 0.1 for one in found if one.costs)
    assert all(build.seconds > 0 for build in builds)
    assert [queue for queue, _ in engine.sent] == [BUILD] * 2 + [device_queue("cpu")] * 3


def test_clearly_slower_program_gets_one_probe(service: WorkerService) -> None:
    engine = Direct(service)
    builds = FleetBuilder(engine, OPTIONS).build(TASK, [tuple(default_steps(TASK.dag))])
    (found,) = FleetRunner(engine, "cpu", OPTIONS).run(TASK, builds, 1e-9)
    assert found.censored


def test_the_best_of_a_chunk_counts_for_the_next_of_its_round_only(service: WorkerService) -> None:
    builds = service.do(BuildRequest(TASK, [tuple(default_steps(TASK.dag))], OPTIONS))

    def timed(name: str, best: float) -> bool:
        (found,) = service.do(TimeRequest.of(TASK, builds, OPTIONS, best=best, round=name))
        return bool(found.censored)

    assert timed("first", 1e-9)
    assert timed("first", math.inf)
    assert not timed("second", math.inf)


def test_object_code_is_that_of_this_machine(service: WorkerService) -> None:
    (steps,) = candidates(1)
    (built,) = FleetBuilder(Direct(service), OPTIONS).build(TASK, [steps])
    assert built.artifact == build_kernel(TASK, steps, TASK.name)


def test_a_winner_is_chosen_on_the_device(service: WorkerService) -> None:
    engine = Direct(service)
    guesses = [TaskProgram(TASK.workload_key, dump_steps(steps)) for steps in candidates(3)]
    winner = choose_best(TASK, guesses, FleetBuilder(engine, OPTIONS), FleetRunner(engine, "cpu", OPTIONS))
    assert math.isfinite(winner.seconds)
    assert winner.seconds <= winner.default_seconds
    assert not winner.rejected


def test_no_more_chunks_are_on_their_way_than_allowed(service: WorkerService) -> None:
    engine = Direct(service)
    builds = FleetBuilder(engine, OPTIONS).build(TASK, candidates(5))
    engine.most = 0
    found = FleetRunner(engine, "cpu", OPTIONS, at_once=1, in_flight=2).run(TASK, builds)
    assert len(found) == 5
    assert engine.most == 2


def test_a_device_says_what_it_is(service: WorkerService) -> None:
    facts = DeviceFacts.of_device(Direct(service), "cpu")
    assert facts == DeviceFacts.of_this_machine()
    explicit = SearchTask(TASK.name, TASK.dag, Target(facts.target), TASK.hardware)
    steps = tuple(default_steps(TASK.dag))
    here, there = (build_kernel(task, steps, "k") for task in (TASK, explicit))
    assert there.object_code == here.object_code


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (b"no message", "cannot be read"),
        (to_bytes({"task": "unknown"}), "which is no request"),
    ],
)
def test_a_message_that_makes_no_sense_is_an_error_with_the_name_of_the_machine(message: bytes, said: str) -> None:
    try:
        with pytest.raises(MeasureError, match=f"{config.host_name()}: .*({said})"):
            serve("device-cpu", message)
    finally:
        THIS_PROCESS.close()


def test_two_workers_of_a_machine_do_not_time_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with WorkerService(is_shared=True) as service, ThreadPoolExecutor(1) as threads:
        with device_lock():
            waiting = threads.submit(service.do, DescribeRequest())
            with pytest.raises(TimeoutError):
                waiting.result(0.2)
        assert waiting.result(120)["cores"] == config.usable_cores()


def test_a_process_serves_the_gpu_of_the_queue_and_builds_with_the_same_service() -> None:
    try:
        for key, number in {"cuda": 0, "cuda:0": 0, "cuda:1": 1, "epyc": None}.items():
            service = THIS_PROCESS.service(queues_of(key)[0])
            assert service.gpu == number
            assert THIS_PROCESS.service(BUILD) is service
            assert service.gpu == number
    finally:
        THIS_PROCESS.close()
    assert lock_name("cuda") == lock_name("cuda:0") != lock_name("cuda:1")
    assert lock_name("epyc") == lock_name()


def test_special_inputs_travel(service: WorkerService) -> None:
    task = SearchTask("special", matmul(8, 8, 4), Target.host(), HardwareParams(num_cores=1))
    register_task_input_buffer(task.workload_key, "A", np.zeros((8, 4), np.float32), overwrite=True)
    assert list(special_inputs(task)) == [0]
    builds = FleetBuilder(Direct(service), OPTIONS).build(task, [tuple(default_steps(task.dag))])
    request = from_bytes(to_bytes(TimeRequest.of(task, builds, OPTIONS)))
    np.testing.assert_array_equal(request.inputs["A"], np.zeros((8, 4)))
    before = revision(task.workload_key)
    (time,) = service.do(request)
    assert time.status is MeasureStatus.OK
    assert revision(task.workload_key) == before, "the arrays are those that are registered here"
