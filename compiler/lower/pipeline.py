"""In: a concrete state. Out: the loop IR that code is generated from.

Always: the passes of a target are one tuple, in order.
"""

from compiler.ir.stmt import LoopFunction
from compiler.ir.verify import verify
from compiler.lower.build_loops import build_loops
from compiler.lower.passes import (
    LegalizeLoops,
    LoopPass,
    PackConstants,
    PartitionLoops,
    RegisterTiles,
    UnrollLocals,
    VectorReductions,
)
from compiler.schedule.state import State
from compiler.target import HardwareParams


def cpu_passes(hardware: HardwareParams) -> tuple[LoopPass, ...]:
    """The passes of a CPU with the given vector width."""
    width = hardware.vector_unit_bytes
    return (
        PackConstants(),
        PartitionLoops(),
        LegalizeLoops(),
        VectorReductions(width),
        RegisterTiles(width),
        UnrollLocals(width),
    )


def lower(state: State, name: str, hardware: HardwareParams, check: bool = False) -> LoopFunction:
    """The kernel `name` of a concrete state, ready for code generation; `check` verifies it after every pass.

    Raises: ScheduleError, LoweringError.
    """
    function = build_loops(state, name)
    if check:
        verify(function, "build-loops")
    for loop_pass in cpu_passes(hardware):
        function = loop_pass.apply(function)
        if check:
            verify(function, loop_pass.name)
    return function
