"""Exports a compiled network as a graph in the JSON form of TVM's graph executor, see `graph_import`.

Free memory is reused, as far as storage ids can express it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from retune.compiler.core.errors import ArtifactError
from retune.compiler.runtime.artifact import Array, KernelArtifact
from retune.compiler.runtime.executor.graph_import import CPU, DEVICE, GPU, NOP
from retune.compiler.runtime.executor.network import CompiledNetwork
from retune.compiler.runtime.executor.plan import BufferKind, Call, Plan


def export_graph(network: CompiledNetwork) -> tuple[str, dict[str, Array]]:
    """The JSON text of a network, and its constants by name, packed for its kernels. A node that computes or views one
    output of the network has the output's name, so that a plan of the graph has it again.

    Raises: ArtifactError when the network writes to a buffer twice, which a graph cannot express.
    """
    writer = _GraphWriter(network)
    return writer.text(), writer.params


@dataclass(slots=True)
class _GraphWriter:
    """A graph under construction: `sources` has the node and output of every buffer."""

    network: CompiledNetwork
    rows: list[dict[str, object]] = field(default_factory=list)
    args: list[int] = field(default_factory=list)
    entries: list[int] = field(default_factory=list)
    devices: list[int] = field(default_factory=list)
    """The kind of device of every entry."""
    counts: list[int] = field(default_factory=list)
    """The number of outputs of every node."""
    params: dict[str, Array] = field(default_factory=dict)
    sources: dict[int, tuple[int, int]] = field(default_factory=dict)
    _names: set[str] = field(default_factory=set)
    _reserved: dict[str, int] = field(default_factory=dict)

    def text(self) -> str:
        plan = self.network.plan
        for number in (*plan.inputs, *plan.outputs):
            self._reserved.setdefault(plan.buffers[number].name, number)
        for number in (*plan.inputs, *sorted(self.network.constants)):
            name = self._name(plan.buffers[number].name, number)
            self.args.append(self._node({"op": "null", "name": name, "inputs": []}, (number,)))
            if number in self.network.constants:
                self.params[name] = self.network.constants[number]
        kernels = {kernel.name: kernel for kernel in self.network.kernels}
        for call in plan.calls:
            self._call(call, kernels[call.kernel])
        heads = [self._read(number) for number in plan.outputs]
        ids, buffers = storage_ids(plan), [plan.buffers[number] for number in self.entries]
        attrs = {
            "dltype": ["list_str", [spec.dtype for spec in buffers]],
            "device_index": ["list_int", self.devices],
            "storage_id": ["list_int", [ids[number] for number in self.entries]],
            "shape": ["list_shape", [list(spec.shape) for spec in buffers]],
        }
        data = {"nodes": self.rows, "arg_nodes": self.args, "heads": heads, "attrs": attrs}
        return json.dumps({**data, "node_row_ptr": list(accumulate(self.counts, initial=0))}, indent=1)

    def _call(self, call: Call, kernel: KernelArtifact) -> None:
        flags = [spec.is_output for spec in kernel.args]
        # False sorts before True: inputs first.
        if flags != sorted(flags):
            raise ArtifactError(f"kernel {kernel.name}: a graph wants its outputs after its inputs")
        count = len(kernel.inputs)
        written = call.buffers[count:]
        if any(number in self.sources for number in written):
            raise ArtifactError(f"call of {call.kernel}: a buffer is written twice, which a graph cannot say")
        inputs = [self._read(number) for number in call.buffers[:count]]
        attrs = {"label": call.label} if call.label else {}
        attrs |= {DEVICE: str(call.device)} if call.device else {}
        is_output = len(written) == 1 and written[0] in self.network.plan.outputs
        spec = self.network.plan.buffers[written[0]]
        name = self._name(spec.name, written[0]) if is_output else self._name(call.kernel)
        self._node(_function_row(name, call.kernel, inputs, len(written), attrs), written, GPU if call.device else CPU)

    def _read(self, number: int) -> list[int]:
        """The node and output of a buffer, as a row; a view becomes a node."""
        if number not in self.sources:
            spec = self.network.plan.buffers[number]
            if spec.storage not in self.sources:
                raise ArtifactError(f"buffer {spec.name} is read before it is written")
            shown = self._read(spec.storage)
            self._node(_function_row(self._name(spec.name, number), NOP, [shown], 1, {}), (number,))
        return [*self.sources[number], 0]

    def _node(self, row: dict[str, object], written: Sequence[int], device: int = CPU) -> int:
        """Add a node that writes the buffers `written`; return its number."""
        self.rows.append(row)
        self.entries += written
        self.devices += [device] * len(written)
        self.counts.append(len(written))
        node = len(self.rows) - 1
        self.sources |= {number: (node, index) for index, number in enumerate(written)}
        return node

    def _name(self, wanted: str, number: int = -1) -> str:
        """`wanted`, numbered if it is taken, or belongs to another input or output than `number`."""
        name, serial = wanted, 0
        while name in self._names or self._reserved.get(name, number) != number:
            serial += 1
            name = f"{wanted}.{serial}"
        self._names.add(name)
        return name


def _function_row(
    name: str, function: str, inputs: list[list[int]], outputs: int, attrs: dict[str, str]
) -> dict[str, object]:
    counts = {"num_outputs": str(outputs), "num_inputs": str(len(inputs)), "flatten_data": "0", "func_name": function}
    return {"op": "tvm_op", "name": name, "attrs": counts | attrs, "inputs": inputs}


def storage_ids(plan: Plan) -> tuple[int, ...]:
    """A storage id for every buffer of a plan: inputs, constants and outputs have memory of their own; intermediates
    take the tightest free memory, never memory that the same call still reads.
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
        # Best fit over live ranges, as TVM's GraphPlanMemory: a storage grows to the largest buffer that it gets.
        roots = list(dict.fromkeys(plan.buffers[number].storage for number in call.buffers))
        for root in roots:
            if root not in ids:
                storage = _best_fit(free, sizes, plan.buffers[root].nbytes)
                if storage is not None:
                    free.remove(storage)
                give(root, storage)
        for root in roots:
            if plan.buffers[root].kind is BufferKind.INTERMEDIATE and last[root] == step:
                free.append(ids[root])
    for number, spec in enumerate(plan.buffers):  # unused buffers
        if spec.storage not in ids:
            give(spec.storage)
        ids.setdefault(number, ids[spec.storage])
    return tuple(ids[number] for number in range(len(plan.buffers)))


def _last_steps(plan: Plan) -> dict[int, int]:
    """The last call that uses the memory of every buffer; outputs are used to the end."""
    last = {plan.buffers[number].storage: step for step, call in enumerate(plan.calls) for number in call.buffers}
    return last | {plan.buffers[number].storage: len(plan.calls) for number in plan.outputs}


def _best_fit(free: Sequence[int], sizes: Sequence[int], nbytes: int) -> int | None:
    """The tightest free memory that is large enough, else the largest, which then grows."""
    fitting = [storage for storage in free if sizes[storage] >= nbytes]
    if fitting:
        return min(fitting, key=lambda storage: sizes[storage])
    return max(free, key=lambda storage: sizes[storage], default=None)
