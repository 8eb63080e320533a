"""Reads the regions that front ends keep as their own data. A machine comes here only for one that has no symbolic
graph, or none for the shapes at hand.
"""

from collections.abc import Callable, Mapping

from retune.compiler.errors import ArtifactError
from retune.compiler.frontend.onnx.region import OnnxRegion
from retune.compiler.graph.region import Region

_READERS: Mapping[str, Callable[[bytes], Region]] = {OnnxRegion.kind: OnnxRegion.from_bytes}


def region_from_bytes(kind: str, data: bytes) -> Region:
    """The region of this kind that the bytes were made of. Raises: ArtifactError when there is none."""
    if kind not in _READERS:
        raise ArtifactError(f"a region is of the kind {kind!r}; this Retune knows {', '.join(_READERS)}")
    return _READERS[kind](data)
