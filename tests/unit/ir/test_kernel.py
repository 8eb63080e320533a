"""Where the shared buffers of a block lie: one after the other, aligned, with nothing between."""

from hypothesis import given
from hypothesis import strategies as st

from retune.compiler.core.gpu_facts import STATIC_SHARED
from retune.compiler.ir.alignment import start_alignment
from retune.compiler.ir.expr import Buffer
from retune.compiler.ir.kernel import Kernel
from retune.compiler.ir.stmt import Allocate, LoopFunction, Stmt, block

DTYPES = ("bool", "int8", "float16", "float32", "int64", "float64")


def kernel_with(*buffers: Buffer) -> Kernel:
    """One that allocates buffers."""
    body: Stmt = block()
    for buffer in buffers:
        body = Allocate(buffer, body)
    return Kernel(LoopFunction("k", (), (), body, 0), (1, 1, 1), (32, 1, 1))


@given(st.lists(st.tuples(st.integers(1, 99), st.sampled_from(DTYPES), st.sampled_from(("shared", "local")))))
def test_shared_buffers_lie_side_by_side_and_aligned(drawn: list[tuple[int, str, str]]) -> None:
    buffers = [Buffer(f"b{number}", (size,), dtype, scope) for number, (size, dtype, scope) in enumerate(drawn)]
    kernel = kernel_with(*buffers)
    places = kernel.shared_offsets
    assert set(places) == {buffer for buffer in buffers if buffer.scope == "shared"}
    end = 0
    for buffer, start in sorted(places.items(), key=lambda pair: pair[1]):
        assert start == end
        assert start % start_alignment(buffer) == 0
        end += buffer.nbytes
    assert end == kernel.bytes_of("shared")


def test_a_launch_gives_what_goes_beyond_the_memory_of_every_block() -> None:
    """In whole vectors of 16 bytes."""
    for size, given_bytes in ((STATIC_SHARED, 0), (STATIC_SHARED + 1, STATIC_SHARED + 16)):
        assert kernel_with(Buffer("s", (size,), "int8", "shared")).dynamic_shared == given_bytes
