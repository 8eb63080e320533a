"""Quantized networks of the zoo have the bits of the definition on every instruction set and number of threads.

The slow tests take every network in every form: pytest -m slow on this file, about an hour of one core.
"""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from benchmarks import zoo
from retune.compiler.codegen import dot_products
from retune.compiler.codegen.dot_instructions import dot_instructions
from retune.compiler.core.target import Target
from retune.compiler.graph.passes import byte_products
from tests.support.quantized_definition import TARGETS, disagreements, exposed, network_results
from tests.support.quantized_zoo import FORMS, inputs_of, quantized

_CHEAP = [("mlp", "u8s8"), ("mlp", "operators"), ("bert_base", "dynamic")]
_DYNAMIC = 0.05
"""Largest difference between instruction sets, relative to the largest output, of dynamic quantization."""
_QDQ = ("u8s8", "s8s8")


def check_bits(name: str, form: str, folder: Path) -> None:
    """Compare the outputs of a network on all instruction sets and numbers of threads."""
    model = quantized(name, form, folder)
    inputs = inputs_of(model, 0)
    host = network_results(model, *TARGETS[0], inputs)
    for target, threads in TARGETS[1:]:
        for output, array in network_results(model, target, threads, inputs).items():
            same = array.tobytes() == host[output].tobytes()
            if form == "dynamic":  # its ranges follow from floats: a last bit there may move a number by a quantum
                same = bool(np.abs(array - host[output]).max() <= _DYNAMIC * np.abs(host[output]).max())
            assert same, f"{target}, {threads} threads: {output}, {int((array != host[output]).sum())} elements"


def check_definition(name: str, form: str, folder: Path) -> None:
    """Compare every stored tensor with its definition, and the network with the same one that shows these tensors."""
    model = quantized(name, form, folder)
    inputs = inputs_of(model, 0)
    shown = exposed(model)
    tensors = network_results(shown, *TARGETS[0], inputs)
    assert not disagreements(shown, {**inputs, **tensors})
    for output, array in network_results(model, *TARGETS[0], inputs).items():
        np.testing.assert_array_equal(array, tensors[output])


@pytest.mark.long
@pytest.mark.parametrize(("name", "form"), _CHEAP)
def test_small_quantized_networks_have_equal_bits_everywhere(name: str, form: str, tmp_path: Path) -> None:
    check_bits(name, form, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", zoo.NAMES)
def test_quantized_networks_have_equal_bits_everywhere(name: str, form: str, tmp_path: Path) -> None:
    check_bits(name, form, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", ["mlp", "r3d_18"])
def test_small_quantized_networks_are_as_defined(name: str, tmp_path: Path) -> None:
    check_definition(name, "u8s8", tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("form", _QDQ)
@pytest.mark.parametrize("name", zoo.NAMES)
def test_stored_tensors_of_quantized_networks_are_as_defined(name: str, form: str, tmp_path: Path) -> None:
    check_definition(name, form, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", ["minilm_l6", "whisper_tiny_encoder"])
def test_encoders_are_those_of_onnx_runtime_without_its_optimizer(name: str, tmp_path: Path) -> None:
    """With it a softmax between quantizations becomes QLinearSoftmax, which is a quantum off in one of six to
    eight elements.
    """
    shown = exposed(quantized(name, "u8s8", tmp_path))
    inputs = inputs_of(shown, 0)
    ours = network_results(shown, *TARGETS[0], inputs)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(shown.SerializeToString(), options, ["CPUExecutionProvider"])
    for output, array in zip(ours, session.run(list(ours), inputs), strict=True):
        if array.dtype.kind in "iu":
            np.testing.assert_array_equal(ours[output], array, err_msg=output)


@pytest.mark.long
def test_a_convolution_in_floats_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(byte_products.PRODUCTS, "conv3d")
    with pytest.raises(AssertionError, match="Conv QuantizeLinear"):
        check_definition("r3d_18", "u8s8", tmp_path)


@pytest.mark.long
def test_bytes_with_a_wrong_sign_on_older_cpus_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if ("uint8", "int8") not in dot_instructions(Target("llvm")):
        pytest.skip("this CPU has no dot products of mixed signs: all targets compute alike")
    widen = dot_products._widen
    monkeypatch.setattr(dot_products, "_widen", lambda emitter, words, _: widen(emitter, words, "uint8"))
    with pytest.raises(AssertionError, match="elements"):
        check_bits("mlp", "u8s8", tmp_path)
