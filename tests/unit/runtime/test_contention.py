"""The meter beside a process that is bound to the same processor and never pauses."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from compiler.measure.worker_process import WorkerProcess
from compiler.runtime import contention
from compiler.runtime.affinity import bind_process
from compiler.runtime.contention import ContentionMeter

_SPIN = "import os; os.sched_setaffinity(0, {%d})\nwhile True: pass"


def spin(processor: int, threads: int) -> float | None:
    """Compute for a fifth of a second on one processor; with two threads, both of them there."""
    bind_process((processor,))
    other = threading.Thread(target=_until, args=(time.perf_counter_ns() + 300_000_000,))
    if threads > 1:
        other.start()
    with ContentionMeter(threads) as meter:
        begun = time.perf_counter_ns()
        meter.start()
        _until(begun + 200_000_000)
        return meter.share(time.perf_counter_ns() - begun)


def _until(moment: int) -> None:
    while time.perf_counter_ns() < moment:
        pass


@pytest.fixture
def busy_processor() -> Iterator[int]:
    processor = min(os.sched_getaffinity(0))
    process = subprocess.Popen([sys.executable, "-c", _SPIN % processor])
    yield processor
    process.kill()
    process.wait()


@pytest.mark.parametrize("threads", [1, 2])
def test_what_another_process_takes_is_seen(busy_processor: int, threads: int) -> None:
    with WorkerProcess() as worker:
        time.sleep(0.3)  # until the other process spins
        share = worker.call(f"{__name__}:spin", busy_processor, threads, timeout_s=60)
    assert 0.2 < share <= 1.0


def test_sleeping_is_no_contention_for_threads_that_wait_for_each_other() -> None:
    with ContentionMeter(2) as meter:
        begun = time.perf_counter_ns()
        meter.start()
        time.sleep(0.05)
        share = meter.share(time.perf_counter_ns() - begun)
    assert share is not None
    assert share < 0.9


def test_a_kernel_without_accounts_gives_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contention, "_TASKS", contention._TASKS / "nowhere")
    with ContentionMeter(2) as meter:
        meter.start()
        assert meter.share(1000) is None
