"""Programs that are built and timed by way of a fleet come to the same as on this machine."""

import hashlib
import math
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from retune.compiler.cost_model.random import RandomModel
from retune.compiler.driver.bench import Bench, DeviceFacts
from retune.compiler.driver.build import build_kernel
from retune.compiler.driver.winners import choose_best
from retune.compiler.errors import MeasureError
from retune.compiler.measure.fleet import (
    BUILD,
    DESCRIBE_VERB,
    FleetBuilder,
    FleetMeasurer,
    FleetRunner,
    answered,
    asked,
    device_queue,
)
from retune.compiler.measure.options import MeasureOptions
from retune.compiler.measure.record import BestProgram, MeasureStatus
from retune.compiler.measure.task_inputs import register_task_input_buffer, special_inputs
from retune.compiler.measure.wire import from_bytes, to_bytes
from retune.compiler.schedule.default import default_steps
from retune.compiler.schedule.steps import Step, dump_steps
from retune.compiler.schedule.steps.loops import Split
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.policy import SketchPolicy
from retune.compiler.target import HardwareParams, Target
from tests.unit.search.workloads import matmul

OPTIONS = MeasureOptions(repeat=2, min_repeat_ms=0.2)
TASK = SearchTask("matmul", matmul(32, 48, 16), Target.host(), HardwareParams(num_cores=1))


class Direct:
    """A courier who does every errand himself when asked for the answer, the last one first; and its own objects."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.kept: dict[str, bytes] = {}
        self.sent: list[tuple[str, str]] = []
        self.waiting: dict[str, tuple[str, bytes]] = {}
        self.most = 0

    @property
    def objects(self) -> "Direct":
        return self

    def put(self, data: bytes) -> str:
        name = hashlib.sha256(data).hexdigest()
        self.kept[name] = data
        return name

    def get(self, name: str) -> bytes:
        return self.kept[name]

    def send(self, queue: str, verb: str, message: bytes) -> str:
        ticket = str(len(self.sent))
        self.sent.append((queue, verb))
        self.waiting[ticket] = verb, message
        self.most = max(self.most, len(self.waiting))
        return ticket

    def next(self, tickets: Sequence[str]) -> tuple[str, bytes]:
        verb, message = self.waiting.pop(tickets[-1])
        return tickets[-1], self.bench.answer(verb, message, self)

    def cancel(self, tickets: Sequence[str]) -> None:
        for ticket in tickets:
            self.waiting.pop(ticket, None)

    def close(self) -> None:
        self.waiting.clear()


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with Bench(parallel=2) as bench:
        yield bench


def candidates(count: int) -> list[tuple[Step, ...]]:
    asked_for = SketchPolicy(TASK, RandomModel()).ask(count, 0)
    return [candidate.steps for candidate in asked_for]


def test_a_round_comes_back_in_order_with_failures_as_values(bench: Bench) -> None:
    courier = Direct(bench)
    measurer = FleetMeasurer(FleetBuilder(courier, at_once=3), FleetRunner(courier, "cpu", OPTIONS, at_once=2))
    nonsense = (Split(99, 0, 4, (2,), True),)
    programs = [*candidates(4), nonsense, tuple(default_steps(TASK.dag))]
    found = measurer.measure(TASK, programs)
    assert [one.status for one in found] == [*[MeasureStatus.OK] * 4, MeasureStatus.INSTANTIATION, MeasureStatus.OK]
    assert all(0 < min(one.costs) < 0.1 for one in found if one.costs)
    assert all(one.build_seconds > 0 for one in found)
    assert {queue for queue, _ in courier.sent} == {BUILD, device_queue("cpu")}
    assert [queue for queue, _ in courier.sent].count(BUILD) == 2
    assert not courier.waiting


def test_a_program_out_of_reach_of_the_best_is_looked_at_only(bench: Bench) -> None:
    courier = Direct(bench)
    measurer = FleetMeasurer(FleetBuilder(courier), FleetRunner(courier, "cpu", OPTIONS))
    (found,) = measurer.measure(TASK, [tuple(default_steps(TASK.dag))], 1e-9)
    assert found.censored


def test_object_code_is_that_of_this_machine(bench: Bench) -> None:
    (steps,) = candidates(1)
    (built,) = FleetBuilder(Direct(bench)).build(TASK, [steps])
    assert built.artifact == build_kernel(TASK, steps, TASK.name)


def test_a_winner_is_chosen_on_the_device(bench: Bench) -> None:
    courier = Direct(bench)
    guesses = [BestProgram(TASK.workload_key, dump_steps(steps)) for steps in candidates(3)]
    winner = choose_best(TASK, guesses, FleetBuilder(courier), FleetRunner(courier, "cpu", OPTIONS))
    assert math.isfinite(winner.seconds)
    assert winner.seconds <= winner.default_seconds
    assert not winner.rejected


def test_no_more_chunks_are_on_their_way_than_allowed(bench: Bench) -> None:
    courier = Direct(bench)
    builds = FleetBuilder(courier).build(TASK, candidates(5))
    courier.most = 0
    found = FleetRunner(courier, "cpu", OPTIONS, at_once=1, in_flight=2).run(TASK, builds)
    assert len(found) == 5
    assert courier.most == 2


def test_a_device_says_what_it_is(bench: Bench) -> None:
    facts = DeviceFacts(**asked(Direct(bench), device_queue("cpu"), DESCRIBE_VERB, {}))
    assert facts == DeviceFacts.of_this_machine()
    explicit = SearchTask(TASK.name, TASK.dag, Target(facts.target), TASK.hardware)
    steps = tuple(default_steps(TASK.dag))
    here, there = (build_kernel(task, steps, "k") for task in (TASK, explicit))
    assert there.object_code == here.object_code


@pytest.mark.parametrize(
    ("verb", "message", "said"),
    [
        ("erase", b"", "was asked to 'erase'; it knows build"),
        ("build", b"no message", "cannot be read"),
        ("build", to_bytes({"task": "unknown"}), "build failed: KeyError"),
        ("time", to_bytes({"task": "t"}), "time failed: KeyError"),
    ],
)
def test_what_makes_no_sense_is_answered_in_words(bench: Bench, verb: str, message: bytes, said: str) -> None:
    with pytest.raises(MeasureError, match=said):
        answered(bench.answer(verb, message, Direct(bench)))


def test_special_inputs_travel(bench: Bench) -> None:
    task = SearchTask("special", matmul(8, 8, 4), Target.host(), HardwareParams(num_cores=1))
    register_task_input_buffer(task.workload_key, "A", np.zeros((8, 4), np.float32), overwrite=True)
    assert list(special_inputs(task)) == [0]
    courier = Direct(bench)
    (built,) = FleetBuilder(courier).build(task, [tuple(default_steps(task.dag))])
    runner = FleetRunner(courier, "cpu", OPTIONS)
    ticket = runner.send(task, [courier.put(to_bytes(built.artifact))])
    np.testing.assert_array_equal(from_bytes(courier.waiting[ticket][1])["inputs"]["A"], np.zeros((8, 4)))
    (time,) = runner.received(courier.next([ticket])[1]) or []
    assert time.status is MeasureStatus.OK
