"""ONNX's own tests of operators and small networks, compiled without tuning.

`onnx_nodes.txt` says of each test what comes of it, one line a test:

    compiled     the results are right; everything was compiled before an input was seen
    machine      the results are right; the virtual machine ran it, and compiled what shapes or values decide on then
    host         as before, and every input decides on shapes: NumPy computed the results, and no kernel did
    fails        an operator, an element type or a form of one that is not supported, or another result
    excluded     training, string or ml-domain operators, which no inference network here has

Some of those that pass run with every change; `-m slow` runs them all, and `-m slow --update-golden` writes the file.
"""

import unittest
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx
import onnx.numpy_helper
import pytest
from onnx.backend.test import BackendTest

from retune.compiler.graph.ir import Array
from tests.support.onnx_backend import (
    CATEGORIES,
    FILE,
    CompiledModel,
    InterpretedProgram,
    Outcomes,
    RetuneBackend,
    recorded,
)
from tests.support.tiers import long_except

_EVERY = 25
_EXCLUDED_DOMAINS = ("ai.onnx.ml", "ai.onnx.preview.training", "ai.onnx.training")
_PASSING = [name for name, outcome in recorded().items() if outcome in ("compiled", "machine", "host")]


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, unittest.TestCase]]:
    """ONNX's tests by name."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setenv("ONNX_HOME", str(tmp_path_factory.mktemp("onnx")))
        warnings.simplefilter("ignore")
        groups = BackendTest(RetuneBackend, __name__).test_cases
        yield {
            name.removesuffix("_cpu"): group(name)
            for category in CATEGORIES
            for group in [groups[f"OnnxBackend{category}ModelTest"]]
            for name in unittest.defaultTestLoader.getTestCaseNames(group)
            if name.endswith("_cpu")
        }


def _run(case: unittest.TestCase) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        case.debug()


@pytest.mark.parametrize("name", long_except(_PASSING[:: 2 * _EVERY], _PASSING[::_EVERY]))
def test_sampled_onnx_node_tests_pass(name: str, suite: dict[str, unittest.TestCase]) -> None:
    _run(suite[name])


def test_onnx_node_tests_with_control_flow_pass_in_the_interpreter(
    suite: dict[str, unittest.TestCase], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has control flow, open dimensions or data that decides on shapes, by the reference interpreter."""
    names = [name for name, outcome in recorded().items() if outcome in ("machine", "host")]
    monkeypatch.setattr(RetuneBackend, "prepare", lambda model, *_, **__: InterpretedProgram(model))
    failed = {}
    for name in names:
        try:
            _run(suite[name])
        except Exception as error:
            failed[name] = str(error)
    assert failed == {}
    assert len(names) > 300


class _WithInitializers(InterpretedProgram):
    """A model with initializers in place of all inputs but the first, as exporters write weights: without types."""

    def __init__(self, model: onnx.ModelProto) -> None:
        """Keep `model`: the values of its initializers come with `run`."""
        self._model = model

    def run(self, inputs: Sequence[Array] | Mapping[str, Array], **options: Any) -> tuple[Array, ...]:
        assert not isinstance(inputs, Mapping)
        weights = zip(list(self._model.graph.input)[1:], inputs[1:], strict=True)
        self._model.graph.initializer.extend(
            onnx.numpy_helper.from_array(array, entry.name) for entry, array in weights
        )
        del self._model.graph.input[1:]
        super().__init__(self._model)
        return super().run(inputs[:1], **options)


_EXPANDED = (
    "rms_normalization_",
    "rotary_embedding",
    "attention_4d_",
    "affine_grid_2d",
    "nllloss_NCd1_",
    "sce_mean_",
    "center_crop_pad_crop",
    "linear_attention_",
    "causal_conv_with_state",
    "swiglu",
)
"""How the names of tests begin whose operators are ONNX functions that are expanded, and have more than one input."""


@pytest.mark.parametrize("operator", _EXPANDED)
def test_expanded_operators_take_initializers(
    operator: str, suite: dict[str, unittest.TestCase], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RetuneBackend, "prepare", lambda model, *_, **__: _WithInitializers(model))
    names = [name for name in _PASSING if name.startswith(f"test_{operator}") and not name.endswith("_expanded")]
    assert names
    for name in names[::3]:
        _run(suite[name])


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_onnx_node_test_ends_as_recorded(
    suite: dict[str, unittest.TestCase], update_golden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    models: list[CompiledModel] = []

    def prepare(model: onnx.ModelProto, device: str = "CPU", **_: Any) -> CompiledModel:
        del device
        seen.append("excluded" if _is_excluded(model) else "fails")
        compiled = CompiledModel(model)
        seen.append("machine" if compiled.dynamic else "compiled")
        models.append(compiled)
        return compiled

    monkeypatch.setattr(RetuneBackend, "prepare", prepare)
    found: Outcomes = {}
    for name, case in suite.items():
        seen.clear()
        models.clear()
        try:
            _run(case)
        except Exception:
            found[name] = seen[0]
        else:
            found[name] = "host" if models[-1].on_the_host else seen[-1]
    if update_golden:
        FILE.write_text("".join(f"{outcome} {name}\n" for name, outcome in found.items()))
    assert found == recorded()


def _is_excluded(model: onnx.ModelProto) -> bool:
    types = [entry.type.tensor_type.elem_type for entry in (*model.graph.input, *model.graph.output)]
    return onnx.TensorProto.STRING in types or any(node.domain in _EXCLUDED_DOMAINS for node in model.graph.node)
