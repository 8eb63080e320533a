"""Loading object code and calling it."""

import gc
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from retune.compiler.core.errors import ArtifactError
from retune.compiler.measure.processes.worker_process import WorkerProcess
from retune.compiler.runtime import loader
from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.buffers import aligned_array, aligned_copy
from retune.compiler.runtime.loader import Buffer, load_kernels
from retune.compiler.runtime.threads import openmp
from retune.compiler.runtime.threads.openmp import openmp_runtime
from tests.support.ir_kernels import ELEMENTS, artifact


def _buffers() -> tuple[Array, Array]:
    a = aligned_copy(np.random.default_rng(1).normal(size=ELEMENTS).astype(np.float32))
    b = aligned_array((ELEMENTS,), "float32")
    b.fill(np.nan)
    return a, b


@pytest.mark.parametrize("behavior", ["good", "parallel"])
def test_a_kernel_computes_on_the_bound_arrays(behavior: str) -> None:
    a, b = _buffers()
    load_kernels([artifact(behavior)])["kernel"].bind([a, b], threads=2)()
    assert np.array_equal(b, 2 * a)


def test_addresses_are_taken_like_arrays() -> None:
    a, b = _buffers()
    load_kernels([artifact("good")])["kernel"].bind([a.ctypes.data, b.ctypes.data], threads=1)()
    assert np.array_equal(b, 2 * a)


def test_a_bound_call_keeps_its_code_and_buffers() -> None:
    def make() -> Callable[[], None]:
        a, b = _buffers()
        return load_kernels([artifact("good")])["kernel"].bind([a, b], threads=1)

    calls = [make() for _ in range(20)]
    gc.collect()
    for call in calls:
        call()


def test_the_workspace_is_made_or_given() -> None:
    kernel = load_kernels([replace(artifact("workspace"), workspace_bytes=ELEMENTS * 4 + 64)])["kernel"]
    a, b = _buffers()
    kernel.bind([a, b], threads=1)()
    assert np.array_equal(b, 2 * a)
    workspace = aligned_array((ELEMENTS + 16,), "float32")
    kernel.bind([a, b, workspace], threads=1)()
    assert np.array_equal(workspace[:ELEMENTS], 2 * a)


def test_a_return_code_is_an_error() -> None:
    call = load_kernels([artifact("code 7")])["kernel"].bind(_buffers(), threads=1)
    with pytest.raises(ArtifactError, match="kernel failed with code 7"):
        call()


def test_kernels_of_several_artifacts_are_found_by_name() -> None:
    kernels = load_kernels([artifact("good", "first"), artifact("nothing", "second")])
    assert list(kernels) == ["first", "second"]
    a, b = _buffers()
    kernels["second"].bind([a, b], threads=1)()
    assert np.isnan(b).all()
    kernels["first"].bind([a, b], threads=1)()
    assert np.array_equal(b, 2 * a)


def test_two_kernels_of_one_name_are_refused() -> None:
    with pytest.raises(ArtifactError, match="two kernels are called kernel"):
        load_kernels([artifact("good"), artifact("nothing")])


def test_damaged_code_and_missing_symbols_raise_and_do_not_end_the_process() -> None:
    with pytest.raises(ArtifactError, match="cannot be loaded"):
        load_kernels([replace(artifact("good"), object_code=b"not an object file")])
    with pytest.raises(ArtifactError, match="cannot be loaded"):
        load_kernels([artifact("unknown symbol")])
    with pytest.raises(ArtifactError, match="cannot be loaded"):
        load_kernels([replace(artifact("good"), name="absent")])


def test_kernels_that_are_loaded_together_are_one_library(monkeypatch: pytest.MonkeyPatch) -> None:
    linked: list[str] = []
    link = loader._build_library

    def counted(builder: Any, name: str) -> Any:
        linked.append(name)
        return link(builder, name)

    monkeypatch.setattr(loader, "_build_library", counted)
    kernels = load_kernels([artifact("good", f"k{number}") for number in range(4)])
    assert len(linked) == 1
    a, b = _buffers()
    for kernel in kernels.values():
        b.fill(np.nan)
        kernel.bind([a, b], threads=1)()
        assert np.array_equal(b, 2 * a)


def test_a_damaged_kernel_among_others_is_named() -> None:
    good = [artifact("good", f"k{number}") for number in range(3)]
    bad = replace(good[1], object_code=good[1].object_code[: len(good[1].object_code) // 2])
    with pytest.raises(ArtifactError, match=r"kernel k1 .* cannot be loaded"):
        load_kernels([good[0], bad, good[2]])


def test_unfit_buffers_are_refused() -> None:
    kernel = load_kernels([artifact("good")])["kernel"]
    a, b = _buffers()
    wide = aligned_array((ELEMENTS * 2,), "float32")
    unaligned = aligned_array((ELEMENTS + 1,), "float32")[1:]
    cases: list[tuple[list[Buffer], str]] = [
        ([a], "takes 2 buffers, 1"),
        ([a, b[:-1]], "expected 1024 elements of float32, got 1023"),
        ([a.astype(np.float64), b], "of float64"),
        ([wide[::2], b], "not contiguous"),
        ([unaligned, b], "not a multiple of 64"),
        ([0, b], "not a multiple of 64"),
    ]
    for buffers, text in cases:
        with pytest.raises(ArtifactError, match=text):
            kernel.bind(buffers, threads=1)
    with pytest.raises(ArtifactError, match="0 threads"):
        kernel.bind([a, b], threads=0)


def test_the_openmp_runtime_is_loaded_once_and_says_what_is_missing() -> None:
    assert openmp_runtime() is openmp_runtime()
    assert openmp_runtime().symbols["GOMP_parallel"] != 0
    with pytest.raises(ArtifactError, match=r"install libgomp.*tried: /nowhere/libgomp.so"):
        openmp_runtime("/nowhere/libgomp.so")
    with pytest.raises(ArtifactError, match=r"tried: libm\.so\.6"):
        openmp_runtime("libm.so.6")


def only_bundled_runtime() -> str:
    """Where the OpenMP runtime is found on a machine without libgomp of its own."""
    openmp._SYSTEM_NAMES = ()
    return openmp.openmp_runtime().path


def test_without_a_system_runtime_the_one_inside_xgboost_is_found() -> None:
    with WorkerProcess() as worker:
        path = worker.call(f"{__name__}:only_bundled_runtime", timeout_s=120)
    assert "xgboost" in path
    assert "libgomp" in path


_LOADS = """
import gc, sys
import psutil
from retune.compiler.runtime.executor.library import Library
from retune.compiler.tvm.graph_executor import GraphModule, cpu
from tests.support.doubling_network import doubling_network

def load():
    module = GraphModule(Library(network)["default"](cpu()))
    module.run()

network, process = doubling_network(), psutil.Process()
loads = int(sys.argv[1])
for _ in range(128 + loads // 8):
    load()
gc.collect()
before = process.memory_info().rss
for _ in range(loads):
    load()
gc.collect()
print(process.memory_info().rss - before)
"""


@pytest.mark.parametrize("loads", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_loading_and_dropping_networks_does_not_grow_the_process(loads: int) -> None:
    command = [sys.executable, "-c", _LOADS, str(loads)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    assert int(done.stdout) < 1 << 20
