"""Random networks of symbolic sizes, each compiled once, compute what ONNX Runtime computes for any sizes: also where
symbols are equal, 0, 1 or the same as a fixed extent.
"""

import warnings
from collections.abc import Mapping, Sequence
from random import Random

import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, RuntimeException

from retune.compiler.ir.dims import substitute
from retune.compiler.vm.compiler import compile as vm_compile
from retune.compiler.vm.machine import VirtualMachine
from tests.support.property.symbolic_images import random_image_model
from tests.support.property.symbolic_models import random_symbolic_model
from tests.support.tiers import long_except

SHARDS = 16
EACH = 2
SIZES = [
    (5, 7, 2),
    (1, 1, 1),
    (4, 4, 4),
    (1, 9, 2),
    (9, 1, 1),
    (2, 2, 0),
    (0, 3, 1),
    (3, 0, 2),
    (8, 8, 1),
    (65, 130, 1),
]
"""Values of n, m and b."""
MOST_REJECTED = 9
"""ONNX Runtime rejects images without elements, and those that are smaller than a window."""
Size = tuple[int, int, int]


IMAGE_SIZES = [(13, 21, 1), (32, 17, 2), (8, 8, 3), (1, 9, 1), (5, 1, 2), (4, 7, 1), (0, 6, 1), (70, 33, 1)]


@pytest.mark.parametrize("shard", long_except([0], range(SHARDS)))
def test_networks_of_symbolic_sizes_match_onnxruntime(shard: int, property_seed: int) -> None:
    symbolic = [
        compare(*random_symbolic_model(seed), SIZES, seed)
        for seed in range((property_seed * SHARDS + shard) * EACH, (property_seed * SHARDS + shard + 1) * EACH)
    ]
    assert sum(symbolic) >= EACH // 2


@pytest.mark.parametrize("shard", long_except([2], range(SHARDS)))
def test_networks_of_images_match_onnxruntime(shard: int, property_seed: int) -> None:
    symbolic = [
        compare(*random_image_model(seed), IMAGE_SIZES, seed)
        for seed in range((property_seed * SHARDS + shard) * EACH, (property_seed * SHARDS + shard + 1) * EACH)
    ]
    assert sum(symbolic) >= EACH // 2


def compare(model: onnx.ModelProto, inputs: Mapping[str, Sequence[int]], sizes: Sequence[Size], seed: int) -> bool:
    """Compare results at these sizes of n, m and b; whether all kernels are compiled for all sizes."""
    exe = vm_compile(model, threads=2)
    machine = VirtualMachine(exe)
    options = onnxruntime.SessionOptions()
    # Its optimizer rejects a few shapes without elements.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4  # its errors are exceptions, too
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(seed)
    for values in Random(seed).sample(sizes, len(sizes)):
        numbers = dict(zip("nmb", values, strict=True))
        arrays = {
            name: rng.uniform(-1, 1, [substitute(extent, numbers) for extent in shape]).astype("float32")
            for name, shape in inputs.items()
        }
        try:
            expected = session.run(None, arrays)
        except (Fail, InvalidArgument, RuntimeException):  # of no elements, or smaller than a window
            assert min(values) < MOST_REJECTED, f"seed {seed}, {numbers}"
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy about the mean of no elements
            results = machine.run(**arrays)
        for ours, theirs in zip([results] if isinstance(results, np.ndarray) else results, expected, strict=True):
            assert ours.shape == theirs.shape, f"seed {seed}, {numbers}"
            # The mean of nothing is NaN here, and 0 there.
            known = ~np.isnan(ours) if 0 in values else np.full(ours.shape, True)
            message = f"seed {seed}, {numbers}"
            np.testing.assert_allclose(ours[known], theirs[known], rtol=2e-3, atol=2e-3, err_msg=message)
    return not exe.per_shape
