"""Compiled networks that the virtual machine runs on its own arrays."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from retune.compiler.core.errors import ArtifactError
from retune.compiler.runtime.artifact import ALIGNMENT, Array
from retune.compiler.runtime.buffers import aligned_copy
from retune.compiler.runtime.executor.network import CompiledNetwork
from retune.compiler.runtime.executor.plan import BufferKind, BufferSpec, Call, Plan
from retune.compiler.runtime.loader import load_kernels
from retune.compiler.runtime.sized_sequence import SizedSequence
from retune.compiler.vm.allocator import allocator
from retune.compiler.vm.library import VMLibrary
from retune.compiler.vm.plan_run import Note, PlanRun
from retune.compiler.vm.resources import Resources
from retune.compiler.vm.symbolic_plan import SymbolicPlan
from tests.support.doubling_network import SHAPE, doubling_network
from tests.support.ir_kernels import ELEMENTS, artifact


def _run_of(network: CompiledNetwork) -> PlanRun:
    resources = Resources(VMLibrary(), {}, allocator("pooled"), threads=1)
    return PlanRun(SymbolicPlan(network.plan), load_kernels(network.kernels), network.constants, {}, resources)


def test_outputs_in_new_arrays_are_those_of_the_network() -> None:
    run, x = _run_of(doubling_network()), aligned_copy(np.ones(SHAPE, np.float32))
    for _ in range(2):
        out, twice, flat = run([x])
        np.testing.assert_array_equal(out, 8 * x)
        np.testing.assert_array_equal(flat, 8 * x.reshape(-1))
        np.testing.assert_array_equal(twice.reshape(-1), 2 * np.arange(x.size, dtype=np.float32))


@pytest.mark.parametrize("number", [1, 7])
def test_an_output_that_kernels_would_write_beyond_is_refused(number: int) -> None:
    """Buffer 1 is an intermediate; 7 shows the first half of `out`, which the kernel writes as a whole."""
    network = doubling_network()
    half = BufferSpec("half", SHAPE[1:], "float32", BufferKind.OUTPUT, 3)
    plan = replace(network.plan, buffers=(*network.plan.buffers, half), outputs=(number,))
    with pytest.raises(ArtifactError, match=f"the output {plan.buffers[number].name} is not a whole buffer of its own"):
        _run_of(replace(network, plan=plan))


def test_a_kernel_behind_a_group_gets_the_workspace_that_the_group_enlarged(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = (BufferKind.INPUT, BufferKind.INTERMEDIATE, BufferKind.INTERMEDIATE, BufferKind.OUTPUT)
    offsets = (0, 0, ALIGNMENT * ELEMENTS, 0)
    buffers = tuple(
        BufferSpec(f"b{number}", (ELEMENTS,), "float32", kind, number, offset)
        for number, (kind, offset) in enumerate(zip(kinds, offsets, strict=True))
    )
    calls = (Call("kernel", (0, 1)), Call("group", (1, 2)), Call("kernel", (2, 3)))
    plan = Plan("net", buffers, calls, (0,), (3,), 2 * ALIGNMENT * ELEMENTS)
    resources = Resources(VMLibrary(), {}, allocator("pooled"), threads=1)

    def group(inputs: Sequence[Array]) -> Sequence[Array]:
        resources.workspace.address(1 << 20)
        return [inputs[0] + 1]

    passed, call = [], SizedSequence.__call__

    def note_workspace(sequence: SizedSequence, note: Note | None = None) -> None:
        passed.append((int(sequence.addresses[-1]), resources.workspace.address(0)))
        call(sequence, note)

    monkeypatch.setattr(SizedSequence, "__call__", note_workspace)
    kernels = load_kernels([replace(artifact("good"), workspace_bytes=ALIGNMENT)])
    run = PlanRun(SymbolicPlan(plan), kernels, {}, {"group": group}, resources)
    (out,) = run([aligned_copy(np.ones(ELEMENTS, np.float32))])
    np.testing.assert_array_equal(out, np.full(ELEMENTS, 6, np.float32))
    assert len(passed) == 2
    assert all(address == current for address, current in passed)
