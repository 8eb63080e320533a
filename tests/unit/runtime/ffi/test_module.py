"""Modules: functions by name, imports, files, other processes and hosts, timing."""

import gc
import pickle
import shutil
import subprocess
import sys
import tarfile
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retune import compiler
from retune.compiler import nd, te
from retune.compiler.core.errors import ArtifactError, DefinitionError, LoweringError, OptionError
from retune.compiler.driver.modules import build
from retune.compiler.runtime import BenchmarkResult, Module, PackedFunc, load_module, object_use_count
from retune.compiler.runtime.executor.library import Library
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import State
from retune.compiler.schedule.steps import Annotate, Split
from tests.support.doubling_network import doubling_network

needs_linker = pytest.mark.skipif(shutil.which("cc") is None, reason="no compiler is installed")


def scaled(n: int, factor: float) -> te.PrimFunc:
    """A function of one array and a result."""
    x = te.placeholder((n,), name="x")
    return te.create_prim_func([x, te.compute((n,), lambda i: x[i] * factor, name="y")], f"by_{factor:.0f}")


def arrays(n: int) -> tuple[Any, Any]:
    """Numbers, and room for as many."""
    return nd.array(np.arange(n, dtype="float32")), nd.array(np.zeros(n, "float32"))


@pytest.fixture(scope="module")
def both() -> Module:
    """Two functions."""
    return build({"twice": scaled(5, 2), "thrice": scaled(7, 3)})


def check(module: Module) -> None:
    """The two functions of `both` work."""
    for name, n, factor in (("twice", 5, 2), ("thrice", 7, 3)):
        x, y = arrays(n)
        module[name](x, y)
        np.testing.assert_array_equal(y.numpy(), x.numpy() * factor)


def test_functions_by_name(both: Module) -> None:
    assert both.names == ("twice", "thrice")
    assert isinstance(both["twice"], PackedFunc)
    check(both)
    x, y = arrays(5)
    both.twice(x, y)
    assert both.implements_function("twice")
    assert not both.implements_function("main")
    with pytest.raises(ArtifactError, match="no function other; it has twice, thrice"):
        both["other"]
    assert not hasattr(both, "other")
    with pytest.raises(ArtifactError, match="no function main"):
        both(x, y)


def test_the_only_function_is_the_main_one() -> None:
    module = compiler.build(scaled(5, 4), "llvm")
    assert module.entry_name == "by_4"
    x, y = arrays(5)
    module(x, y)
    assert y.numpy().tolist() == [0, 4, 8, 12, 16]
    assert compiler.build(scaled(5, 4), name="f").names == ("f",)


def test_tensors_tasks_and_steps_are_built() -> None:
    x = te.placeholder((64,), name="x")
    y = te.compute((64,), lambda i: x[i] + 1.0, name="y")
    steps = (Split(1, 0, 64, (16,)), Annotate(1, 1, 2), Annotate(1, 0, 3))
    module = build({"plain": [x, y], "graph": ComputeDAG([x, y])}, steps={"graph": steps})
    for name in module.names:
        given, result = arrays(64)
        module[name](given, result, 2)
        np.testing.assert_array_equal(result.numpy(), given.numpy() + 1)
    with pytest.raises(DefinitionError, match="nothing to build"):
        build({})
    with pytest.raises(DefinitionError, match="steps are given for other; the functions are plain"):
        build({"plain": [x, y]}, steps={"other": steps})
    with pytest.raises(DefinitionError, match="by name too"):
        build({"plain": [x, y]}, steps=steps)
    given, result = arrays(64)
    for found in (steps, {"main": steps}, State.initial(ComputeDAG([x, y]))):
        build([x, y], steps=found)(given, result)
        np.testing.assert_array_equal(result.numpy(), given.numpy() + 1)


def test_arguments_come_in_the_order_of_the_function() -> None:
    a, b = te.placeholder((4,), name="a"), te.placeholder((4,), name="b")
    c = te.compute((4,), lambda i: b[i] - a[i], name="c")
    module = build([c, a, b])
    one, two, out = nd.array(np.ones(4, "float32")), nd.array(np.full(4, 5, "float32")), nd.empty((4,))
    module(out, one, two)
    assert (out.numpy() == 4).all()
    with pytest.raises(TypeError, match=r"takes 3 tensors \(c \(written\), a, b\)"):
        module(out, one)


def test_a_workspace_is_there_for_the_time_of_a_call() -> None:
    x = te.placeholder((128, 128), name="x")
    k = te.reduce_axis(128, "k")
    middle = te.compute((128, 128), lambda i, j: te.sum(x[i, k] * x[j, k], k), name="middle")
    k2 = te.reduce_axis(128, "k2")
    out = te.compute((128,), lambda i: te.sum(middle[i, k2] * middle[k2, i], k2), name="out")
    module = build([x, out])
    given, result = nd.array(np.random.default_rng(0).random((128, 128), "float32")), nd.empty((128,))
    assert module._functions["main"].kernel.workspace_bytes > 0
    for threads in (1, 2):
        module(given, result, threads)
        product = given.numpy() @ given.numpy().T
        np.testing.assert_allclose(result.numpy(), (product * product.T).sum(1), rtol=1e-4)


def test_functions_outlive_their_module_and_run_in_several_threads() -> None:
    function = build(scaled(500, 2))["by_2"]
    gc.collect()
    wrong: list[int] = []

    def run(number: int) -> None:
        x, y = nd.array(np.full(500, number, "float32")), nd.empty((500,))
        for _ in range(200):
            function(x, y)
        wrong.extend([number] * int((y.numpy() != 2 * number).any()))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_what_a_kernel_lends_is_given_back() -> None:
    kept: list[Any] = []
    compiler.register_func("tests.keep", lambda array, _: kept.append(array))
    x = te.placeholder((4,), name="x")
    module = build([x, te.extern((4,), [x], lambda ins, outs: te.call_packed("tests.keep", *ins, *outs), name="y")])
    given, result = arrays(4)
    for _ in range(3):
        module(given, result)
    compiler.remove_global_func("tests.keep")
    assert [(array.shape, object_use_count(array)) for array in kept] == [((4,), 1)] * 3
    kept.clear()
    assert object_use_count(given) == 1


def test_imported_functions_are_found() -> None:
    first, second, third = (build(scaled(5, factor)) for factor in (1, 2, 3))
    second.import_module(third)
    first.import_module(second)
    assert first.imports == (second,)
    assert first.implements_function("by_3", query_imports=True)
    assert not first.implements_function("by_3")
    x, y = arrays(5)
    first["by_3"](x, y)
    assert y.numpy().tolist() == [0, 3, 6, 9, 12]
    with pytest.raises(ArtifactError, match="no function by_3"):
        first.get_function("by_3")
    with pytest.raises(ArtifactError, match="cannot import itself"):
        third.import_module(first)


@pytest.mark.parametrize("suffix", [".retune", pytest.param(".so", marks=needs_linker)])
def test_imported_modules_are_merged_into_one_file(tmp_path: Path, suffix: str) -> None:
    first, second = build({"twice": scaled(5, 2)}), build({"thrice": scaled(7, 3)})
    first.import_module(second)
    assert first.imported_modules == (second,)
    again = load_module(first.export_library(tmp_path / f"both{suffix}"))
    assert again.imported_modules == ()
    assert again.type_key == ("library" if suffix == ".so" else "native")
    check(again)
    host = build(scaled(5, 5))
    host.import_module(again)
    assert [each.type_key for each in (host, *host.imported_modules)] == ["native", again.type_key]


@needs_linker
def test_a_module_knows_whether_it_runs_serializes_and_exports(both: Module, tmp_path: Path) -> None:
    def facts(module: Module) -> tuple[bool, bool, bool]:
        return module.is_binary_serializable, module.is_runnable, module.is_dso_exportable

    assert facts(both) == (True, True, True)
    loaded = load_module(both.export_library(tmp_path / "both.so"))
    assert facts(loaded) == (False, True, False)
    assert facts(load_module(both.save(tmp_path / "both.retune"))) == (True, True, True)
    host = build(scaled(5, 5))
    host.import_module(loaded)
    assert facts(host) == (False, True, False)
    for module, name in ((loaded, "again.so"), (host, "again.so"), (host, "again.retune")):
        with pytest.raises(ArtifactError, match="copy that file"):
            module.export_library(tmp_path / name)


@needs_linker
def test_damaged_libraries_are_refused(both: Module, tmp_path: Path) -> None:
    data = both.export_library(tmp_path / "module.so").read_bytes()
    bad = tmp_path / "bad.so"
    for place in range(0, data.rindex(b"PK\3\4"), len(data) // 40):
        bad.write_bytes(data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :])
        with pytest.raises(ArtifactError, match="is damaged or cut off"):
            load_module(bad)
    for end in (0, 3, 100, len(data) // 2, len(data) - 1, len(data) - 56):
        bad.write_bytes(data[:end])
        with pytest.raises(ArtifactError, match=r"bad\.so (is damaged or cut off|cannot be loaded)"):
            load_module(bad)


@needs_linker
def test_a_library_of_another_program_needs_no_seal_but_all_its_sections(tmp_path: Path) -> None:
    (tmp_path / "empty.c").write_text("int one(void) { return 1; }")
    foreign = tmp_path / "foreign.so"
    subprocess.run(["cc", "-shared", "-o", foreign, tmp_path / "empty.c"], check=True)
    assert not load_module(foreign).implements_function("one")
    cut_off = tmp_path / "cut_off.so"  # not the loaded file itself: its code would be gone when the process ends
    cut_off.write_bytes(foreign.read_bytes()[:-100])
    with pytest.raises(ArtifactError, match="no shared library, or is cut off"):
        load_module(cut_off)


def test_an_archive_needs_no_linker(both: Module, tmp_path: Path) -> None:
    path = both.save(tmp_path / "deep" / "module.retune")
    again = load_module(path)
    assert again.names == both.names
    check(again)
    assert again.save(tmp_path / "again.retune").read_bytes() == path.read_bytes()
    check(pickle.loads(pickle.dumps(again)))


def test_the_ending_of_earlier_versions_is_deprecated(both: Module, tmp_path: Path) -> None:
    with pytest.warns(DeprecationWarning, match=r"m\.tar: .*\.retune"):
        path = both.save(tmp_path / "m.tar")
    check(load_module(path))


def test_a_network_is_loaded_as_its_library(tmp_path: Path) -> None:
    path = doubling_network().save(tmp_path / "net.retune")
    assert isinstance(load_module(path), Library)


def test_damaged_archives_are_refused(both: Module, tmp_path: Path) -> None:
    path = both.save(tmp_path / "module.retune")
    data = path.read_bytes()
    for place in range(0, len(data), len(data) // 50):
        damaged = bytearray(data)
        damaged[place] ^= 0x55
        (tmp_path / "bad.retune").write_bytes(damaged)
        try:
            check(load_module(tmp_path / "bad.retune"))
        except ArtifactError:
            continue
        assert data[place : place + 1] != bytes([damaged[place]])  # padding, which nothing reads
    for end in (0, 100, 512, len(data) // 2):
        (tmp_path / "bad.retune").write_bytes(data[:end])
        with pytest.raises(ArtifactError, match="is no module, or is damaged"):
            load_module(tmp_path / "bad.retune")
    with tarfile.open(tmp_path / "other.tar", "w"):
        pass
    with pytest.raises(ArtifactError, match="is no module"):
        load_module(tmp_path / "other.tar")
    with pytest.raises(ArtifactError, match="there is no such file"):
        load_module(tmp_path / "absent.retune")
    (tmp_path / "module.zip").write_bytes(data)
    with pytest.raises(OptionError, match=r"a module is a \.so or a \.retune"):
        load_module(tmp_path / "module.zip")


@needs_linker
def test_a_shared_library_is_loaded(both: Module, tmp_path: Path) -> None:
    path = both.export_library(tmp_path / "module.so")
    module = compiler.load_module(path)
    assert module.implements_function("thrice")
    check(module)
    with pytest.raises(ArtifactError, match="no function other"):
        module["other"]
    with pytest.raises(ArtifactError, match="copy that file"):
        module.export_library(tmp_path / "again.so")
    host = build(scaled(5, 5))
    host.import_module(module)
    x, y = arrays(5)
    host["twice"](x, y)
    (tmp_path / "text.so").write_text("no library")
    with pytest.raises(ArtifactError, match=r"text\.so cannot be loaded"):
        load_module(tmp_path / "text.so")


def test_exports_that_cannot_work_say_why(both: Module, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no linker is installed"):
        both.export_library(tmp_path / "module.so", linkers=("no-such-linker",))
    with pytest.raises(ArtifactError, match="failed"):
        both.export_library(tmp_path / "module.so", linkers=("false",))
    with pytest.raises(ArtifactError, match=r"exported to \.so or \.retune"):
        both.export_library(tmp_path / "module.o")
    with pytest.raises(ArtifactError, match=r"saved as \.retune"):
        both.save(tmp_path / "module.so")
    with pytest.raises(ArtifactError, match="has no functions"):
        Module().save(tmp_path / "module.retune")
    assert list(tmp_path.iterdir()) == []


HOST = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("retune", "llvmlite"):
            raise ImportError(name + " is blocked")

sys.meta_path.insert(0, Blocked())
import tvm_ffi
module = tvm_ffi.load_module(sys.argv[1])
{body}
assert not [name for name in sys.modules if name.startswith(("retune", "llvmlite"))]
print("fine")
"""


def run_host(body: str, path: Path, python: str = sys.executable) -> str:
    """What a process without our packages says; `body` has a `module`, which it loaded from `path`."""
    script = HOST.format(body=textwrap.dedent(body))
    done = subprocess.run(
        [python, "-c", script, str(path)], capture_output=True, text=True, timeout=300, check=False, cwd=path.parent
    )
    return done.stdout + done.stderr


@needs_linker
def test_a_host_without_our_package_runs_a_library(both: Module, tmp_path: Path) -> None:
    path = both.export_library(tmp_path / "module.so")
    body = """
        import numpy as np
        raw = np.zeros(5 * 4 + 64, np.uint8)
        first = -raw.ctypes.data % 64
        y = raw[first:first + 20].view(np.float32)
        x = np.zeros(32, np.float32)
        x = x[(-x.ctypes.data % 64) // 4:][:5]
        x[:] = range(5)
        module.twice(x, y)
        assert y.tolist() == [0, 2, 4, 6, 8], y
        try:
            module.twice(x, x[1:])
        except ValueError as error:
            assert "kernel twice, argument y: expected float32[5], got 4 elements in dimension 0" in str(error)
        else:
            raise AssertionError("the wrong shape was accepted")
    """
    assert run_host(body, path) == "fine\n"


@pytest.mark.long
@needs_linker
def test_pytorch_runs_a_library(both: Module, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = both.export_library(tmp_path / "module.so")
    body = """
        import torch
        x, y = torch.arange(7, dtype=torch.float32), torch.empty(7)
        module.thrice(x, y)
        assert torch.equal(y, x * 3)
        try:
            module.thrice(x, y.double())
        except TypeError as error:
            assert "expected float32[7], got elements of type float64" in str(error)
        else:
            raise AssertionError("the wrong type was accepted")
    """
    assert run_host(body, path) == "fine\n"


@pytest.mark.long
@needs_linker
def test_a_library_calls_functions_of_its_host(tmp_path: Path) -> None:
    x = te.placeholder((3,), name="x")
    y = te.extern((3,), [x], lambda ins, outs: te.call_packed("host.fill", ins[0], 4, outs[0]), name="y")
    path = build([x, te.compute((3,), lambda i: y[i] * 2.0, name="z")]).export_library(tmp_path / "calls.so")
    body = """
        import numpy as np

        def aligned(n):
            room = np.zeros(n + 16, np.float32)
            return room[(-room.ctypes.data % 64) // 4:][:n]

        x, z = aligned(3), aligned(3)
        x[:] = 1
        try:
            module.main(x, z)
        except ValueError as error:
            assert "kernel main calls the function host.fill, which is not registered" in str(error)
        else:
            raise AssertionError("a missing function was called")

        @tvm_ffi.register_global_func("host.fill")
        def fill(source, count, result):
            np.from_dlpack(result)[:] = np.from_dlpack(source) * count

        module.main(x, z)
        assert z.tolist() == [8, 8, 8], z
    """
    assert run_host(body, path) == "fine\n"


def slow_function() -> tuple[Module, list[int]]:
    """A kernel that sleeps, and a list that grows by one with every call."""
    calls: list[int] = []

    def sleep(*_: Any) -> None:
        calls.append(1)
        time.sleep(0.01)

    compiler.register_func("tests.sleep", sleep, override=True)
    return build([te.extern((1,), [], lambda _, outs: te.call_packed("tests.sleep", *outs), dtype="float32")]), calls


def test_the_first_call_is_not_timed() -> None:
    module, calls = slow_function()
    y = nd.empty((1,))
    result = module.time_evaluator(module.entry_name, compiler.cpu(), number=1, repeat=1)(y)
    assert len(calls) == 2
    assert result.mean >= 0.01
    module.time_evaluator(module.entry_name, number=1, repeat=1, min_repeat_ms=300)(y)
    assert len(calls) > 2 + 1 + 2  # the untimed one, the first pass of one, and a longer one
    compiler.remove_global_func("tests.sleep")


def test_a_benchmark_result_has_mean_median_min_max_and_std() -> None:
    result = BenchmarkResult((1, 2, 2, 5))
    assert (result.mean, result.median, result.min, result.max, result.std) == (2.5, 2, 1, 5, 1.5)


def test_the_preprocessing_function_runs_before_every_repeat(both: Module) -> None:
    prepared = []
    compiler.register_func("tests.prepare", lambda: prepared.append(1))
    x, y = arrays(5)
    result = both.time_evaluator("twice", number=2, repeat=6, f_preproc="tests.prepare")(x, y)
    compiler.remove_global_func("tests.prepare")
    assert len(prepared) == len(result.results) == 6
    options: dict[str, Any]
    for options in ({"f_preproc": "cache_flush"}, {"cache_flush_bytes": 1 << 16}, {"cooldown_interval_ms": 1}):
        done = both.time_evaluator("twice", number=1, repeat=2, repeats_to_cooldown=1, **options)(x, y)
        assert min(done.results) > 0
    with pytest.raises(OptionError, match="number must be at least 1, not 0"):
        both.time_evaluator("twice", number=0)
    with pytest.raises(OptionError, match="cuda"):
        both.time_evaluator("twice", compiler.cuda())
    with pytest.raises(ArtifactError, match="no function other"):
        both.time_evaluator("other")


def test_a_module_is_for_cpus() -> None:
    x = te.placeholder((16,), name="x")
    with pytest.raises(LoweringError, match=r"f: a module holds functions for CPUs, not for cuda; .*build.build"):
        build([x, te.compute((16,), lambda i: x[i] + 1.0, "y")], "cuda", name="f")
