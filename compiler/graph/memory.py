"""In: sizes and life spans of buffers. Out: their offsets in one arena.

Always: two buffers that live at the same step never overlap.

Step numbers are positions in the order of kernel calls; a buffer lives from the call that writes it to the last
call that reads it, both included. Big buffers are placed first, each into the tightest gap that its life span leaves.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.errors import DefinitionError

ALIGNMENT = 64
"""Offsets are multiples of this many bytes."""


@dataclass(frozen=True, slots=True)
class Request:
    """A buffer of `nbytes` bytes that lives from step `first` to step `last`, both included."""

    nbytes: int
    first: int
    last: int

    def overlaps(self, other: "Request") -> bool:
        """Whether there is a step at which both live."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """`offsets` in bytes, one per request; `arena_bytes` in all; `lower_bound` is what no plan can go below."""

    offsets: tuple[int, ...]
    arena_bytes: int
    lower_bound: int


def plan_memory(requests: Sequence[Request], alignment: int = ALIGNMENT) -> MemoryPlan:
    """Place every request in one arena.

    Raises: DefinitionError when a request has a negative size or ends before it starts.
    """
    for request in requests:
        if request.nbytes < 0 or request.last < request.first:
            raise DefinitionError(f"{request} is no buffer: its size or its life span is negative")
    by_size = sorted(range(len(requests)), key=lambda i: (-requests[i].nbytes, requests[i].first, i))
    offsets: dict[int, int] = {}
    for index in by_size:
        request = requests[index]
        taken = sorted(
            (offset, offset + _aligned(requests[other].nbytes, alignment))
            for other, offset in offsets.items()
            if request.overlaps(requests[other])
        )
        offsets[index] = _tightest_gap(taken, _aligned(request.nbytes, alignment))
    ends = [offset + _aligned(requests[index].nbytes, alignment) for index, offset in offsets.items()]
    return MemoryPlan(
        offsets=tuple(offsets[index] for index in range(len(requests))),
        arena_bytes=max(ends, default=0),
        lower_bound=_peak(requests, alignment),
    )


def _aligned(nbytes: int, alignment: int) -> int:
    return -(-nbytes // alignment) * alignment


def _tightest_gap(taken: Sequence[tuple[int, int]], nbytes: int) -> int:
    """The start of the smallest gap of at least `nbytes` between the sorted spans `taken`, else the end of them all."""
    best: tuple[int, int] | None = None
    end = 0
    for start, stop in taken:
        gap = start - end
        if gap >= nbytes and (best is None or gap < best[0]):
            best = (gap, end)
        end = max(end, stop)
    return end if best is None else best[1]


def _peak(requests: Sequence[Request], alignment: int) -> int:
    """The most bytes that live at one step; it is reached at the first step of some request."""
    return max(
        (
            sum(_aligned(other.nbytes, alignment) for other in requests if other.first <= step <= other.last)
            for step in {request.first for request in requests}
        ),
        default=0,
    )
