"""Prints the plan of a network of known shapes as TVM's instructions would run it.

load_const %1 constant[0]
alloc_storage %arena 3072
alloc_tensor %2 %arena 0 [5, 24] float32
invoke_packed dense_k24_5x24 (in: %0, %1, out: %2)
reshape_tensor %3 %2 [10, 12]
ret %3
"""

from collections.abc import Iterator, Mapping, Sequence

from retune.compiler.executor.plan import BufferKind, BufferSpec, Plan
from retune.compiler.runtime.artifact import KernelArtifact


def plan_lines(plan: Plan, kernels: Mapping[str, KernelArtifact], constants: Mapping[int, int]) -> Iterator[str]:
    """The lines. `constants` are numbers of the executable's constants by numbers of the plan's buffers."""
    known = set(plan.inputs)
    if plan.arena_bytes:
        yield f"alloc_storage %arena {plan.arena_bytes}"
    for call in plan.calls:
        for number in call.buffers:
            yield from _definition(plan, number, constants, known)
        kernel = kernels.get(call.kernel)
        count = len(call.buffers) if kernel is None else len(kernel.inputs)
        inputs, outputs = _names(call.buffers[:count]), _names(call.buffers[count:])
        yield f"invoke_packed {call.kernel} (in: {inputs}, out: {outputs})"
    for number in plan.outputs:
        yield from _definition(plan, number, constants, known)
    yield f"ret {_names(plan.outputs)}"


def _definition(plan: Plan, number: int, constants: Mapping[int, int], known: set[int]) -> Iterator[str]:
    """What makes a buffer, where it is used for the first time."""
    if number in known:
        return
    known.add(number)
    spec: BufferSpec = plan.buffers[number]
    if spec.storage != number:
        yield from _definition(plan, spec.storage, constants, known)
        yield f"reshape_tensor %{number} %{spec.storage} {list(spec.shape)}"
    elif spec.kind is BufferKind.CONSTANT:
        yield f"load_const %{number} constant[{constants.get(number, '?')}]"
    elif spec.kind is BufferKind.INTERMEDIATE:
        yield f"alloc_tensor %{number} %arena {spec.offset} {list(spec.shape)} {spec.dtype}"
    else:
        yield f"alloc_storage %storage_{number} {spec.nbytes}"
        yield f"alloc_tensor %{number} %storage_{number} 0 {list(spec.shape)} {spec.dtype}"


def _names(numbers: Sequence[int]) -> str:
    return ", ".join(f"%{number}" for number in numbers)
