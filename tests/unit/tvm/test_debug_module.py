"""The executor that looks inside."""

import gc
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.graph_json import EntrySpec, GraphJson, Node, Source
from retune.compiler import debug_executor
from retune.compiler.core.errors import ArtifactError, OptionError
from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.executor.params import load_param_dict_from_file
from retune.compiler.tvm.debug_executor import GraphModuleDebug, Report
from retune.compiler.tvm.graph_executor import Library, cpu
from tests.support.doubling_network import SHAPE, doubling_network
from tests.support.graphs import ARITHMETIC, add_one, chain, one_call

X = np.arange(4, dtype="float32")


def _slow(x: Array, out: Array) -> None:
    time.sleep(0.05)
    add_one(x, out)


def _module(root: Path | None = None) -> GraphModuleDebug:
    return debug_executor.create(one_call().dumps(), {"myadd": _slow}, cpu(), root)


def test_the_debug_folder_has_the_graph_then_the_results(tmp_path: Path) -> None:
    module = _module(tmp_path)
    (folder,) = tmp_path.iterdir()
    assert [entry.name for entry in folder.iterdir()] == ["_tvmdbg_graph_dump.json"]
    dump = json.loads((folder / "_tvmdbg_graph_dump.json").read_text(encoding="utf-8"))
    assert {"nodes", "arg_nodes", "node_row_ptr", "heads", "attrs"} <= set(dump)
    assert [node["op"] for node in dump["nodes"]] == ["param", "myadd"]
    module.run(number=1, min_repeat_ms=0, x=X)
    assert len(list(folder.iterdir())) > 1
    values = load_param_dict_from_file(folder / "output_tensors.params")
    np.testing.assert_array_equal(values["add____0"], X + 1)
    module.exit()
    assert not folder.exists()
    assert tmp_path.exists()


def test_a_temporary_debug_folder_is_removed_after_the_block() -> None:
    with _module() as module:
        folder = module.folder
        assert folder.is_dir()
    assert not folder.parent.exists()


def test_a_dropped_executor_leaves_no_temporary_folder() -> None:
    module = _module()
    root = module.folder.parent
    assert root.is_dir()
    del module
    gc.collect()
    assert not root.exists()


def test_a_dropped_executor_keeps_a_folder_of_the_callers(tmp_path: Path) -> None:
    folder = _module(tmp_path).folder
    gc.collect()
    assert folder.is_dir()


def test_the_debug_table_has_the_columns_of_tvm() -> None:
    with _module() as module:
        with pytest.raises(OptionError, match="call run first"):
            module.get_debug_result()
        module.run(number=1, min_repeat_ms=0, x=X)
        header, _, row, total = module.get_debug_result().splitlines()
        written = (module.folder / "table.txt").read_text(encoding="utf-8")
    cells = [cell.strip() for cell in header.split("  ") if cell.strip()]
    assert cells == ["Node Name", "Ops", "Time(us)", "Time(%)", "Shape", "Inputs", "Outputs", "Measurements(us)"]
    name, op, micros, share, shape, inputs, outputs, measured = row.split()
    assert (name, op, share, shape, inputs, outputs) == ("add", "myadd", "100.000", "(4)", "1", "1")
    assert 50_000 < float(micros) < 250_000
    assert measured == f"[{micros}]"
    assert total.split()[:3] == ["Total_time", "-", micros]
    assert row in written


def test_the_debug_trace_has_a_begin_and_an_end_per_node() -> None:
    with _module() as module:
        module.run(number=1, min_repeat_ms=0, x=X)
        trace = json.loads((module.folder / "_tvmdbg_execution_trace.json").read_text(encoding="utf-8"))
    events = trace["traceEvents"]
    assert trace["displayTimeUnit"] == "ns"
    assert [event["ph"] for event in events] == ["B", "E", "B", "E"]
    assert [event["name"] for event in events] == ["x", "x", "add", "add"]
    assert all((event["pid"], event["tid"]) == (1, 1) for event in events)
    assert events[0]["ts"] == 0
    assert events[3]["ts"] - events[2]["ts"] > 50_000


def test_single_nodes_run_and_are_timed() -> None:
    with debug_executor.create(one_call().dumps(), ARITHMETIC, cpu()) as module:
        assert [node["op"] for node in module.get_graph_nodes()] == ["param", "myadd"]
        assert module.run_individual_node(0).mean == 0
        assert len(module.run_individual_node(1, repeat=10).results) == 10
        assert [len(times) for times in module.run_individual(2, repeat=3)] == [3, 3]
        began = time.monotonic()
        module.run_individual_node(1, repeat=2, min_repeat_ms=50)
        assert time.monotonic() - began >= 0.1
        walls = []
        for repeats in (1, 2):
            began = time.monotonic()
            module.run_individual_node(
                1, repeat=2, min_repeat_ms=50, cooldown_interval_ms=200, repeats_to_cooldown=repeats
            )
            walls.append(time.monotonic() - began)
        assert walls[0] >= 0.5
        assert walls[1] >= 0.3
        with pytest.raises(OptionError, match="no node 2; it has 2 nodes"):
            module.run_individual_node(2)


def test_the_debug_table_has_shapes_after_a_node_of_several_outputs() -> None:
    shapes = ((3, 6, 1, 1), (3, 1, 1, 1), (3, 2, 1, 1), (3, 2, 1, 1), (3, 1, 1, 1), (3, 3, 1, 1))
    nodes = (Node("x"), Node("split", "split", (Source(0),), 4), Node("joined", "join", (Source(1, 0), Source(1, 2))))
    entries = tuple(EntrySpec(shape, "float32", i) for i, shape in enumerate(shapes))
    graph = GraphJson(nodes, (0,), (Source(2),), entries)

    def split(x: Array, *parts: Array) -> None:
        for part, piece in zip(parts, np.split(x, (1, 3, 5), axis=1), strict=True):
            part[...] = piece

    functions: dict[str, Callable[..., Any]] = {
        "split": split,
        "join": lambda a, b, out: np.concatenate([a, b], axis=1, out=out),
    }
    x = np.random.default_rng(0).random(shapes[0], np.float32)
    with debug_executor.create(graph.dumps(), functions, cpu()) as module:
        assert module.get_graph_nodes()[2]["shape"] == [3, 3, 1, 1]
        module.run(number=1, min_repeat_ms=0, x=x)
        np.testing.assert_array_equal(module.get_output(0), x[:, [0, 3, 4]])
        np.testing.assert_array_equal(module.get_node_output(1, 3), x[:, 5:])
        with pytest.raises(OptionError, match="has no output 4"):
            module.get_node_output(1, 4)


def test_profiler_reports_survive_json() -> None:
    library = Library(doubling_network())
    with debug_executor.create(library.get_graph_json(), library, cpu()) as module:
        module.run(number=1, min_repeat_ms=0, x=np.ones(SHAPE, "float32"))
        report = module.profile(x=np.ones(SHAPE, "float32"))
        with pytest.raises(OptionError, match="no collectors"):
            module.profile(["papi"])
    table = report.table()
    assert all(word in table for word in ("twofold", "Total", "Hash", "Executor: Graph"))
    data = json.loads(report.json())
    assert set(data) == {"device_metrics", "calls", "configuration"}
    assert len(data["calls"]) == 4
    for call in data["calls"]:
        assert isinstance(call["Name"]["string"], str)
        assert call["Count"]["count"] == 1
        assert call["Duration (us)"]["microseconds"] > 0
        assert len(call["Hash"]["string"]) == 16
    assert Report.from_json(report.json()).table() == table
    assert len(report.csv().splitlines()) == 5
    with pytest.raises(ArtifactError, match="no report"):
        Report.from_json("[]")


def test_every_value_is_kept_where_storage_is_shared() -> None:
    graph = chain("myadd myadd __nop myadd myadd", (0, 1, 2, 2, 1, 2))
    with debug_executor.create(graph.dumps(), ARITHMETIC, cpu()) as module:
        module.set_input("x", X)
        out = np.empty(4, "float32")
        assert module.debug_get_output("n3", out) is out
        np.testing.assert_array_equal(out, X + 3)
        np.testing.assert_array_equal(module.debug_get_output(1), X + 1)
        module.run(number=1, min_repeat_ms=0)
        found = [module.get_node_output(node) for node in range(6)]
        np.testing.assert_array_equal(found, [X, X + 1, X + 2, X + 2, X + 3, X + 4])
        module.execute_node(5)
        np.testing.assert_array_equal(module.get_output(0), X + 4)


def test_a_folder_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ArtifactError, match="cannot write"):
        _module(tmp_path / "file")
