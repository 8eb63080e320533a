"""The feature columns of the group "gpu", for statements whose loops are bound to GPU threads; 0 for others."""

from collections.abc import Sequence

import numpy as np

from retune.compiler.core.dtype import item_bytes
from retune.compiler.core.gpu_facts import GpuFacts
from retune.compiler.ir.kernel import WORD
from retune.compiler.ir.tensor_core import WARP
from retune.compiler.model.features.buffers import Columns
from retune.compiler.model.features.nest import Floats, Nest
from retune.compiler.schedule.state import SHARED_SUFFIX, THREAD_LOOPS, Annotation
from retune.compiler.schedule.tensor_nests import copies_of, product_of, thread_bytes
from retune.compiler.te.tensor import Tensor

# Expected values, from which occupancy follows. `retune.compiler.search.gpu.space` rejects by the least instead.
_OTHER_REGISTERS = 32.0
"""Registers of a thread for indices and operands."""
_REGISTERS_PER_WORD = 1.25
"""Registers for each word of a thread's buffers."""
_OTHER_TENSOR_REGISTERS = 44.0
"""Registers of a thread in addition to the sums and fragments of a product on tensor cores."""

_EXTENTS = {
    "gpu_blocks_x": Annotation.BLOCK_X, "gpu_blocks_y": Annotation.BLOCK_Y, "gpu_blocks_z": Annotation.BLOCK_Z,
    "gpu_threads_x": Annotation.THREAD_X, "gpu_threads_y": Annotation.THREAD_Y, "gpu_threads_z": Annotation.THREAD_Z,
    "gpu_vthreads": Annotation.VTHREAD,
}  # fmt: skip
_BOUND = frozenset(_EXTENTS.values())


def is_bound(nest: Nest) -> bool:
    """Whether a statement runs on a GPU."""
    return any(loop.annotation in _BOUND for loop in nest.source.loops)


def is_shared(nest: Nest) -> bool:
    """Whether an attached statement's result is in shared memory: by its name, or as no thread loop is around it."""
    outer = nest.source.loops[: nest.depth - nest.source.own]
    return nest.source.op.name.endswith(SHARED_SUFFIX) or not any(loop.annotation in THREAD_LOOPS for loop in outer)


def shared_tensors(nests: Sequence[Nest]) -> frozenset[Tensor]:
    """The results in the shared memory of a block."""
    inside = (nest for nest in nests if nest.source.attached and is_bound(nest) and is_shared(nest))
    return frozenset(write.tensor for nest in inside for write in nest.source.writes)


def gpu_columns(row: int, nests: Sequence[Nest], facts: GpuFacts) -> Columns:
    """Columns of statement `row` of a program: the launch of its kernel, a root stage with the stages inside its loops,
    and the shared memory and registers of the buffers inside.
    """
    nest = nests[row]
    if not is_bound(nest):
        return
    yield "is_gpu", 1.0
    root = nest.source.loops[0].key[0]
    kernel = [other for other in nests if other.source.loops and other.source.loops[0].key[0] == root]
    sources = [other.source for other in kernel]
    product = product_of(sources)
    for name, annotation in _EXTENTS.items():
        # A product on tensor cores has no loop over threads: a warp executes each instruction together.
        lanes = nest.source is product and annotation is Annotation.THREAD_X
        yield name, np.full(nest.count, float(WARP)) if lanes else _extent(nest, annotation)
    yield "gpu_tensor", float(nest.source is product)
    shared, local = np.zeros(nest.count), np.zeros(nest.count)
    for other in kernel:
        if not other.source.attached:
            continue
        if other.source is product:
            local = local + thread_bytes(product, facts, nest.count)
        elif is_shared(other):
            shared = shared + _buffer_bytes(other) * copies_of(other.source, sources, nest.count)
        else:
            local = local + _buffer_bytes(other) * _extent(other, Annotation.VTHREAD)
    yield "gpu_shared_bytes", shared
    yield "gpu_local_bytes", local
    per_word, other_registers = _REGISTERS_PER_WORD, _OTHER_REGISTERS
    if product is not None:
        per_word, other_registers = 1.0, _OTHER_TENSOR_REGISTERS
    yield "gpu_registers", other_registers + per_word * local / WORD


def _extent(nest: Nest, annotation: Annotation) -> Floats:
    """(B,): the product of the extents of the loops with this annotation; 1 if there is none.

    An attached stage runs on the threads of the stage around it, so blocks and threads count for the innermost stage
    that has them only. Virtual threads are loops of one thread, so those of all stages multiply.
    """
    bound = [index for index, loop in enumerate(nest.source.loops) if loop.annotation is annotation]
    if bound and annotation is not Annotation.VTHREAD:
        stage = nest.source.loops[bound[-1]].key[0]
        bound = [index for index in bound if nest.source.loops[index].key[0] == stage]
    return np.asarray(nest.extents[bound].prod(axis=0))


def _buffer_bytes(nest: Nest) -> Floats:
    size = np.full(nest.count, float(sum(item_bytes(write.tensor.dtype) for write in nest.source.writes)))
    for extent in nest.source.write.shape:
        size = size * extent
    return size
