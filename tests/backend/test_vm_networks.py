"""BERT of any length and a greedy decoding loop, through the virtual machine, beside ONNX Runtime."""

import numpy as np
import onnx
import pytest

from benchmarks import zoo
from retune.compiler import vm
from retune.compiler.runtime.device import cpu
from tests.support.dynamic_models import reference


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
