"""One executor, or one virtual machine, in several threads."""

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Lock, Thread
from typing import Any

import numpy as np
import pytest

from retune.compiler.core.errors import ArtifactError, OptionError
from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.loader import load_kernels
from retune.compiler.tvm.graph_executor import GraphModule, Library, cpu, empty
from tests.support.doubling_network import SHAPE, doubling_network

_RUNS = 200


def _module() -> GraphModule:
    return GraphModule(Library(doubling_network())["default"](cpu()))


def _filled(value: float) -> Array:
    return np.full(SHAPE, value, "float32")


def _elsewhere(work: Callable[[], object]) -> Any:
    """What a function returns in another thread, which is gone then."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def test_outputs_of_another_threads_run_are_refused() -> None:
    module = _module()
    module.run(x=_filled(1))
    _elsewhere(lambda: module.run(x=_filled(2)))
    with pytest.raises(OptionError, match=r"another thread has run this network since this one did: .*for each thread"):
        module.get_output(0)
    module.run(x=_filled(3))
    assert np.all(module.get_output(0) == 24)


def test_a_run_on_inputs_that_another_thread_replaced_is_refused() -> None:
    module = _module()
    module.set_input("x", _filled(1))
    _elsewhere(lambda: module.set_input("x", _filled(2)))
    with pytest.raises(OptionError, match=r"x was set by another thread since this one set it: .*for each thread"):
        module.run()
    module.run(x=_filled(3))
    assert np.all(module.get_output(0) == 24)


def test_a_run_into_an_array_that_another_thread_replaced_is_refused() -> None:
    module = _module()
    mine, theirs = empty(SHAPE, "float32"), empty(SHAPE, "float32")
    module.set_output_zero_copy(0, mine)
    _elsewhere(lambda: module.set_output_zero_copy(0, theirs))
    with pytest.raises(OptionError, match="out was set by another thread"):
        module.run(x=_filled(1))


def test_computations_in_order_may_change_threads_at_any_call() -> None:
    """As with an asyncio.Lock around calls that a pool of threads makes."""
    module, order = _module(), [0, 1, 2, 2, 1, 0, 0, 2, 1]
    pools = [ThreadPoolExecutor(1) for _ in range(3)]
    module.run(x=_filled(9))  # a warm-up, whose output nobody reads
    for number in range(27):
        setter, runner, reader = (pools[order[(number * step) % 9]] for step in (1, 2, 4))
        setter.submit(module.set_input, "x", _filled(number)).result()
        runner.submit(module.run).result()
        assert np.all(reader.submit(module.get_output, 0).result() == 8 * number)
    for pool in pools:
        pool.shutdown()


def test_warm_up_with_unread_output_disturbs_no_other_thread() -> None:
    module = _module()
    module.run(x=_filled(1))
    module.set_input("x", _filled(2))
    _elsewhere(module.run)
    assert np.all(module.get_output(0) == 16)


def test_one_thread_sets_another_runs_a_third_reads() -> None:
    module = _module()
    module.set_input("x", _filled(1))
    _elsewhere(module.run)
    assert np.all(_elsewhere(lambda: module.get_output(0)) == 8)
    assert np.all(module.get_output(0) == 8)


@pytest.mark.parametrize("locked", [False, True])
def test_threads_that_share_an_executor_get_right_results_or_an_error(locked: bool) -> None:
    module, lock, start = _module(), Lock(), Barrier(2)
    wrong: list[float] = []
    refused: list[OptionError] = []

    def work(value: float) -> None:
        start.wait(120)
        for _ in range(_RUNS):
            if locked:
                lock.acquire()
            try:
                module.run(x=_filled(value))
                found = module.get_output(0)
                if not np.all(found == 8 * value):
                    wrong.append(value)
            except OptionError as error:
                refused.append(error)
            finally:
                if locked:
                    lock.release()

    threads = [Thread(target=work, args=(value,)) for value in (1.0, 2.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert not wrong
    assert not (locked and refused)


_FORK = """
import os, signal, threading
import numpy as np
from retune.compiler.tvm.graph_executor import Library, cpu
from tests.support.doubling_network import SHAPE, doubling_network

executor = Library(doubling_network())["default"](cpu())
held, forked = threading.Event(), threading.Event()

def hold():
    with executor.lock:
        held.set()
        forked.wait(120)

thread = threading.Thread(target=hold)
thread.start()
held.wait(120)
child = os.fork()
if not child:
    signal.alarm(30)  # ends a child that waits for a thread of the parent
    executor.run(x=np.ones(SHAPE, "float32"))
    os._exit(0 if np.all(executor.get_output(0) == 8) else 1)
forked.set()
thread.join()
assert os.waitpid(child, 0)[1] == 0
"""


def test_a_child_forked_while_a_thread_runs_the_network_can_run_it() -> None:
    done = subprocess.run([sys.executable, "-c", _FORK], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("made", [_module, lambda: _module().module])
def test_an_executor_is_not_copied_or_pickled(made: Callable[[], object]) -> None:
    for work in (copy.deepcopy, pickle.dumps):
        with pytest.raises(ArtifactError, match="an executor cannot be copied or pickled: make another one"):
            work(made())


def test_a_loaded_kernel_is_not_copied_or_pickled() -> None:
    kernels = load_kernels(doubling_network().kernels)
    for work in (copy.deepcopy, pickle.dumps):
        with pytest.raises(ArtifactError, match="kernel twofold is loaded code, which cannot be copied or pickled"):
            work(kernels)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda library: pickle.loads(pickle.dumps(library))])
def test_a_library_is_copied_with_its_code(again: Callable[[Library], Library]) -> None:
    library = again(Library(doubling_network()))
    module = GraphModule(library["default"](cpu()))
    module.run(x=_filled(1))
    assert np.all(module.get_output(0) == 8)
    assert again(library.remove_params()).get_graph_params() == {}


def test_a_library_without_object_code_is_not_copied(tmp_path: Path) -> None:
    library = Library.load(Library(doubling_network()).export_library(tmp_path / "doubling.so"))
    with pytest.raises(ArtifactError, match="loaded from a shared one cannot be copied or pickled"):
        copy.deepcopy(library)
