"""Worker processes: answers, failures, time limits, replacement, and their end."""

import os
import pickle
import resource
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from retune.compiler.core.errors import MeasureError
from retune.compiler.measure.processes.worker_process import (
    WorkerLostError,
    WorkerProcess,
    WorkerStartError,
    WorkerTimeoutError,
)

HERE = __name__


def count_to(limit: int) -> Iterator[int]:
    """Stream 0 to limit."""
    yield from range(limit)


def count_then_crash(limit: int) -> Iterator[int]:
    """Stream 0 to limit, then end by a signal."""
    yield from range(limit)
    os.kill(os.getpid(), signal.SIGSEGV)


def count_then_hang(limit: int) -> Iterator[int]:
    """Stream 0 to limit, then never answer."""
    yield from range(limit)
    time.sleep(6000)


def fail(text: str) -> None:
    """Raise."""
    raise ValueError(text)


class UnpicklableError(Exception):
    """An exception that cannot travel."""

    def __init__(self) -> None:
        super().__init__("local", lambda: None)


def fail_unpicklable() -> None:
    """Raise what cannot be pickled."""
    raise UnpicklableError


def last_words() -> None:
    """Write to both outputs and go."""
    os.write(1, b"said on stdout\n")
    os.write(2, b"said on stderr\n")
    os._exit(7)


def sleeping_child() -> int:
    """Start a child that would outlive this process, and hang."""
    child = subprocess.Popen(["sleep", "6000"])
    Path(os.environ["CHILD_FILE"]).write_text(str(child.pid), encoding="ascii")
    time.sleep(6000)
    return child.pid


def has_setting(name: str) -> str | None:
    """An environment variable of the worker."""
    return os.environ.get(name)


def raise_in_start() -> None:
    """An initializer that fails."""
    raise RuntimeError("no such device")


def leave_in_start() -> None:
    """An initializer that ends the process."""
    os._exit(4)


def _alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _ends(pid: int) -> bool:
    """Whether a process ends; on a busy machine that takes seconds."""
    deadline = time.monotonic() + 120.0
    while _alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not _alive(pid)


def test_a_worker_that_crashes_leaves_no_image_of_its_memory() -> None:
    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (before[1], before[1]))
    try:
        with WorkerProcess() as worker:
            assert worker.call("resource:getrlimit", resource.RLIMIT_CORE) == (0, before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, before)


def test_calls_reach_one_and_the_same_other_process() -> None:
    with WorkerProcess() as worker:
        first = worker.call("os:getpid")
        assert first == worker.call("os:getpid") == worker.pid != os.getpid()
    assert _ends(first)


def test_a_stream_arrives_item_by_item() -> None:
    with WorkerProcess() as worker:
        stream = worker.stream(f"{HERE}:count_then_hang", 2, timeout_s=120)
        assert [next(stream), next(stream)] == [0, 1]  # although the function will not end
        stream.close()
        assert worker.pid is None
        assert list(worker.stream(f"{HERE}:count_to", 3, timeout_s=120)) == [0, 1, 2]


def test_an_exception_comes_back_with_its_traceback_and_the_worker_stays() -> None:
    with WorkerProcess() as worker:
        pid = worker.call("os:getpid")
        with pytest.raises(ValueError, match="tile of 7") as caught:
            worker.call(f"{HERE}:fail", "tile of 7")
        assert "in fail" in caught.value.__notes__[0]
        with pytest.raises(MeasureError, match="in fail_unpicklable"):
            worker.call(f"{HERE}:fail_unpicklable")
        with pytest.raises(ModuleNotFoundError):
            worker.call("no.such.module:function")
        assert worker.call("os:getpid") == pid


def test_a_hang_ends_at_the_limit_with_everything_it_started(tmp_path: Path) -> None:
    child_file = tmp_path / "child"
    with WorkerProcess(environment={"CHILD_FILE": str(child_file)}) as worker:
        pid = worker.call("os:getpid")
        with pytest.raises(WorkerTimeoutError, match=r"more than 1\.5 s"):
            worker.call(f"{HERE}:sleeping_child", timeout_s=1.5)
        assert _ends(pid)
        assert _ends(int(child_file.read_text(encoding="ascii")))
        assert worker.call("os:getpid") != pid


def test_a_crash_names_the_signal_and_the_place() -> None:
    with WorkerProcess() as worker:
        received: list[int] = []
        with pytest.raises(WorkerLostError, match="ended by SIGSEGV") as lost:
            received.extend(worker.stream(f"{HERE}:count_then_crash", 3))
        assert received == [0, 1, 2]
        assert "count_then_crash" in lost.value.stderr
        assert not lost.value.from_outside
        assert worker.call("math:sqrt", 9.0) == 3.0


def test_an_exit_is_reported_with_the_last_output_of_that_call_only() -> None:
    with WorkerProcess() as worker:
        worker.call("os:write", 2, b"earlier\n")
        with pytest.raises(WorkerLostError, match="exited with code 7") as lost:
            worker.call(f"{HERE}:last_words")
        assert lost.value.stderr == "said on stdout\nsaid on stderr"
        copy = pickle.loads(pickle.dumps(lost.value))
        assert (str(copy), copy.code, copy.stderr) == (str(lost.value), 7, lost.value.stderr)


def test_external_kill_is_distinguished_from_a_crash() -> None:
    with WorkerProcess() as worker:
        with pytest.raises(WorkerLostError, match="SIGKILL") as lost:
            worker.call("os:kill", worker.call("os:getpid"), signal.SIGKILL)
        assert lost.value.from_outside


def test_a_worker_that_died_between_calls_is_replaced_silently() -> None:
    with WorkerProcess() as worker:
        pid = worker.call("os:getpid")
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # until its last thread is gone; it stays there to be reaped
        assert worker.call("os:getpid") != pid


def test_a_worker_is_replaced_after_its_uses_but_only_between_pieces_of_work() -> None:
    with WorkerProcess(maximum_uses=3) as worker:
        pids = []
        for _ in range(3):
            worker.renew()
            pids.append([worker.call("os:getpid") for _ in range(2)])
    assert all(first == second for first, second in pids)
    assert pids[0] == pids[1] != pids[2]


def test_initializer_and_environment_apply_to_every_process() -> None:
    with WorkerProcess(initializer="os:chdir", initargs=("/",), environment={"RETUNE_TEST": "yes"}) as worker:
        for _ in range(2):
            assert worker.call("os:getcwd") == "/"
            assert worker.call(f"{HERE}:has_setting", "RETUNE_TEST") == "yes"
            worker.kill()
    assert "RETUNE_TEST" not in os.environ


@pytest.mark.parametrize(("function", "text"), [("raise_in_start", "no such device"), ("leave_in_start", "code 4")])
def test_a_worker_that_cannot_start_is_an_infrastructure_error(function: str, text: str) -> None:
    with (
        WorkerProcess(initializer=f"{HERE}:{function}") as worker,
        pytest.raises(WorkerStartError, match=text) as caught,
    ):
        worker.call("os:getpid")
    assert isinstance(caught.value, MeasureError)
    assert caught.value.from_outside


def test_a_missing_interpreter_is_an_infrastructure_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with WorkerProcess() as worker, pytest.raises(WorkerStartError, match="cannot start"):
        worker.call("os:getpid")


@pytest.mark.parametrize("busy", [False, True])
def test_no_worker_outlives_a_killed_parent(tmp_path: Path, busy: bool) -> None:
    pid_file = tmp_path / "pid"
    script = textwrap.dedent(f"""
        import pathlib, threading, time
        from retune.compiler.measure.processes.worker_process import WorkerProcess
        worker = WorkerProcess()
        started = threading.Thread(target=lambda: worker.call("os:getpid"))
        started.start(); started.join()  # the worker must also survive the thread that started it
        time.sleep(0.7)
        pid = worker.call("os:getpid")
        pathlib.Path({str(pid_file)!r}).write_text(str(pid))
        worker.call("time:sleep", {6000 if busy else 0})
        time.sleep(6000)
    """)
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=Path(__file__).parents[4])
    try:
        deadline = time.monotonic() + 120
        while not (pid_file.exists() and pid_file.read_text(encoding="ascii")) and time.monotonic() < deadline:
            time.sleep(0.02)
        worker = int(pid_file.read_text(encoding="ascii"))
        assert _alive(worker)
    finally:
        parent.kill()
        parent.wait()
    assert _ends(worker)


def test_unreferenced_worker_process_ends() -> None:
    worker = WorkerProcess()
    pid = worker.call("os:getpid")
    del worker
    assert _ends(pid)


@pytest.mark.parametrize("in_a_call", [False, True])
def test_a_group_is_killed_before_the_id_of_its_worker_is_free(
    in_a_call: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[int] = []
    killpg = os.killpg

    def checked(pid: int, number: int) -> None:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # an error once it is reaped
        killed.append(pid)
        killpg(pid, number)

    monkeypatch.setattr(os, "killpg", checked)
    with WorkerProcess() as worker:
        first = worker.call("os:getpid")
        if not in_a_call:
            os.kill(first, signal.SIGKILL)
            os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
            assert worker.call("os:getpid") != first
        else:
            with pytest.raises(WorkerLostError, match="exited with code 3"):
                worker.call("os:_exit", 3)
        assert killed == [first]


def test_an_interrupt_ends_a_pool_at_once(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = textwrap.dedent(f"""
        import os, pathlib, signal, threading
        from retune.compiler.measure.processes.worker_pool import WorkerPool
        from retune.compiler.measure.processes.worker_process import WorkerProcess

        def work(worker, item):
            pathlib.Path({str(pid_file)!r} + str(item)).write_text(str(worker.call("os:getpid")))
            if item == 1:
                os.kill(os.getpid(), signal.SIGINT)
            worker.call("time:sleep", 6000)

        WorkerPool([WorkerProcess(), WorkerProcess()]).map(work, range(8))
    """)
    parent = subprocess.run(
        [sys.executable, "-c", script], cwd=Path(__file__).parents[4], capture_output=True, timeout=300, check=False
    )
    assert parent.returncode == -signal.SIGINT
    assert b"KeyboardInterrupt" in parent.stderr
    started = [int(path.read_text(encoding="ascii")) for path in tmp_path.iterdir()]
    assert 1 <= len(started) <= 3
    assert all(_ends(pid) for pid in started)


def test_a_stopped_worker_that_takes_no_message_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retune.compiler.measure.processes.worker_process._SEND_SECONDS", 1)
    with WorkerProcess() as worker:
        pid = worker.call("os:getpid")
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(WorkerTimeoutError, match="took no message"):
            worker.call("builtins:len", bytes(64 << 20))
        assert _ends(pid)
        assert worker.call("builtins:len", bytes(4 << 20)) == 4 << 20


def test_a_lost_worker_is_noticed_where_sigchld_is_ignored() -> None:
    """A process inherits that through `exec`, and then the kernel reaps its children."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with WorkerProcess() as worker:
            with pytest.raises(WorkerLostError):
                worker.call("os:_exit", 3, timeout_s=120)
            assert worker.call("os:getpid", timeout_s=120)
    finally:
        signal.signal(signal.SIGCHLD, before)
