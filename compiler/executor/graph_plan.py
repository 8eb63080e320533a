"""In: a `GraphJson`, or a compiled network. Out: the executor's plan of the one, the graph and parameters of the other.

Always: in a plan made of a graph, buffer numbers are the graph's entry numbers, and a storage id is one place in the
arena; in a graph made of a network, memory that is free again is used again, as far as storage ids can say it.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from retune.compiler.errors import ArtifactError
from retune.compiler.executor.graph_json import DEVICE, NOP, EntrySpec, GraphJson, Node, Source
from retune.compiler.executor.network import CompiledNetwork
from retune.compiler.executor.placement import FIRST_GPU, HOST
from retune.compiler.executor.plan import BufferKind, BufferSpec, Call, Plan
from retune.compiler.runtime.artifact import ALIGNMENT, Array, KernelArtifact


def plan_of(graph: GraphJson, name: str = "graph", on_gpu: Collection[str] = ()) -> Plan:
    """The plan that runs a graph which `verify` has accepted. Inputs and parameters are inputs of the plan. Functions
    `on_gpu` run on device 1 where their nodes do not name another one.

    Raises: ArtifactError when a node names a device by what is no number.
    """
    rows = graph.row_ptr
    offsets, arena = _places(graph)
    buffers: list[BufferSpec] = []
    calls = []
    for number, node in enumerate(graph.nodes):
        operands = tuple(rows[source.node] + source.index for source in node.inputs)
        for entry in range(rows[number], rows[number + 1]):
            spec = graph.entries[entry]
            kind, storage = BufferKind.INTERMEDIATE, entry
            if node.is_input:
                kind = BufferKind.INPUT
            elif node.function == NOP:
                storage = buffers[operands[0]].storage
                kind = buffers[storage].kind
            offset = offsets[spec.storage_id] if kind is BufferKind.INTERMEDIATE else 0
            label = node.name if node.num_outputs == 1 else f"{node.name}:{entry - rows[number]}"
            buffers.append(BufferSpec(label, spec.shape, spec.dtype, kind, storage, offset))
        if not node.is_input and node.function != NOP:
            device = _device_of(node, FIRST_GPU if node.function in on_gpu else HOST)
            calls.append(Call(node.function, (*operands, *range(rows[number], rows[number + 1])), node.name, device))
    inputs = tuple(rows[number] for number in graph.arg_nodes)
    outputs = tuple(rows[head.node] + head.index for head in graph.heads)
    return Plan(name, tuple(buffers), tuple(calls), inputs, outputs, arena)


def _device_of(node: Node, usual: int) -> int:
    told = node.attrs.get(DEVICE, str(usual))
    if not re.fullmatch(r"[0-9]{1,4}", told):
        raise ArtifactError(f"graph, node {node.name}: its device is {told!r:.40}, and must be a number such as 1")
    return int(told)


def _places(graph: GraphJson) -> tuple[dict[int, int], int]:
    """Where in the arena every storage id lies that is no input's, and how large the arena is."""
    rows = graph.row_ptr
    own = {graph.entries[rows[number]].storage_id for number in graph.arg_nodes}
    offsets: dict[int, int] = {}
    end = 0
    for storage, nbytes in graph.storage_bytes().items():
        if storage not in own:
            offsets[storage] = end
            end += -(-nbytes // ALIGNMENT) * ALIGNMENT
    return offsets, end


def graph_of(network: CompiledNetwork) -> tuple[GraphJson, dict[str, Array]]:
    """The graph of a network, and its constants by name, packed as its kernels want them. A node that computes or shows
    one output of the network has the output's name, so that a plan made of the graph has it again.

    Raises: ArtifactError when the network writes to a buffer twice, which a graph cannot say.
    """
    writer = _GraphWriter(network)
    graph = GraphJson(tuple(writer.nodes), tuple(writer.args), tuple(writer.heads), tuple(writer.entries))
    graph.verify()
    return graph, writer.params


@dataclass(slots=True)
class _GraphWriter:
    """A graph while it is written: `sources` says which node's output every buffer is."""

    network: CompiledNetwork
    nodes: list[Node] = field(default_factory=list)
    args: list[int] = field(default_factory=list)
    entries: list[EntrySpec] = field(default_factory=list)
    params: dict[str, Array] = field(default_factory=dict)
    heads: list[Source] = field(default_factory=list)
    sources: dict[int, Source] = field(default_factory=dict)
    _names: set[str] = field(default_factory=set)
    _reserved: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        plan = self.network.plan
        for number in (*plan.inputs, *plan.outputs):
            self._reserved.setdefault(plan.buffers[number].name, number)
        ids = storage_ids(plan)
        for number in (*plan.inputs, *sorted(self.network.constants)):
            self.sources[number] = self._node(Node(self._name(plan.buffers[number].name, number)), (number,), ids)
            self.args.append(self.sources[number].node)
        for number, array in self.network.constants.items():
            self.params[self.nodes[self.sources[number].node].name] = array
        kernels = {kernel.name: kernel for kernel in self.network.kernels}
        for call in plan.calls:
            self._call(call, kernels[call.kernel], ids)
        self.heads = [self._read(number, ids) for number in plan.outputs]

    def _call(self, call: Call, kernel: KernelArtifact, ids: Sequence[int]) -> None:
        flags = [spec.is_output for spec in kernel.args]
        if flags != sorted(flags):
            raise ArtifactError(f"kernel {kernel.name}: a graph wants its outputs after its inputs")
        count = len(kernel.inputs)
        written = call.buffers[count:]
        if any(number in self.sources for number in written):
            raise ArtifactError(f"call of {call.kernel}: a buffer is written twice, which a graph cannot say")
        inputs = tuple(self._read(number, ids) for number in call.buffers[:count])
        attrs = {"label": call.label} if call.label else {}
        attrs |= {DEVICE: str(call.device)} if call.device else {}
        shown = len(written) == 1 and written[0] in self.network.plan.outputs
        name = self._name(self.network.plan.buffers[written[0]].name, written[0]) if shown else self._name(call.kernel)
        node = Node(name, call.kernel, inputs, len(written), attrs)
        first = self._node(node, written, ids)
        for place, number in enumerate(written):
            self.sources[number] = Source(first.node, place)

    def _read(self, number: int, ids: Sequence[int]) -> Source:
        """Where a buffer comes from; a view becomes a node of its own."""
        if number in self.sources:
            return self.sources[number]
        spec = self.network.plan.buffers[number]
        if spec.storage not in self.sources:
            raise ArtifactError(f"buffer {spec.name} is read before it is written")
        node = Node(self._name(spec.name, number), NOP, (self.sources[spec.storage],))
        self.sources[number] = self._node(node, (number,), ids)
        return self.sources[number]

    def _node(self, node: Node, written: Sequence[int], ids: Sequence[int]) -> Source:
        buffers = self.network.plan.buffers
        self.nodes.append(node)
        self.entries += [EntrySpec(buffers[n].shape, buffers[n].dtype, ids[n]) for n in written]
        return Source(len(self.nodes) - 1)

    def _name(self, wanted: str, number: int = -1) -> str:
        """The name, with a number where it is taken, or is that of another input or output than `number`."""
        name, serial = wanted, 0
        while name in self._names or self._reserved.get(name, number) != number:
            serial += 1
            name = f"{wanted}.{serial}"
        self._names.add(name)
        return name


def storage_ids(plan: Plan) -> tuple[int, ...]:
    """A storage id for every buffer of a plan: inputs, constants and outputs have memory of their own, intermediates
    take what is free, the tightest first, and nothing is written where the same call still reads.
    """
    last = _last_steps(plan)
    ids: dict[int, int] = {}
    sizes: list[int] = []
    free: list[int] = []

    def give(number: int, storage: int | None = None) -> None:
        if storage is None:
            storage = len(sizes)
            sizes.append(0)
        ids[number] = storage
        sizes[storage] = max(sizes[storage], plan.buffers[number].nbytes)

    for number, spec in enumerate(plan.buffers):
        if spec.storage == number and spec.kind is not BufferKind.INTERMEDIATE:
            give(number)
    for step, call in enumerate(plan.calls):
        roots = list(dict.fromkeys(plan.buffers[number].storage for number in call.buffers))
        for root in roots:
            if root not in ids:
                place = _best(free, sizes, plan.buffers[root].nbytes)
                if place is not None:
                    free.remove(place)
                give(root, place)
        for root in roots:
            if plan.buffers[root].kind is BufferKind.INTERMEDIATE and last[root] == step:
                free.append(ids[root])
    for number, spec in enumerate(plan.buffers):  # what nothing uses
        if spec.storage not in ids:
            give(spec.storage)
        ids.setdefault(number, ids[spec.storage])
    return tuple(ids[number] for number in range(len(plan.buffers)))


def _last_steps(plan: Plan) -> dict[int, int]:
    """The last call that uses the memory of every buffer; memory of outputs is used to the end."""
    last = {plan.buffers[number].storage: step for step, call in enumerate(plan.calls) for number in call.buffers}
    return last | {plan.buffers[number].storage: len(plan.calls) for number in plan.outputs}


def _best(free: Sequence[int], sizes: Sequence[int], nbytes: int) -> int | None:
    """The tightest free memory that is large enough, else the largest, which then grows."""
    fitting = [storage for storage in free if sizes[storage] >= nbytes]
    if fitting:
        return min(fitting, key=lambda storage: sizes[storage])
    return max(free, key=lambda storage: sizes[storage], default=None)
