"""The meter beside a process that is bound to the same CPU and never pauses."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from retune.compiler.measure.processes.worker_process import WorkerProcess
from retune.compiler.runtime.threads import contention
from retune.compiler.runtime.threads.affinity import bind_process
from retune.compiler.runtime.threads.contention import ContentionMeter

_SPIN = "import os; os.sched_setaffinity(0, {%d}); print('spins', flush=True)\nwhile True: pass"


def spin(cpu: int, threads: int) -> float | None:
    """Compute for a fifth of a second on one CPU; with two threads, both of them there."""
    bind_process((cpu,))
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
def busy_cpu() -> Iterator[int]:
    cpu = min(os.sched_getaffinity(0))
    with subprocess.Popen([sys.executable, "-c", _SPIN % cpu], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "spins\n"
        yield cpu
        process.kill()


@pytest.mark.parametrize("threads", [1, 2])
def test_what_another_process_takes_is_seen(busy_cpu: int, threads: int) -> None:
    with WorkerProcess() as worker:
        share = worker.call(f"{__name__}:spin", busy_cpu, threads, timeout_s=60)
    assert 0.05 < share <= 1.0  # half, but for what a busy machine does to 200 ms


@pytest.mark.parametrize(("waited", "share"), [((0, 0), 0.0), ((10, 20), 0.3), ((90, 20), 1.0)])
def test_of_several_threads_only_waiting_for_a_cpu_counts(
    waited: tuple[int, int], share: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not what they ran, nor what they slept: they wait for each other."""
    accounts = [tmp_path / str(task) / "schedstat" for task in (1, 2)]
    for account in accounts:
        account.parent.mkdir()
        account.write_text("1000 500 7\n")
    monkeypatch.setattr(contention, "_TASKS", tmp_path)
    with ContentionMeter(2) as meter:
        meter.start()
        for account, each in zip(accounts, waited, strict=True):
            account.write_text(f"1040 {500 + each} 9\n")
        assert meter.share(100) == pytest.approx(share)


def test_a_kernel_without_accounts_gives_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contention, "_TASKS", contention._TASKS / "nowhere")
    with ContentionMeter(2) as meter:
        meter.start()
        assert meter.share(1000) is None
