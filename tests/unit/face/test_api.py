"""`import retune`: compile, load, call, save and report, with arrays of several libraries, and wrong arguments."""

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import pytest

import retune
from retune.compiler.core.errors import (
    ArtifactError,
    DynamicShapeError,
    ModelFormatError,
    OptionError,
    ShapeMismatchError,
)
from retune.compiler.runtime.buffers import aligned_copy
from retune.compiler.vm import compile as vm_compile
from retune.compiler.vm.kernel_store import STORE
from retune.models import store_onnx

WEIGHT = np.random.default_rng(0).standard_normal((64, 10)).astype("float32")


def _dense(rows: int | str = 3, *, outputs: int = 1) -> onnx.ModelProto:
    """x @ WEIGHT, and its ReLU as a second output."""
    made = [onnx.helper.make_tensor_value_info(name, 1, [rows, 10]) for name in ("y", "z")[:outputs]]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"]), onnx.helper.make_node("Relu", ["y"], ["z"])][:outputs],
        "dense",
        [onnx.helper.make_tensor_value_info("x", 1, [rows, 64])],
        made,
        [onnx.numpy_helper.from_array(WEIGHT, "w")],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


def _input(rows: int = 3) -> np.ndarray[Any, np.dtype[Any]]:
    return np.random.default_rng(1).standard_normal((rows, 64)).astype("float32")


# Packages and modules of `retune.compiler` that running a network needs.
_RUNTIME = {"core", "driver", "ir", "lower", "runtime"}


@pytest.fixture(autouse=True)
def _store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETUNE_HOME", str(tmp_path / "state"))


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> retune.Network:
    return retune.compile(_dense(), store=tmp_path_factory.mktemp("store"))


def test_a_new_length_of_a_dynamic_network_compiles_nothing() -> None:
    network = retune.compile(_dense("n"), dynamic=True, threads=1)
    before = STORE.use.asked
    for rows in (7, 1, 30, 0):
        x = np.random.default_rng(rows).random((rows, 64), "float32")
        np.testing.assert_allclose(network(x), x @ WEIGHT, rtol=1e-4, atol=1e-4)
    assert STORE.use.asked == before


def test_importing_retune_loads_none_of_its_parts() -> None:
    heavy = ("numpy", "onnx", "llvmlite", "pyarrow", "prefect", "xgboost", "torch", "rich", "retune.compiler")
    code = f"import retune, sys; print([name for name in {heavy!r} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


_LOAD = """
import sys
import numpy as np

def private_mb():
    lines = open("/proc/self/smaps_rollup").read().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024

before, others = private_mb(), {*sys.modules}
import retune
network = retune.load(sys.argv[1])
network(np.zeros((3, 64), "float32"))
parts = {".".join(name.split(".")[:3]) for name in sys.modules if name.startswith("retune.compiler.")}
print(len({*sys.modules} - others), private_mb() - before, *sorted(parts))
"""


@pytest.mark.parametrize("suffix", [".retune", ".so"])
def test_loading_and_running_a_network_imports_the_runtime_alone(
    dense: retune.Network, suffix: str, tmp_path: Path
) -> None:
    path = dense.save(tmp_path / f"dense{suffix}")
    done = subprocess.run([sys.executable, "-c", _LOAD, path], capture_output=True, text=True, check=True)
    modules, megabytes, *parts = done.stdout.split()
    known = {f"retune.compiler.{part}" for part in _RUNTIME}
    assert {*parts} <= known
    assert int(modules) < 350
    assert float(megabytes) < 60


def test_compiling_loads_neither_prefect_nor_xgboost(tmp_path: Path) -> None:
    onnx.save(_dense(), tmp_path / "dense.onnx")
    code = (
        f"import retune, sys; retune.compile({str(tmp_path / 'dense.onnx')!r}); "
        "print([name for name in ('prefect', 'xgboost', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout == "[]\n"


def test_every_public_name_can_be_had() -> None:
    for name in retune.__all__:
        assert getattr(retune, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'tunes'"):
        _ = retune.tunes


def test_a_compiled_model_computes_what_the_model_says(dense: retune.Network) -> None:
    np.testing.assert_allclose(dense(_input()), _input() @ WEIGHT, rtol=1e-5, atol=1e-5)


def test_inputs_go_by_place_or_by_name(dense: retune.Network) -> None:
    np.testing.assert_array_equal(dense(_input()), dense(x=_input()))


def test_several_outputs_are_a_tuple() -> None:
    y, z = retune.compile(_dense(outputs=2))(_input())
    np.testing.assert_array_equal(z, np.maximum(y, 0))


def test_results_of_earlier_calls_stay_as_they_were(dense: retune.Network) -> None:
    first = dense(_input())
    kept = first.copy()
    dense(-_input())
    np.testing.assert_array_equal(first, kept)


class _Other:
    """An array of a library that is not NumPy, with DLPack and the array API."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        device: tuple[int, int] = self.array.__dlpack_device__()
        return device

    def __array_namespace__(self) -> "type[_Other]":
        return _Other

    @classmethod
    def from_dlpack(cls, array: Any) -> "_Other":
        return cls(np.from_dlpack(array))


def test_arrays_of_another_library_give_arrays_of_that_library(dense: retune.Network) -> None:
    result = dense(_Other(_input()))
    assert type(result) is _Other
    np.testing.assert_array_equal(result.array, dense(_input()))


def test_arrays_with_gaps_are_read_right(dense: retune.Network) -> None:
    wide = np.zeros((3, 128), "float32")
    wide[:, ::2] = _input()
    np.testing.assert_array_equal(dense(wide[:, ::2]), dense(_input()))


@pytest.mark.parametrize("offset", [0, 4, 64])
def test_large_inputs_are_read_right_wherever_they_begin(offset: int) -> None:
    rows = 8192  # 2 MiB
    fast = retune.compile(_dense(rows), threads=1)
    memory = np.zeros(rows * 64 * 4 + 128, np.uint8)
    begin = -memory.ctypes.data % 64 + offset
    x = memory[begin : begin + rows * 64 * 4].view("float32").reshape(rows, 64)
    x[:] = _input(rows)
    first = fast(x)
    np.testing.assert_allclose(first, x @ WEIGHT, rtol=1e-4, atol=1e-4)
    x[:] = 0
    assert not fast(x).any()
    assert first.any()


def test_timing_leaves_results_of_earlier_calls_alone() -> None:
    rows = 32768  # 1.25 MiB of outputs, which are written in place
    fast, x = retune.compile(_dense(rows), threads=1), aligned_copy(_input(rows))
    first = fast(x)
    kept = first.copy()
    x[:] = 0
    fast.benchmark(repeat=1)
    fast.report()
    fast.profile(x)
    np.testing.assert_array_equal(first, kept)


def test_threads_share_a_network(dense: retune.Network) -> None:
    inputs = [np.full((3, 64), number, "float32") for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(dense, inputs))
    for x, result in zip(inputs, results, strict=True):
        np.testing.assert_allclose(result, x @ WEIGHT, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", ["dense.retune", "dense.so"])
def test_a_saved_network_computes_the_same(dense: retune.Network, tmp_path: Path, name: str) -> None:
    path = dense.save(tmp_path / name)
    np.testing.assert_array_equal(retune.load(path)(_input()), dense(_input()))


def test_a_dynamic_network_takes_every_length_and_can_be_saved(tmp_path: Path) -> None:
    fast = retune.compile(_dense("n"), dynamic=True)
    loaded = retune.load(fast.save(tmp_path / "dynamic.retune"))
    assert fast.inputs == loaded.inputs == {"x": "float32[n, 64]"}
    for rows in (1, 5):
        for network in (fast, loaded):
            np.testing.assert_allclose(network(_input(rows)), _input(rows) @ WEIGHT, rtol=1e-5, atol=1e-5)


def test_a_dynamic_network_reports_at_the_shape_that_is_chosen() -> None:
    fast = retune.compile(_dense("n"), dynamic=True, threads=1)
    assert fast.outputs == {"y": "float32[n, 10]"}
    assert "-> float32[n, 10]" in repr(fast)
    assert fast.benchmark(repeat=1, shapes={"x": (3, 64)}) > 0
    report = fast.report(shapes={"x": (3, 64)})
    assert report.latency > 0
    assert any(row.name.startswith("dense") and row.weight == 1 and row.best_seconds > 0 for row in report.kernels)
    assert {row.name for row in retune.profile(fast, _input(5)).kernels} == {row.name for row in report.kernels}
    for measure in (fast.benchmark, fast.report):
        with pytest.raises(OptionError, match=r'dimension 0 .* has any size: choose .* shapes={"x": \(1, 64\)}'):
            measure()
    with pytest.raises(OptionError, match="does not fit the input x"):
        fast.report(shapes={"x": (1,)})


def test_ranges_are_reported_in_the_middle_and_fixed_shapes_take_none(dense: retune.Network) -> None:
    fast = retune.compile(_dense("n"), shapes={"x": ("1..9", 64)}, threads=1)
    assert fast.report().latency > 0
    with pytest.raises(ShapeMismatchError, match=r"n is 10 .* takes 1 to 9"):
        fast.report(shapes={"x": (10, 64)})
    with pytest.raises(OptionError, match="compiled for fixed shapes: leave out shapes"):
        dense.benchmark(shapes={"x": (1, 64)})


def test_shapes_fix_the_dimensions_of_a_dynamic_model() -> None:
    assert retune.compile(_dense("n"), shapes={"x": (7, 64)}).inputs == {"x": "float32[7, 64]"}


def test_shapes_may_be_scalars_and_have_extents_of_zero() -> None:
    model = _dense("n")
    assert retune.compile(model, shapes={"x": (0, 64)}).inputs == {"x": "float32[0, 64]"}
    model.graph.input.append(onnx.helper.make_tensor_value_info("s", onnx.TensorProto.FLOAT, []))
    assert retune.compile(model, shapes={"x": (1, 64), "s": ()}).inputs["s"] == "float32[]"


def test_the_report_has_every_kernel_and_shares_that_add_up(dense: retune.Network) -> None:
    report = dense.report()
    assert [row.weight for row in report.kernels] == [1]
    assert report.kernels[0].name in str(report)
    assert report.latency > 0
    assert "kernels timed one by one" in report.title


def test_profiling_runs_on_the_given_inputs(dense: retune.Network) -> None:
    assert retune.profile(dense, _input()).kernels[0].name == retune.profile(dense).kernels[0].name


def test_a_notebook_shows_names_as_text() -> None:
    report = retune.NetworkReport("a<b", 1, 0.001, "", ())
    assert "a&lt;b" in report._repr_html_()


def test_a_notebook_shows_the_inputs_and_outputs(dense: retune.Network) -> None:
    assert "float32[3, 64]" in dense._repr_html_()
    assert "float32[3, 10]" in dense._repr_html_()


WRONG: list[tuple[Callable[[retune.Network], object], type[Exception], str]] = [
    (lambda net: net(), OptionError, "no value for x"),
    (lambda net: net(_input(), _input()), OptionError, "1 input, x: 2 were given"),
    (lambda net: net(y=_input()), OptionError, "no input 'y'"),
    (lambda net: net(_input(), x=_input()), OptionError, "given twice"),
    (lambda net: net(_input().astype("float64")), OptionError, "must be float32"),
    (lambda net: net(_input(4)), OptionError, r"must be float32\[3, 64\], not float32\[4, 64\]"),
    (lambda _: retune.compile(3), ModelFormatError, "not builtins.int"),
    (lambda _: retune.compile("mlp", thread=1), OptionError, "no argument thread; it has dynamic, shapes, threads"),
    (lambda _: retune.tune("mlp", trails=1), OptionError, "no argument trails; it has minutes, trials, effort"),
    (lambda _: retune.export("mlp", "mlp.onnx", thread=1), OptionError, "no argument thread; it has runtime, shapes"),
    (lambda _: retune.compile(_dense(), _input()), OptionError, "example inputs are for a torch.nn.Module"),
    (lambda _: retune.compile(b"no model"), ModelFormatError, "is not an ONNX model"),
    (lambda _: retune.compile("nothing.onnx"), ModelFormatError, "neither a file nor one of the zoo"),
    (lambda _: retune.compile(_dense(), threads=0), OptionError, "threads must be an integer"),
    (lambda _: retune.compile(_dense(), shapes=3), OptionError, "shapes map names"),  # type: ignore[arg-type]
    (lambda _: retune.compile(_dense("n"), shapes={"x": ("8..1", 64)}), OptionError, "dimension 0 of x: .* is empty"),
    (lambda _: retune.compile(_dense("n"), shapes={"x": ("-1..8", 64)}), OptionError, "dimension 0 of x: .* negative"),
    (lambda _: retune.compile(_dense(), shapes={"x": ("1..8", 64)}), ModelFormatError, "is 3 in the model"),
    (lambda _: retune.compile(_dense(), shapes={"x": "1..8,64"}), OptionError, "must be integers"),
    (lambda _: retune.compile(_dense(), shapes={"x": 3}), OptionError, "shape of x must be integers"),  # type: ignore[dict-item]
    (lambda _: retune.compile(_dense("n")), DynamicShapeError, r"not static: dimension 0 \(n\) .*dynamic=True"),
    (lambda _: retune.load("nothing.retune"), ArtifactError, "no such file"),
    (lambda net: net.save("nowhere/net.retune"), ArtifactError, "name a file in a folder that exists"),
    (lambda net: net.export("nowhere/net.onnx"), ArtifactError, "name a file in a folder that exists"),
    (lambda _: retune.export("mlp", "nowhere/net.onnx"), ArtifactError, "name a file in a folder that exists"),
    (lambda net: net(_input().astype(">f4")), OptionError, r"not float32\[3, 64\] in another byte order"),
    (lambda net: net.save("nothing.txt"), ArtifactError, "is exported to"),
    (lambda _: retune.tune(_dense(), effort="much"), OptionError, "effort must be one of quick, standard, thorough"),
    (lambda _: retune.tune(_dense(), effort="quick", trials=3), OptionError, "not both"),
    (lambda _: retune.tune(_dense(), options={"speed": 1}), OptionError, "no option speed"),
    (lambda _: retune.tune(_dense(), minutes=-1), OptionError, "minutes must be more than 0"),
    (lambda _: retune.tune(_dense(), trials=0), OptionError, "trials must be at least 1"),
    (lambda _: retune.tune(_dense(), options=3), OptionError, "options map names"),  # type: ignore[arg-type]
    (lambda _: retune.compile(_dense(), store=__file__), ArtifactError, "cannot write .*Not a directory"),
    (lambda net: retune.explain(net, 3), OptionError, "named by a string, not 3"),  # type: ignore[arg-type]
    (lambda _: retune.profile(3), OptionError, "a compiled network is needed"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "error", "words"), WRONG)
def test_wrong_arguments_are_refused_in_one_sentence(
    dense: retune.Network, call: Callable[[retune.Network], object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words) as raised:
        call(dense)
    assert "\n" not in str(raised.value)
    assert not Path("nowhere").exists()


def test_a_file_that_is_no_network_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.retune").write_bytes(b"no archive")
    with pytest.raises(ArtifactError, match=r"bad\.retune"):
        retune.load(tmp_path / "bad.retune")


def test_large_weights_of_a_model_in_memory_are_stored_beside_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    large = [rng.standard_normal((160, 160)).astype("float32") for _ in range(2)]
    small = rng.standard_normal((160, 2)).astype("float32")
    names = ["x", "a", "b", "y"]
    factors = [*large, small]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", [names[n], f"w{n}"], [names[n + 1]]) for n in range(3)],
        "chain",
        [onnx.helper.make_tensor_value_info("x", 1, [1, 160])],
        [onnx.helper.make_tensor_value_info("y", 1, [1, 2])],
        [onnx.numpy_helper.from_array(factor, f"w{n}") for n, factor in enumerate(factors)],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    path = Path(store_onnx(model, "chain", tmp_path))
    assert path.stat().st_size < 4096
    assert path.with_suffix(".weights").read_bytes() == b"".join(array.tobytes() for array in large)
    onnx.checker.check_model(path)
    x = rng.standard_normal((1, 160)).astype("float32")
    network = retune.compile(model, store=tmp_path / "store", threads=1)
    np.testing.assert_allclose(network(x), x @ large[0] @ large[1] @ small, rtol=1e-3, atol=1e-3)
    assert store_onnx(model, "chain", tmp_path) == str(path)
    model.graph.initializer[0].raw_data = large[1].tobytes()
    assert store_onnx(model, "chain", tmp_path) != str(path)


def test_a_model_can_be_compiled_from_its_bytes() -> None:
    np.testing.assert_allclose(retune.compile(_dense().SerializeToString())(_input()), _input() @ WEIGHT, rtol=1e-5)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_model_without_nodes_returns_its_input(dynamic: bool) -> None:
    x = onnx.helper.make_tensor_value_info("x", 1, [3])
    model = onnx.helper.make_model(
        onnx.helper.make_graph([], "same", [x], [x]), opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8
    )
    values = np.array([-1, 2, 3], "float32")
    result = retune.compile(model, dynamic=dynamic)(values)
    np.testing.assert_array_equal(result, values)
    assert not np.shares_memory(result, values)


def test_weights_that_were_not_loaded_are_named_with_their_file(tmp_path: Path) -> None:
    path = tmp_path / "dense.onnx"
    onnx.save(_dense(), path, save_as_external_data=True, location="dense.bin", size_threshold=0)
    model = onnx.load(path, load_external_data=False)
    with pytest.raises(ModelFormatError, match=r"weight 'w' is not loaded from 'dense\.bin'"):
        retune.compile(model, store=tmp_path / "store")
    with pytest.raises(ModelFormatError, match=r"weight 'w' is not loaded from 'dense\.bin'"):
        vm_compile(model)
    assert not (tmp_path / "store" / "models").exists()
