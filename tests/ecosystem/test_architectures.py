"""Architectures of torchvision, timm and transformers, by name: what their import gives, and whether they are right.

`architectures.txt` has the rows of those that have been run. The import of a few is compared with every change, that of
more with `-m 'not slow'`, that of all with `-m slow`, which also compiles each with default schedules and compares it
with PyTorch. `--update-golden` writes the rows of the tests that run: use it with `-n0`. Where PyTorch or the library
of a model is missing, its tests are skipped; counts are compared if the versions are those of the table.
"""

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from benchmarks.torch_models import ARCHITECTURES, versions
from retune.compiler.core.target import Target
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.graph.partition.partition import partition
from retune.compiler.runtime.executor.graph_executor import GraphExecutor
from tests.support.architectures import Imported, Row, import_architecture, read_table, write_row

QUICK = ("timm/lcnet_050",)
"""In the default suite."""
_EVERY = 12
"""Of the others, one in so many is in the long tier."""
_TOLERANCE = 1e-4
_THREADS = 2

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("ignore"),  # the libraries' own
]


def _tier(name: str, place: int) -> Any:
    tier = () if name in QUICK else pytest.mark.long if place % _EVERY == 0 else pytest.mark.slow
    return pytest.param(name, marks=tier)


def _need(name: str) -> None:
    """Skip what is not installed, without importing it: `make` declares first what torchvision's binary may lack."""
    for package in ("torch", "onnxscript", name.split("/")[0]):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")


def test_table_has_rows_of_architectures_alone() -> None:
    _, rows = read_table()
    assert rows
    assert rows.keys() <= ARCHITECTURES.keys()


@pytest.mark.parametrize("name", [_tier(name, place) for place, name in enumerate(ARCHITECTURES)])
def test_import_gives_what_the_table_says(name: str, update_golden: bool) -> None:
    _need(name)
    imported = import_architecture(name)
    found = imported.row() if isinstance(imported, Imported) else imported
    known_versions, rows = read_table()
    known = rows.get(name, Row())
    if update_golden:
        write_row(name, found.with_result_of(known))
        return
    assert found.is_imported == known.is_imported or name not in rows, found.result
    if known_versions == versions() and name in rows:
        assert found.with_result_of(known) == known


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_outputs_are_those_of_pytorch(name: str, update_golden: bool) -> None:
    _need(name)
    imported = import_architecture(name)
    if isinstance(imported, Row):
        if update_golden:
            write_row(name, imported)
        pytest.skip(imported.result)
    error = _error(imported)
    if update_golden:
        result = "right" if error <= _TOLERANCE else f"wrong: {error:.1e} of the largest value"
        write_row(name, imported.row().with_result_of(Row(1, result=result)))
    assert error <= _TOLERANCE


def _error(imported: Imported) -> float:
    """The largest difference from eager PyTorch, or from PyTorch in float64 where that is less, relative to the largest
    value of each output.
    """
    import torch
    from torch.utils import _pytree as pytree

    from benchmarks.torch_suite import _in_float64, _tensors, largest_error

    model, graph, target = imported.model, imported.graph, Target.host()
    with torch.inference_mode():
        wanted = _tensors(model(model.module))
    cut = partition(graph, target, hardware_of(target, _THREADS))
    executor = GraphExecutor(compile_graph(graph, target, {}, threads=_THREADS, cut=cut), _THREADS)
    leaves = [
        leaf.numpy()
        for leaf in pytree.tree_leaves((model.args, dict(model.kwargs or {})))
        if isinstance(leaf, torch.Tensor)
    ]
    for place, leaf in enumerate(leaves):
        executor.set_input(place, np.ascontiguousarray(leaf))
    executor.run()
    found = [torch.from_numpy(executor.get_output(place).copy()) for place in range(executor.get_num_outputs())]
    error = largest_error(found, wanted)
    if error > _TOLERANCE:
        with torch.inference_mode():
            error = min(error, largest_error(found, _in_float64(model)))
    return error
