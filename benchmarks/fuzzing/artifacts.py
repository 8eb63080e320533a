"""Fuzz cases of the loaders of graphs, parameters, compiled networks, modules and values.

No compiled code is run; graphs get their memory allocated, and plans are verified and read.
"""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from benchmarks.fuzzing.case import FuzzCase, drawn
from benchmarks.fuzzing.models import small_models
from benchmarks.fuzzing.mutations import (
    Mutate,
    archive_of,
    mutated_bytes,
    mutated_json,
    mutated_members,
    zip_members,
)
from benchmarks.graph_json import EntrySpec, GraphJson, Node, Source
from retune.compiler import te
from retune.compiler.core.errors import ArtifactError
from retune.compiler.core.target import Target
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.driver.modules import build
from retune.compiler.frontend.importer import load_model
from retune.compiler.graph.pipeline import optimize
from retune.compiler.runtime.archive import MANIFEST
from retune.compiler.runtime.device import cpu
from retune.compiler.runtime.executor.library import Library
from retune.compiler.runtime.executor.network import CompiledNetwork
from retune.compiler.runtime.executor.params import load_param_dict, save_param_dict
from retune.compiler.runtime.ffi.container import load_json, save_json
from retune.compiler.runtime.ffi.module import Module
from retune.compiler.tvm.graph_executor import create


def _graphs() -> list[bytes]:
    nodes = (
        Node("x"),
        Node("w"),
        Node("s", "add", (Source(0), Source(1))),
        Node("v", "__nop", (Source(2),)),
        Node("t", "two", (Source(3),), 2),
        Node("c", "__copy", (Source(4, 1),), 1, {"hash": "ab"}),
    )
    shapes = ((4, 2), (4, 2), (4, 2), (8,), (3,), (2, 2), (2, 2))
    ids = (0, 1, 2, 2, 3, 4, 5)
    entries = tuple(EntrySpec(shape, "float32", number) for shape, number in zip(shapes, ids, strict=True))
    graph = GraphJson(nodes, (0, 1), (Source(5), Source(4), Source(3)), entries)
    chain = (Node("x"), *(Node(f"n{place}", "add", (Source(place), Source(place))) for place in range(4)))
    iterations = tuple(EntrySpec((3,), "int8", number) for number in (0, 1, 2, 1, 3))
    return [graph.dumps().encode(), GraphJson(chain, (0,), (Source(4),), iterations).dumps().encode()]


def _nothing(*arrays: object) -> None:
    del arrays


def _load_graph(path: Path) -> object:
    text = path.read_bytes().decode("utf-8", "replace")
    return create(text, dict.fromkeys(("add", "two"), _nothing), cpu()).get_input_info()


def _params() -> list[bytes]:
    rng = np.random.default_rng(0)
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "w": rng.random((3, 4), np.float32),
        "b": np.arange(5, dtype=np.int8),
        "s": np.array(2.5),
    }
    empty = save_param_dict({"x": np.zeros((0, 3), np.float16)})
    return [bytes(save_param_dict(arrays)), bytes(empty)]


def _network() -> CompiledNetwork:
    return compile_graph(optimize(load_model(small_models()[0], name="net")), Target.host())


def _networks() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        return [_network().save(Path(folder) / "net.retune").read_bytes()]


def _libraries() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = Library(_network()).export_library(Path(folder) / "net.so")
        return [path.read_bytes()]


def _inside(name: str) -> Mutate:
    return mutated_json if name.endswith(".json") else mutated_bytes


def _rezipped(data: bytes, draw: Random) -> bytes:
    return archive_of(mutated_members(zip_members(data), draw, _inside))


def _relinked(data: bytes, draw: Random) -> bytes:
    """A library with another end, behind the same code."""
    members = zip_members(data)
    start = int(json.loads(members[MANIFEST])["before"]["bytes"])
    return data[:start] + archive_of(mutated_members(members, draw, _inside))


def _load_network(path: Path) -> object:
    return Library(CompiledNetwork.load(path)).get_graph_json()


def _modules(suffix: str) -> Callable[[], list[bytes]]:
    def samples() -> list[bytes]:
        x = te.placeholder((6, 4), name="x")
        module = build({"one": [x, te.compute((6, 4), lambda i, j: x[i, j] + 1.0)]})
        with tempfile.TemporaryDirectory() as folder:
            path = module.export_library(Path(folder) / f"one{suffix}")
            return [path.read_bytes()]

    return samples


def _values() -> list[bytes]:
    return [save_json({"a": [1, 2.5, {"b": b"xx"}], "c": [cpu(0), None, True, "y" * 20]}).encode()]


def _load_values(path: Path) -> object:
    return load_json(path.read_bytes().decode("utf-8", "replace"))


_REFUSED = (ArtifactError,)

CASES = (
    FuzzCase("graph", _graphs, drawn(mutated_json), _load_graph, _REFUSED, ".json"),
    FuzzCase("params", _params, drawn(_rezipped), lambda path: load_param_dict(path.read_bytes()), _REFUSED, ".params"),
    FuzzCase("network", _networks, drawn(_rezipped), _load_network, _REFUSED, ".retune"),
    FuzzCase("network-library", _libraries, drawn(_relinked), Library.load, _REFUSED, ".so", 5000),
    FuzzCase("module-archive", _modules(".retune"), drawn(_rezipped), Module.load, _REFUSED, ".retune"),
    FuzzCase("module-library", _modules(".so"), drawn(mutated_bytes), Module.load, _REFUSED, ".so", 5000),
    FuzzCase("values", _values, drawn(mutated_json), _load_values, _REFUSED, ".json"),
)
