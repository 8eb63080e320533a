"""Random networks with conditions, loops and scans inside each other compute what ONNX Runtime computes.

The seed is in the header of the test run; `--property-seed N` uses another one.
"""

from collections import Counter

import numpy as np
import onnxruntime
import pytest

from compiler.frontend.onnx.program import load_program
from compiler.graph.program import Program
from compiler.graph.run_program import run_program
from tests.property.onnx_models import COLUMNS, random_model

SHARDS = 4
EACH = 25
ROWS = (1, 3, 8)


def _kinds(program: Program) -> Counter[str]:
    return Counter(type(statement).__name__ for function in program.functions.values() for statement in function.body)


@pytest.mark.parametrize("shard", range(SHARDS))
def test_random_networks(shard: int, property_seed: int) -> None:
    kinds: Counter[str] = Counter()
    for number in range(EACH):
        seed = (property_seed * SHARDS + shard) * EACH + number
        model = random_model(seed)
        program = load_program(model)
        kinds += _kinds(program)
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        rng = np.random.default_rng(seed)
        for rows in ROWS:
            inputs = {name: rng.standard_normal((rows, COLUMNS)).astype("float32") for name in ("x", "z")}
            found = run_program(program, inputs)
            for ours, theirs in zip(found, session.run(None, inputs), strict=True):
                assert ours.shape == theirs.shape, f"seed {seed}, {rows} rows"
                np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-4, err_msg=f"seed {seed}, {rows} rows")
    for kind in ("Call", "HostCall", "Branch", "Loop"):
        assert kinds[kind] >= EACH // 3, kinds
