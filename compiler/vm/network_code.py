"""In: a compiled network and the registers of its inputs. Out: instructions that run it.

Always: intermediates lie where the network's plan puts them, in one storage; every value is killed behind its last use.
"""

from collections.abc import Sequence

import numpy as np

from retune.compiler.executor.network import CompiledNetwork
from retune.compiler.executor.plan import BufferKind
from retune.compiler.vm.instructions import AllocTensor, ReshapeTensor
from retune.compiler.vm.primitives import KERNEL
from retune.compiler.vm.writer import FunctionWriter


def write_network(writer: FunctionWriter, network: CompiledNetwork, inputs: Sequence[int]) -> list[int]:
    """Append the network; the registers of its outputs, each of its own."""
    code = _NetworkCode(writer, network, inputs)
    code.calls()
    outputs = code.outputs()
    code.end()
    return outputs


class _NetworkCode:
    """One network while it is written: registers by number of the plan's buffer."""

    def __init__(self, writer: FunctionWriter, network: CompiledNetwork, inputs: Sequence[int]) -> None:
        self._writer = writer
        self._network = network
        self._plan = network.plan
        self._registers = dict(zip(self._plan.inputs, inputs, strict=True))
        self._own: dict[int, None] = {}
        self._numbers: dict[int, int] = {}
        self._arena: int | None = None
        self._last = self._last_calls()

    def calls(self) -> None:
        """Append all calls of kernels."""
        kernels = {kernel.name: kernel for kernel in self._network.kernels}
        for step, call in enumerate(self._plan.calls):
            count = len(kernels[call.kernel].inputs)
            registers = [self._root(self._plan.buffers[number].storage) for number in call.buffers]
            parts = [place for place, number in enumerate(call.buffers) if self._is_part(number)]
            views = {place: self._beginning(call.buffers[place]) for place in parts}
            registers = [views.get(place, register) for place, register in enumerate(registers)]
            primitive = self._writer.tables.primitive(call.kernel, {"kind": KERNEL})
            self._writer.invoke(primitive, registers[:count], registers[count:])
            self._writer.kill(*views.values())
            for root in dict.fromkeys(self._plan.buffers[number].storage for number in call.buffers):
                if self._last.get(root) == step:
                    self._writer.kill(self._registers[root])

    def outputs(self) -> list[int]:
        """Append views where outputs are other shapes of something; the registers of all outputs."""
        found = []
        for number in self._plan.outputs:
            spec = self._plan.buffers[number]
            source = self._root(spec.storage)
            found.append(source if spec.storage == number else self._beginning(number))
        kept = set(found)
        self._own = {register: None for register in self._own if register not in kept}
        return found

    def end(self) -> None:
        """Append what forgets everything but the outputs."""
        arena = () if self._arena is None else (self._arena,)
        self._writer.kill(*self._own, *self._numbers.values(), *arena)

    def _last_calls(self) -> dict[int, int]:
        """The last call that uses each intermediate."""
        last = {
            self._plan.buffers[number].storage: step
            for step, call in enumerate(self._plan.calls)
            for number in call.buffers
        }
        return {n: step for n, step in last.items() if self._plan.buffers[n].kind is BufferKind.INTERMEDIATE}

    def _is_part(self, number: int) -> bool:
        """Whether a buffer is only the first elements of the one that has its memory."""
        spec = self._plan.buffers[number]
        return spec.nbytes < self._plan.buffers[spec.storage].nbytes

    def _beginning(self, number: int) -> int:
        """A new register with a buffer as a view of the one that has its memory."""
        spec = self._plan.buffers[number]
        shape, view = self._writer.constant(np.array(spec.shape, np.int64)), self._writer.fresh()
        self._writer.emit(ReshapeTensor(self._root(spec.storage), shape, view))
        self._writer.kill(shape)
        return view

    def _root(self, number: int) -> int:
        """The register of a buffer that has memory of its own; made when it is first asked for."""
        if number in self._registers:
            return self._registers[number]
        spec = self._plan.buffers[number]
        if spec.kind is BufferKind.CONSTANT:
            register = self._writer.constant(self._network.constants[number])
            self._own[register] = None
        elif spec.kind is BufferKind.INTERMEDIATE:
            if self._arena is None:
                self._arena = self._writer.storage(self._plan.arena_bytes)
            register = self._tensor(self._arena, spec.offset, spec.dtype, spec.shape)
        else:
            storage = self._writer.storage(spec.nbytes, spec.dtype)
            register = self._tensor(storage, 0, spec.dtype, spec.shape)
            self._writer.kill(storage)
            self._own[register] = None
        self._registers[number] = register
        return register

    def _tensor(self, storage: int, offset: int, dtype: str, shape: tuple[int, ...]) -> int:
        if offset not in self._numbers:
            self._numbers[offset] = self._writer.number(offset)
        register = self._writer.fresh()
        self._writer.emit(AllocTensor(storage, self._numbers[offset], dtype, register, shape))
        return register
