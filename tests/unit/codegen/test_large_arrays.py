"""Arrays of more elements than 32 bits count: PTX of their kernels, of which the last blocks are executed."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from retune.compiler import te
from retune.compiler.codegen.nvidia.nvptx import ptx
from retune.compiler.core.target import Target
from retune.compiler.lower.gpu.pipeline import lower_for_gpu
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import Annotation, replay
from retune.compiler.schedule.steps import Annotate, Fuse, Split, Step
from tests.support.ptx.machine import Blocks
from tests.support.ptx.memory import Memory
from tests.support.ptx.program import PtxModule
from tests.support.workloads import GPU

BLOCK, THREAD = Annotation.BLOCK_X, Annotation.THREAD_X
ROWS, COLUMNS = 65536 + 8, 131072 + 16
TOTAL = ROWS * COLUMNS


def byte_at(places: NDArray[Any]) -> NDArray[np.uint8]:
    """What stands there: no two places that are a multiple of 2**31 apart have the same."""
    wide = np.asarray(places).astype(np.uint64)
    return ((wide * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(56)).astype(np.uint8)


class Far:
    """In place of the bytes of a large buffer."""

    def __init__(self) -> None:
        self.written: dict[int, int] = {}

    def __getitem__(self, where: tuple[NDArray[Any], NDArray[Any]]) -> NDArray[np.uint8]:
        return byte_at(where[1])

    def __setitem__(self, where: tuple[NDArray[Any], NDArray[Any]], values: NDArray[np.uint8]) -> None:
        self.written.update(zip(where[1].ravel().tolist(), values.ravel().tolist(), strict=True))


def last_block(dag: ComputeDAG, steps: tuple[Step, ...]) -> dict[int, int]:
    """The bytes that the last block writes, by their place."""
    function = lower_for_gpu(replay(dag, steps), "k", GPU)
    module, memory, addresses = PtxModule(ptx(function, Target("cuda"))), Memory(), []
    for number, buffer in enumerate(function.params):
        memory.add(np.zeros(1, np.uint8))
        last = memory.buffers[-1]
        last.start, last.nbytes, data = (number + 1) << 40, buffer.nbytes, Far()
        last.data = data  # type: ignore[assignment]
        addresses.append(last.start)
    (kernel,) = function.kernels
    Blocks(module, memory, kernel, addresses, {}, kernel.grid[0] - 1, 1).run()
    return data.written


@pytest.mark.parametrize("threads", [64, 1 << 10])
def test_elements_beyond_the_first_2_to_the_33rd(threads: int) -> None:
    x = te.placeholder((TOTAL,), "uint8", "x")
    dag = ComputeDAG([x, te.compute((TOTAL,), lambda i: x[TOTAL - 1 - i], "y")])
    written = last_block(dag, (Split(1, 0, TOTAL, (threads,)), Annotate(1, 0, BLOCK), Annotate(1, 1, THREAD)))
    places = np.array(sorted(written))
    np.testing.assert_array_equal(places, np.arange((TOTAL - 1) // threads * threads, TOTAL))
    np.testing.assert_array_equal([written[place] for place in places.tolist()], byte_at(TOTAL - 1 - places))


def test_products_of_extents_and_long_loops() -> None:
    x = te.placeholder((ROWS, COLUMNS), "uint8", "x")
    dag = ComputeDAG([x, te.compute((COLUMNS, ROWS), lambda i, j: x[j, i], "y")])
    steps = (Fuse(1, (0, 1)), Split(1, 0, TOTAL, (16, 8)), Annotate(1, 0, BLOCK), Annotate(1, 1, THREAD))
    written = last_block(dag, steps)
    places = np.array(sorted(written))
    np.testing.assert_array_equal(places, np.arange(TOTAL - 128, TOTAL))
    rows, columns = places % ROWS, places // ROWS
    np.testing.assert_array_equal([written[place] for place in places.tolist()], byte_at(rows * COLUMNS + columns))
