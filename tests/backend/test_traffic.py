"""The bytes that the kernels of the zoo's networks move, as the table in the documents has them.

`--update-golden` writes the rows of the tests that run: use it with `-n0`.
"""

import re
from pathlib import Path

import pytest

from benchmarks import zoo
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default.shares import moved_bytes
from retune.compiler.te.tensor import ComputeOp

TABLE = Path(__file__).parents[2] / "docs" / "explanation" / "passes.md"
QUICK = ("dcgan", "gpt2_block", "mlp", "mobilenet_v2")
_MEGA = 1e6


def _reduces(dag: ComputeDAG) -> bool:
    return any(isinstance(op, ComputeOp) and bool(op.reduce_axes) for op in dag.ops)


def _row(name: str) -> str:
    network = zoo.extract(name, "llvm -mcpu=x86-64-v3", 2)
    calls = [call.task.dag for call in network.partition.kernels]
    moved = sum(map(moved_bytes, calls)) / _MEGA
    least = sum(moved_bytes(dag) for dag in calls if _reduces(dag)) / _MEGA
    weights = network.constant_bytes / _MEGA
    return f"| `{name}` | {len(calls)} | {weights:.1f} | {moved:.1f} | {least:.1f} | {moved / least:.2f} |"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in zoo.NAMES]
)
def test_network_moves_the_bytes_of_the_table(name: str, update_golden: bool) -> None:
    text = TABLE.read_text(encoding="utf-8")
    known = re.search(rf"^\| `{name}` \|.*$", text, re.MULTILINE)
    assert known is not None, f"{TABLE.name} has no row of {name}"
    if update_golden:
        TABLE.write_text(text.replace(known[0], _row(name)), encoding="utf-8")
    else:
        assert _row(name) == known[0]
