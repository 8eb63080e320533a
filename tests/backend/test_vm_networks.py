"""BERT and recurrent networks of any length, and a loop of greedy decoding, in the virtual machine."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest

from benchmarks import zoo
from retune.compiler import vm
from retune.compiler.runtime.device import cpu
from tests.support.dynamic_models import floats, reference


def _bert() -> onnx.ModelProto:
    sizes = {"layers": 2, "width": 48, "heads": 4, "words": 50}
    return zoo.build("bert_base", batch="batch", tokens="tokens", **sizes)


@pytest.fixture(scope="module")
def bert() -> vm.VirtualMachine:
    return vm.VirtualMachine(vm.compile(_bert()), cpu())


@pytest.mark.parametrize(("batch", "tokens"), [(1, 5), (1, 12), (3, 7)])
def test_bert_of_any_length(bert: vm.VirtualMachine, batch: int, tokens: int) -> None:
    rng = np.random.default_rng(tokens)
    ids = rng.integers(0, 50, (batch, tokens))
    mask = (rng.random((batch, tokens)) < 0.8).astype(np.int64)
    mask[:, 0] = 1
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    for mine, theirs in zip(bert.run(**inputs), reference(_bert(), inputs), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)


def _gpt2() -> onnx.ModelProto:
    return zoo.build("gpt2_greedy", width=48, heads=4, hidden=96, words=60, positions=40, end=7)


@pytest.fixture(scope="module")
def gpt2() -> vm.VirtualMachine:
    return vm.VirtualMachine(vm.compile(_gpt2()), cpu())


@pytest.mark.parametrize(("tokens", "steps"), [(3, 4), (1, 1), (5, 3), (3, 0)])
def test_greedy_decoding_in_the_vm_matches_onnxruntime(gpt2: vm.VirtualMachine, tokens: int, steps: int) -> None:
    inputs = {"input_ids": np.arange(10, 10 + tokens)[None], "steps": np.array(steps)}
    words, scores = gpt2.run(**inputs)
    expected, theirs = reference(_gpt2(), inputs)
    np.testing.assert_array_equal(words, expected)
    np.testing.assert_allclose(scores, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "options", "shape", "lengths"),
    [
        ("lstm", {"steps": "n", "width": 12}, lambda n: (n, 1, 12), (1, 5, 9)),
        ("lstm", {"steps": "n", "batch": "b", "width": 12, "bidirectional": True}, lambda n: (n, 3, 12), (1, 6)),
        ("gru", {"steps": "n", "width": 12}, lambda n: (n, 1, 12), (1, 7)),
        ("crnn", {"image": "n", "width": 4}, lambda n: (1, 1, 32, n), (16, 21)),
    ],
)
def test_recurrent_networks_take_any_length(
    name: str, options: dict[str, object], shape: Callable[[int], tuple[int, ...]], lengths: tuple[int, ...]
) -> None:
    source = zoo.build(name, **options)
    machine = vm.VirtualMachine(vm.compile(source), cpu())
    for length in lengths:
        inputs = {"input": floats(*shape(length))}
        (wanted,) = reference(source, inputs)
        np.testing.assert_allclose(machine.run(**inputs), wanted, rtol=1e-4, atol=1e-5)


def test_a_detector_of_voices_keeps_its_state_between_calls() -> None:
    source = zoo.build("vad", samples="samples", width=12, window=16)
    machine = vm.VirtualMachine(vm.compile(source), cpu())
    state = {"hidden": np.zeros((1, 1, 12), np.float32), "cell": np.zeros((1, 1, 12), np.float32)}
    for samples in (16, 100, 57):
        inputs = {"input": floats(1, samples), **state}
        outputs = list(machine.run(**inputs))
        for mine, theirs in zip(outputs, reference(source, inputs), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
        state = dict(zip(("hidden", "cell"), outputs[1:], strict=True))
    assert np.abs(state["hidden"]).max() > 0.01
