"""A worker of a fleet ends when it is told to, with the exit code that shells give to the signal; one of a GPU keeps to
that GPU.
"""

import os
import signal
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from retune.compiler.driver.bench import Bench
from retune.compiler.measure.cuda_runner import gpu_of_key
from retune.compiler.measure.fleet import Objects, device_queue, queues_of
from retune.flows import exits, worker
from retune.flows.worker import WorkerJob
from retune.storage.errands import ErrandStore
from retune.storage.files import new_id
from retune.tasks.agent import Agent
from retune.tasks.lanes import device_lane, lane_name, lane_of


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_exit_code_is_that_of_the_signal(
    signum: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "LOOK_SECONDS", 0.01)
    with Agent(ErrandStore(tmp_path), ("build",), 1) as agent:
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signum))
        timer.start()
        assert worker._serve(agent, ("build",), woken=False) == code
        timer.join()
    assert exits.stopped_by(signum) == code


class GpuBench(Bench):
    """Answers with the number of its GPU; what is asked to `meet` waits for the other one."""

    def __init__(self, gpu: int, meeting: threading.Barrier) -> None:
        super().__init__(gpu=gpu)
        self.number = gpu
        self.meeting = meeting

    def answer(self, verb: str, message: bytes, objects: Objects) -> bytes:
        """Which GPU this is."""
        del message, objects
        if verb == "meet":
            self.meeting.wait(120)
        return str(self.number).encode()


def gpu_worker(place: Path, key: str, meeting: threading.Barrier) -> Agent:
    """The agent of `retune worker --device KEY`."""
    job = WorkerJob("folder", str(place), build=False, device=key)
    gpu = gpu_of_key(key)
    assert gpu is not None
    bench = GpuBench(gpu, meeting)
    return Agent(ErrandStore(place), job.queues, lane=partial(device_lane, lane_of(key)), bench=bench)


def test_workers_of_two_gpus_share_errands_and_keep_to_their_own(tmp_path: Path) -> None:
    meeting = threading.Barrier(2)
    store = ErrandStore(tmp_path)
    shared = [store.offer(device_queue("cuda"), "meet", new_id(), b"") for _ in range(2)]
    own = [(number, store.offer(device_queue(f"cuda:{number}"), "time", new_id(), b"")) for number in (0, 1, 1, 0)]
    with gpu_worker(tmp_path, "cuda", meeting) as first, gpu_worker(tmp_path, "cuda:1", meeting) as second:
        threads = [threading.Thread(target=agent.drain) for agent in (first, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    assert {store.take(device_queue("cuda"), ticket) for ticket in shared} == {b"0", b"1"}
    for number, ticket in own:
        assert store.take(device_queue(f"cuda:{number}"), ticket) == str(number).encode()


def test_the_agent_of_a_gpu_has_that_gpu_whichever_queue_it_serves(tmp_path: Path) -> None:
    for key, number in {"cuda": 0, "cuda:0": 0, "cuda:1": 1, "epyc": None}.items():
        with Agent(ErrandStore(tmp_path), queues_of(key)) as agent:
            assert agent._bench._gpu == number
    assert lane_name(lane_of("cuda")) == lane_name("cuda:0") != lane_name(lane_of("cuda:1"))
    assert lane_name(lane_of("epyc")) == lane_name()
