"""A compiled network made by hand: out = 8 * x, by three kernels that double, with an arena, a constant and a view."""

from dataclasses import replace

import numpy as np

from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.executor.network import CompiledNetwork
from retune.compiler.runtime.executor.plan import BufferKind, BufferSpec, Call, Plan
from retune.compiler.runtime.kernel_row import KernelRow
from tests.support.ir_kernels import ELEMENTS, artifact

SHAPE = (2, ELEMENTS // 2)
ARENA = 64 * -(-ELEMENTS * 4 // 64)


def doubling_plan() -> Plan:
    """x -> 2x -> 4x -> out; `twice` is 2 * constant, and `flat` shows out with another shape."""
    kind = BufferKind
    return Plan(
        name="doubling",
        buffers=(
            BufferSpec("x", SHAPE, "float32", kind.INPUT, 0),
            BufferSpec("a", SHAPE, "float32", kind.INTERMEDIATE, 1, 0),
            BufferSpec("b", SHAPE, "float32", kind.INTERMEDIATE, 2, ARENA),
            BufferSpec("out", SHAPE, "float32", kind.OUTPUT, 3),
            BufferSpec("c", (ELEMENTS,), "float32", kind.CONSTANT, 4),
            BufferSpec("twice", SHAPE, "float32", kind.OUTPUT, 5),
            BufferSpec("flat", (ELEMENTS,), "float32", kind.OUTPUT, 3),
        ),
        calls=(
            Call("twofold", (0, 1), "first"),
            Call("twofold", (1, 2), "second"),
            Call("twofold", (2, 3), "third"),
            Call("twofold", (4, 5), "constant"),
        ),
        inputs=(0,),
        outputs=(3, 5, 6),
        arena_bytes=2 * ARENA,
    )


def doubling_network(constant: Array | None = None) -> CompiledNetwork:
    """The plan with its kernel; the constant is 0, 1, 2, ... when not given."""
    array = np.arange(ELEMENTS, dtype=np.float32) if constant is None else constant
    kernel = replace(artifact("workspace", "twofold"), workspace_bytes=ELEMENTS * 4 + 64)
    return CompiledNetwork(
        plan=doubling_plan(),
        kernels=(kernel,),
        constants={4: array},
        coverage=(KernelRow("twofold", '["hash"]', 4, tunable=False, record_id="r1"),),
        metadata={"target": "llvm", "threads": 2},
    )
