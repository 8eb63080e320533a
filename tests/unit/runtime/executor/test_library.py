"""Libraries of networks: three ways to an executor, files, and fresh processes that load them."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from benchmarks.fuzzing.mutations import zip_members, zip_of
from retune.compiler import debug_executor
from retune.compiler.core import config
from retune.compiler.core.config import thread_count
from retune.compiler.core.errors import ArtifactError, OptionError
from retune.compiler.core.target import Target
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.frontend.network import load_network
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Value
from retune.compiler.graph.pipeline import optimize
from retune.compiler.runtime.archive import MANIFEST
from retune.compiler.runtime.artifact import Array, ExternCall
from retune.compiler.runtime.executor.network import CompiledNetwork
from retune.compiler.runtime.executor.shared_library import write_shared_library
from retune.compiler.tvm.graph_executor import GraphModule, Library, cpu, create, load_module, save_param_dict
from tests.support.doubling_network import doubling_network
from tests.support.small_graphs import bias, conv, start

ROOT = Path(__file__).parents[4]


@cache
def network() -> CompiledNetwork:
    """A convolution, a bias and a softmax, on two threads."""
    builder, x = start()
    y = builder.emit("add", (conv(builder, x), bias(builder)))
    y = builder.emit("softmax", (y,), {"axis": 3})
    turned = builder.emit("reshape", (y,), {"shape": (16, 8)})
    return compile_graph(optimize(builder.finish({"y": y, "flat": turned})), Target.host(), threads=2)


def _x() -> Array:
    return np.random.default_rng(5).standard_normal((1, 4, 4, 8)).astype("float32")


def _result(module: GraphModule) -> Array:
    module.set_input(0, _x())
    module.run()
    np.testing.assert_array_equal(module.get_output(1).ravel(), module.get_output(0).ravel())
    return module.get_output(0)


@pytest.fixture(autouse=True)
def _no_threads_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RETUNE_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)


@cache
def _expected() -> Array:
    return _result(GraphModule(Library(network())["default"](cpu())))


def test_a_network_that_is_run_computes_something() -> None:
    np.testing.assert_allclose(_expected().sum(axis=3), 1, rtol=1e-5)
    assert _expected().std() > 0


@pytest.mark.parametrize("suffix", [".so", ".retune"])
def test_an_exported_library_opens_in_three_ways(tmp_path: Path, suffix: str) -> None:
    library = load_module(Library(network()).export_library(tmp_path / "deep" / f"net{suffix}"))
    assert [entry.name for entry in (tmp_path / "deep").iterdir()] == [f"net{suffix}"]
    assert library.threads == 2
    found = [_result(GraphModule(library["default"](cpu(0))))]
    module = create(library.get_graph_json(), library, cpu(0))
    module.load_params(save_param_dict(library.get_graph_params()))
    found.append(_result(module))
    graph_json, functions, params = library
    assert isinstance(graph_json, str)
    assert isinstance(functions, Library)
    assert isinstance(params, dict)
    module = create(graph_json, functions, [cpu(0)])
    for name, array in params.items():
        module.set_input(name, array)
    found.append(_result(module))
    for result in found:
        np.testing.assert_allclose(result, _expected(), rtol=1e-5)


@pytest.mark.parametrize("make", [create, debug_executor.create])
def test_a_graph_has_the_parameters_of_its_library(make: Callable[..., GraphModule]) -> None:
    library = Library(network())
    text, params = library.get_graph_json(), library.get_graph_params()
    module = make(text, library, cpu())
    np.testing.assert_allclose(_result(module), _expected(), rtol=1e-5)
    assert list(module.get_input_info()[0]) == ["x"]
    name = max(params, key=lambda key: params[key].size)
    module.set_input(name, np.zeros(params[name].shape).tolist())
    assert not np.allclose(_result(module), _expected())
    bare = make(text, library.remove_params(), cpu())
    with pytest.raises(OptionError, match="no value was set for the parameters"):
        bare.run(x=_x())
    bare.load_params(save_param_dict(params))
    np.testing.assert_allclose(_result(bare), _expected(), rtol=1e-5)
    inside = debug_executor.create(text, library.remove_params(), cpu())
    with inside, pytest.raises(OptionError, match="no value was set for the parameters"):
        inside.debug_get_output("y")


def test_a_graph_of_its_own_may_use_a_name_of_a_parameter_for_another_input() -> None:
    library = Library(network())
    name, other = list(library.get_graph_params())[:2]
    text = library.get_graph_json().replace(f'"{name}"', '"free"').replace(f'"{other}"', f'"{name}"')
    with pytest.raises(OptionError, match=f"no value was set for the parameters {name}"):
        create(text, library, cpu()).run(x=_x())


@pytest.mark.parametrize("suffix", [".so", ".retune"])
def test_names_of_inputs_and_outputs_stay_in_every_form(tmp_path: Path, suffix: str) -> None:
    library = Library(network())
    loaded = load_module(library.export_library(tmp_path / f"net{suffix}"))
    bare = [each["default"](cpu()) for each in (library, loaded, library.remove_params(), loaded.remove_params())]
    modules = [*map(GraphModule, bare), *(create(each.get_graph_json(), each, cpu()) for each in (library, loaded))]
    for module in modules:
        assert list(module.module.get_output_info()[0]) == ["y", "flat"]
        assert module.module.get_output_info() == modules[0].module.get_output_info()
        assert module.get_input_index("x") == 0
        module.load_params(save_param_dict(library.get_graph_params()))
        module.run(x=_x())
        np.testing.assert_array_equal(module.get_output("y"), module.get_output(0))
        np.testing.assert_array_equal(module.get_output("flat"), module.get_output("y").reshape(16, 8))


def test_a_recurrent_cell_computes_what_numpy_does() -> None:
    size, rng = 100, np.random.default_rng(8)
    weights = [rng.uniform(-0.2, 0.2, (size, size)).astype("float32") for _ in range(4)]
    builder = GraphBuilder("cell", [Value("x", (1, size)), Value("h", (1, size))])
    xr, xz, hr, hz = (
        builder.emit("dense", (name, builder.constant(weight))) for name, weight in zip("xxhh", weights, strict=True)
    )
    reset = builder.emit("sigmoid", (builder.emit("add", (xr, hr)),))
    update = builder.emit("tanh", (builder.emit("add", (xz, builder.emit("mul", (reset, hz)))),))
    state = builder.emit("add", (builder.emit("mul", (reset, "h")), update))
    library = Library(compile_graph(optimize(builder.finish({"state": state, "reset": reset})), Target.host()))
    module = GraphModule(library["default"](cpu()))
    x, h = (rng.uniform(-1, 1, (1, size)).astype("float32") for _ in range(2))
    for _ in range(2):
        module.run(x=x, h=h)
        r = 1 / (1 + np.exp(-(x @ weights[0] + h @ weights[2])))
        expected = r * h + np.tanh(x @ weights[1] + r * (h @ weights[3]))
        np.testing.assert_allclose(module.get_output(0), expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(module.get_output("reset"), r, rtol=1e-5)
        h = module.get_output(0)


def test_a_network_of_the_zoo_from_a_shared_library_and_its_graph(tmp_path: Path) -> None:
    library = Library(compile_graph(optimize(load_network("mlp")), Target.host(), threads=2))
    shapes, _ = library["default"](cpu()).get_input_info()
    x = {name: np.random.default_rng(2).standard_normal(shape).astype("float32") for name, shape in shapes.items()}
    loaded = load_module(library.export_library(tmp_path / "mlp.so"))
    modules = [GraphModule(library["default"](cpu())), create(loaded.get_graph_json(), loaded, cpu())]
    modules[1].load_params(save_param_dict(loaded.get_graph_params()))
    for module in modules:
        module.run(**x)
    np.testing.assert_array_equal(modules[0].get_output(0), modules[1].get_output(0))
    assert np.ptp(modules[0].get_output(0)) > 0


def test_a_library_returns_its_graph_json_and_parameters() -> None:
    library = Library(network())
    text, params = library.get_graph_json(), library.get_graph_params()
    assert all(kernel.name in text for kernel in network().kernels)
    assert {array.nbytes for array in params.values()} == {array.nbytes for array in network().constants.values()}
    assert library.get_lib() is library
    with pytest.raises(AttributeError, match="no function 'main'; it has 'default'"):
        library["main"]


def test_environment_variables_set_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(network())
    assert library["default"](cpu()).threads == 2
    monkeypatch.setenv("OMP_NUM_THREADS", "1,4")
    assert library["default"](cpu()).threads == 1
    monkeypatch.setenv("RETUNE_NUM_THREADS", "3")
    assert library["default"](cpu()).threads == 3
    for nonsense in ("", "-2", "0", "two", "1.5"):
        assert thread_count(5, {"RETUNE_NUM_THREADS": nonsense}) == 5


def test_a_library_without_parameters_takes_them_later() -> None:
    library = Library(network())
    bare = library.remove_params()
    assert bare.get_graph_params() == {}
    module = GraphModule(bare["default"](cpu()))
    params = library.get_graph_params()
    with pytest.raises(OptionError, match=f"network net: no value was set for the parameters {min(params)}"):
        module.run()
    first, *others = params
    module.set_input(first, params[first].numpy())
    for name in others:
        module.set_input_zero_copy(name, params[name])
    np.testing.assert_allclose(_result(module), _expected(), rtol=1e-5)
    module = GraphModule(bare["default"](cpu()))
    module.load_params(save_param_dict(params))
    np.testing.assert_allclose(_result(module), _expected(), rtol=1e-5)
    with pytest.raises(ArtifactError, match="parameters were removed"):
        bare.export_library("net.so")


_LOAD = """
import sys
import numpy as np
from retune.compiler.tvm.graph_executor import GraphModule, cpu, load_module
module = GraphModule(load_module(sys.argv[1])["default"](cpu(0)))
module.run(**{next(iter(module.get_input_info()[0])): np.load(sys.argv[2])})
np.save(sys.argv[3], module.get_output(0))
parts = {name.split(".")[2] for name in sys.modules if name.startswith("retune.compiler.")}
assert not any(name.startswith("retune.compiler.lower.") for name in sys.modules)  # the package is empty
print(*sorted(parts))
print(*sorted({"onnx", "xgboost", "prefect", "pyarrow"} & set(sys.modules)))
"""


@pytest.mark.parametrize("suffix", [".so", ".retune"])
def test_a_fresh_process_runs_a_library_without_the_compiler(tmp_path: Path, suffix: str) -> None:
    path = Library(network()).export_library(tmp_path / f"net{suffix}")
    np.save(tmp_path / "x.npy", _x())
    files = [str(path), str(tmp_path / "x.npy"), str(tmp_path / "y.npy")]
    done = subprocess.run(
        [sys.executable, "-c", _LOAD, *files], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    parts, others = done.stdout.splitlines()
    assert parts.split() == ["core", "ir", "lower", "runtime", "tvm"]
    assert others == ""
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), _expected())


def test_a_loaded_library_has_all_kernels_and_is_not_exported_again(tmp_path: Path) -> None:
    library = load_module(Library(network()).export_library(tmp_path / "net.so"))
    assert set(library.kernels) == {kernel.name for kernel in network().kernels}
    with pytest.raises(ArtifactError, match="copy that file instead"):
        library.export_library(tmp_path / "again.so")


def test_other_endings_and_missing_linkers(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"exported to \.so or \.retune"):
        Library(network()).export_library(tmp_path / "net.tar")
    with pytest.raises(ArtifactError, match="no linker is installed"):
        write_shared_library(network(), tmp_path / "net.so", ("no-such-linker",))
    with pytest.raises(ArtifactError, match=r"the linker .*false failed"):
        write_shared_library(network(), tmp_path / "net.so", ("false",))
    assert list(tmp_path.iterdir()) == []
    kernel = replace(network().kernels[0], calls=(ExternCall("s", "tests.function", ()),))
    changed = replace(network(), kernels=(kernel, *network().kernels[1:]))
    with pytest.raises(ArtifactError, match=r"calls tests\.function, a function of Python"):
        write_shared_library(changed, tmp_path / "net.so")


def _cut(data: bytes) -> bytes:
    return data[:-100]


def _stripped(data: bytes) -> bytes:
    return data[: data.index(b"PK\x03\x04")]


def _flipped(data: bytes) -> bytes:
    place = data.index(b"PK\x03\x04") // 2
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_cut, "is damaged"),
        (_stripped, "strip removes"),
        (_flipped, "the code is damaged"),
        (lambda data: data[:50], "damaged"),
    ],
)
def test_a_damaged_library_is_refused_before_any_code_is_loaded(
    tmp_path: Path, damage: Callable[[bytes], bytes], words: str
) -> None:
    path = Library(network()).export_library(tmp_path / "net.so")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ArtifactError, match=words) as caught:
        load_module(path)
    assert str(path) in str(caught.value)


def test_a_model_is_not_loaded_as_a_compiled_network(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(b"an ONNX file")
    with pytest.raises(ArtifactError, match=f"retune compile {path}"):
        Library.load(path)


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no such file"):
        load_module(tmp_path / "net.so")


@pytest.mark.parametrize("suffix", [".so", ".retune"])
def test_a_network_for_another_cpu_is_refused(tmp_path: Path, suffix: str) -> None:
    metadata = {**network().metadata, "cpu": "hal9000", "needs": ["empathy"]}
    path = Library(replace(network(), metadata=metadata)).export_library(tmp_path / f"net{suffix}")
    library = load_module(path)
    with pytest.raises(ArtifactError, match="was compiled for hal9000; this machine lacks empathy"):
        library["default"](cpu())
    with pytest.raises(ArtifactError, match="was compiled for hal9000; this machine lacks empathy"):
        create(library.get_graph_json(), library, cpu())


@pytest.mark.parametrize("threads", ["many", None, 0, -1, 1.5, True])
def test_a_network_that_says_no_number_of_threads_is_refused(threads: object) -> None:
    library = Library(replace(network(), metadata={**network().metadata, "threads": threads}))
    with pytest.raises(ArtifactError, match=r"is damaged: it says .* of its threads"):
        library["default"](cpu())


def test_a_library_of_another_version_is_refused(tmp_path: Path) -> None:
    path = Library(network()).export_library(tmp_path / "net.retune")
    members = zip_members(path.read_bytes())
    members[MANIFEST] = json.dumps({**json.loads(members[MANIFEST]), "version": 7}).encode()
    path.write_bytes(zip_of(members))
    with pytest.raises(ArtifactError, match="a network of version 7; this Retune reads version 2"):
        load_module(path)


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (3, 3), (8, 4)])
def test_a_network_runs_on_no_more_threads_than_cpus(cores: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RETUNE_NUM_THREADS", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(config, "usable_cores", lambda: cores)
    network = doubling_network()
    assert Library(replace(network, metadata={**network.metadata, "threads": 4})).threads == threads
    monkeypatch.setenv("RETUNE_NUM_THREADS", "6")
    assert Library(network).threads == 6
