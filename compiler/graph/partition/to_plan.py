"""Makes the executor's plan of a partitioned graph and its kernels, and packs constants for the kernels.

One buffer per value with memory of its own; intermediates share one arena, aliases are views.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from retune.compiler.core.errors import LoweringError
from retune.compiler.core.packing import Packing
from retune.compiler.graph.ir import Graph
from retune.compiler.graph.partition.memoize import memoize
from retune.compiler.graph.partition.memory_plan import Request, plan_memory, share_slots
from retune.compiler.graph.partition.partition import FusedCall, Partition
from retune.compiler.runtime.artifact import ArgSpec, Array, KernelArtifact
from retune.compiler.runtime.buffers import aligned_array, constant_array, freeze
from retune.compiler.runtime.executor.placement import FIRST_GPU
from retune.compiler.runtime.executor.plan import BufferKind, BufferSpec, Call, Plan


def to_plan(
    graph: Graph, cut: Partition, kernels: Mapping[str, KernelArtifact], *, release: bool = False
) -> tuple[Plan, dict[int, Array]]:
    """The plan of `graph`, and the constants by buffer number, packed as their kernels require. With `release` the
    graph loses each constant once it is packed.

    Raises: LoweringError when a kernel wants another layout of a value that is not a constant.
    """
    table, calls, outputs = _lay_out(graph, cut, kernels, release=release)
    offsets, arena = _plan_arena(table, calls)
    buffers = tuple(
        BufferSpec(spec.name, spec.shape, spec.dtype, spec.kind, spec.storage, offsets.get(spec.storage, 0))
        for spec in table.buffers
    )
    plan = Plan(graph.name, buffers, tuple(calls), tuple(range(len(graph.inputs))), outputs, arena)
    return plan, table.constants


def to_symbolic_plan(
    graph: Graph, cut: Partition, kernels: Mapping[str, KernelArtifact]
) -> tuple[Plan, tuple[int, ...], dict[int, Array]]:
    """As `to_plan`, for a graph with symbolic shapes: a plan without offsets, the number of each buffer's slot in the
    arena (-1 if it is elsewhere), and the constants. Buffers of one slot never live at the same step; slots lie
    side by side, each as large as the largest of its buffers. Calls without a kernel pass all values but constants.
    """
    table, calls, outputs = _lay_out(graph, cut, kernels)
    lives = _lives(table, calls)
    slots = share_slots([Request(table.buffers[number].nbytes, *steps) for number, steps in lives.items()])
    slot_of = dict(zip(lives, slots, strict=True))
    inputs = tuple(range(len(graph.inputs)))
    plan = Plan(graph.name, tuple(table.buffers), tuple(calls), inputs, outputs, 0)
    return plan, tuple(slot_of.get(spec.storage, -1) for spec in table.buffers), table.constants


def _lay_out(
    graph: Graph, cut: Partition, kernels: Mapping[str, KernelArtifact], *, release: bool = False
) -> tuple["_Table", list[Call], tuple[int, ...]]:
    """The buffers, the calls, and the buffers of the outputs. Raises: as `to_plan`."""
    table = _Table(graph, cut)
    if release:
        read = (*graph.outputs, *(name for call in cut.kernels for name in call.inputs))
        table.unpacked = Counter(map(table.root, read))
    for value in graph.inputs:
        table.own(value.name)
    calls = []
    for call in cut.kernels:
        kernel = kernels.get(call.name)
        device = 0 if kernel is None or kernel.device is None else FIRST_GPU
        calls.append(Call(call.name, tuple(_arguments(table, call, kernel)), " + ".join(call.nodes), device))
    return table, calls, tuple(table.output(name) for name in graph.outputs)


def _arguments(table: "_Table", call: FusedCall, kernel: KernelArtifact | None) -> list[int]:
    values = (*call.inputs, *call.outputs)
    if kernel is None:
        return [table.view(name) for name in values if name not in table.graph.constants]
    return [table.argument(name, spec) for name, spec in zip(values, kernel.args, strict=True)]


@dataclass(slots=True)
class _Table:
    """Buffers, numbered in the order of first use."""

    graph: Graph
    cut: Partition
    buffers: list[BufferSpec] = field(default_factory=list)
    constants: dict[int, Array] = field(default_factory=dict)
    unpacked: Counter[str] = field(default_factory=Counter)
    """Number of remaining reads of constants that may be released."""
    _numbers: dict[tuple[str, Packing | None], int] = field(default_factory=dict)
    _visible: frozenset[str] = field(init=False)
    _fed: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self._fed = frozenset(value.name for value in self.graph.inputs)
        self._visible = frozenset(self.root(name) for name in self.graph.outputs)

    def root(self, name: str) -> str:
        """The value whose memory `name` shares."""
        # A reshape of a slice is an alias of an alias; the chain is acyclic, since each is made of an earlier value.
        while name in self.cut.aliases:
            name = self.cut.aliases[name]
        return name

    def argument(self, name: str, spec: ArgSpec) -> int:
        """The buffer that a kernel reads or writes for value `name`."""
        root = self.root(name)
        if root in self.graph.constants:
            return self._constant(root, spec.packing)
        if spec.packing is not None:
            raise LoweringError(f"a kernel wants {name} packed, but it is no constant")
        number = self.own(root)
        return number if self.graph.values[root].size == spec.size else self._beginning(name, number)

    def own(self, name: str) -> int:
        """The buffer of a value that is computed or fed."""
        key = (name, None)
        if key not in self._numbers:
            value = self.graph.values[name]
            made = BufferKind.OUTPUT if name in self._visible else BufferKind.INTERMEDIATE
            kind = BufferKind.INPUT if name in self._fed else made
            self._numbers[key] = self._add(name, value.shape, value.dtype, kind)
        return self._numbers[key]

    def output(self, name: str) -> int:
        """The buffer of output `name`, a view if the value is an alias."""
        root = self.root(name)
        number = self._constant(root, None) if root in self.graph.constants else self.own(root)
        if root == name:
            return number
        value = self.graph.values[name]
        return self._add(name, value.shape, value.dtype, self.buffers[number].kind, number)

    def view(self, name: str) -> int:
        """The buffer of a value in its own shape."""
        root = self.root(name)
        return self.own(root) if root == name else self._beginning(name, self.own(root))

    def _beginning(self, name: str, number: int) -> int:
        """A view of the first elements of a buffer, in the shape of value `name`."""
        key = (name, None)
        if key not in self._numbers:
            value, whole = self.graph.values[name], self.buffers[number]
            self._numbers[key] = self._add(name, value.shape, value.dtype, whole.kind, number)
        return self._numbers[key]

    def _constant(self, name: str, packing: Packing | None) -> int:
        key = (name, packing)
        if key not in self._numbers:
            array: Array = self.graph.constants[name]
            packed = memoize(("plan", packing), [array], lambda: _pack_constant(array, packing))
            number = self._add(name, packed.shape, packed.dtype.name, BufferKind.CONSTANT)
            self._numbers[key] = number
            self.constants[number] = packed
        self.unpacked[name] -= 1
        if self.unpacked[name] == 0:
            del self.graph.constants[name]
        return self._numbers[key]

    def _add(self, name: str, shape: tuple[int, ...], dtype: str, kind: BufferKind, storage: int | None = None) -> int:
        number = len(self.buffers)
        self.buffers.append(BufferSpec(name, shape, dtype, kind, number if storage is None else storage))
        return number


def _pack_constant(array: Array, packing: Packing | None) -> Array:
    if packing is None:
        return constant_array(array)
    # Users may give parameters in the byte order of another machine.
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    return freeze(packing.pack(native, aligned_array((packing.size,), array.dtype.name)))


def _plan_arena(table: _Table, calls: list[Call]) -> tuple[dict[int, int], int]:
    """Arena offsets of the intermediates by buffer number, and the arena's size."""
    lives = _lives(table, calls)
    memory = plan_memory([Request(table.buffers[number].nbytes, *steps) for number, steps in lives.items()])
    return dict(zip(lives, memory.offsets, strict=True)), memory.arena_bytes


def _lives(table: _Table, calls: list[Call]) -> dict[int, tuple[int, int]]:
    """The first and the last call that uses each intermediate, by buffer number."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for step, call in enumerate(calls):
        for number in call.buffers:
            if table.buffers[number].kind is BufferKind.INTERMEDIATE:
                root = table.buffers[number].storage
                first.setdefault(root, step)
                last[root] = step
    # Live ranges by first and last call: a buffer may share memory from the call after its last reader on.
    return {number: (first[number], last[number]) for number in sorted(first)}
