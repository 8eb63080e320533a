"""In: a region as data, see `retune.compiler.graph.region`. Out: the region. Always: data only; damage is refused."""

from collections.abc import Callable, Mapping

from retune.compiler.errors import ArtifactError
from retune.compiler.frontend.onnx.region import KIND, OnnxRegion
from retune.compiler.graph.region import GraphRegion, Region

_READERS: Mapping[str, Callable[[bytes], Region]] = {"graph": GraphRegion.from_bytes, KIND: OnnxRegion.from_bytes}


def region_from_bytes(kind: str, data: bytes) -> Region:
    """The region of this kind that the bytes were made of. Raises: ArtifactError when there is none."""
    if kind not in _READERS:
        raise ArtifactError(f"a region is of the kind {kind!r}; this Retune knows {', '.join(_READERS)}")
    return _READERS[kind](data)
