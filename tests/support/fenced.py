"""Kernels called on arrays between fences that nothing may touch."""

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from retune.compiler.runtime.artifact import KernelArtifact
from retune.compiler.runtime.buffers import FencedArray
from retune.compiler.runtime.loader import load_kernels


def fenced(artifact: KernelArtifact, values: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """What the kernel writes into its last array; `values` come first, packed where it wants them so."""
    fences = [FencedArray(spec.buffer_shape, spec.dtype) for spec in artifact.args]
    for fence, spec, value in zip(fences, artifact.args, values, strict=False):
        flat = value.reshape(-1) if spec.packing is None else spec.packing.pack(value.astype(spec.dtype))
        fence.array.reshape(-1)[:] = flat
    load_kernels([artifact])[artifact.name].bind([fence.array for fence in fences], 1)()
    assert [fence.damage() for fence in fences] == [""] * len(fences)
    return fences[-1].array
