"""Places buffers of known sizes and life spans in one arena; two that live at the same step never overlap.

Steps are positions in the order of kernel calls; a buffer lives from the call that writes it to the last call that
reads it, both included. Big buffers are placed first, each into the tightest gap of its life span.
"""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from retune.compiler.core.errors import DefinitionError
from retune.compiler.ir.dims import estimate, same

ALIGNMENT = 64
"""Offsets are multiples of this many bytes."""


@dataclass(frozen=True, slots=True)
class Request:
    """A buffer of `nbytes` bytes that lives from step `first` to step `last`, both included."""

    nbytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """`offsets` in bytes, one per request; `arena_bytes` in all."""

    offsets: tuple[int, ...]
    arena_bytes: int


def plan_memory(requests: Sequence[Request]) -> MemoryPlan:
    """Place every request in one arena.

    Raises: DefinitionError when a request has a negative size or ends before it starts.
    """
    for request in requests:
        if request.nbytes < 0 or request.last < request.first:
            raise DefinitionError(f"{request} is no buffer: its size or its life span is negative")
    # Offline dynamic storage allocation is NP-hard. This is the greedy-by-size heuristic with best fit: large buffers
    # are placed first, because small ones fit the gaps between them.
    by_size = sorted(range(len(requests)), key=lambda i: (-requests[i].nbytes, requests[i].first, i))
    offsets: dict[int, int] = {}
    # Spans shorter than 2^k steps by their first steps: those alive at a step began less than 2^k steps before.
    placed: defaultdict[int, list[tuple[int, int, int, int]]] = defaultdict(list)
    for index in by_size:
        request = requests[index]
        taken = []
        for bits, spans in placed.items():
            near = bisect_left(spans, (request.first - 2**bits + 1,)), bisect_left(spans, (request.last + 1,))
            taken += [(start, stop) for _, last, start, stop in spans[slice(*near)] if last >= request.first]
        nbytes = _align(request.nbytes)
        start = offsets[index] = _tightest_gap(sorted(taken), nbytes)
        span = (request.first, request.last, start, start + nbytes)
        insort(placed[(request.last - request.first).bit_length()], span)
    ends = [offset + _align(requests[index].nbytes) for index, offset in offsets.items()]
    return MemoryPlan(tuple(offsets[index] for index in range(len(requests))), max(ends, default=0))


def _align(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _tightest_gap(spans: Sequence[tuple[int, int]], nbytes: int) -> int:
    """The start of the smallest gap of at least `nbytes` between the sorted `spans`, else the end of them all."""
    # Best fit: the smallest sufficient gap leaves the larger ones for larger requests.
    best: tuple[int, int] | None = None
    end = 0
    for start, stop in spans:
        gap = start - end
        if gap >= nbytes and (best is None or gap < best[0]):
            best = (gap, end)
        end = max(end, stop)
    return end if best is None else best[1]


def share_slots(requests: Sequence[Request]) -> tuple[int, ...]:
    """A slot for each request, whose bytes may be symbolic: those of one slot never live at the same step."""
    order = sorted(range(len(requests)), key=lambda index: (requests[index].first, index))
    chosen: dict[int, int] = {}
    ends: list[int] = []
    sizes: list[int] = []
    # Linear scan in the order of first steps.
    for index in order:
        request = requests[index]
        free = [slot for slot, end in enumerate(ends) if end < request.first]
        slot = min(free, key=lambda slot: _misfit(sizes[slot], request.nbytes), default=len(ends))
        if slot == len(ends):
            ends.append(0)
            sizes.append(request.nbytes)
        elif estimate(sizes[slot]) < estimate(request.nbytes):
            sizes[slot] = request.nbytes
        ends[slot] = request.last
        chosen[index] = slot
    return tuple(chosen[index] for index in range(len(requests)))


def _misfit(size: int, nbytes: int) -> tuple[bool, bool, int]:
    """Grows with the memory that a buffer wastes in a slot, or adds to it; least for a slot of the same size always."""
    difference = estimate(size) - estimate(nbytes)
    return not same(size, nbytes), difference < 0, abs(difference)
