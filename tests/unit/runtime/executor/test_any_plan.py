"""Any plan on a CPU and two GPUs, with arrays set, loaded, shared and exchanged in any order, computes what it
does on the CPU alone.
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from retune.compiler import te
from retune.compiler.core.errors import RetuneError
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.driver.build import build_kernel
from retune.compiler.ir.kernel import DeviceFunction
from retune.compiler.lower.gpu.pipeline import lower_for_gpu
from retune.compiler.runtime.artifact import Array, KernelArtifact
from retune.compiler.runtime.buffers import aligned_copy
from retune.compiler.runtime.cuda.array import DeviceArray
from retune.compiler.runtime.executor.cuda_memory import CudaMemory
from retune.compiler.runtime.executor.graph_executor import GraphExecutor
from retune.compiler.runtime.executor.network import CompiledNetwork
from retune.compiler.runtime.executor.params import save_param_dict
from retune.compiler.runtime.executor.plan import READ_ONLY, BufferKind, BufferSpec, Call, Plan
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default.cpu import default_steps
from retune.compiler.schedule.default.gpu import default_gpu_steps
from retune.compiler.schedule.state import replay
from retune.compiler.schedule.task import SearchTask
from tests.support.late_gpus import LateGpus, random_values
from tests.support.small_computations import doubled
from tests.support.workloads import GPU

SIZE, HALF = 16, 8


def added(n: int) -> ComputeDAG:
    """z[i] = x[i] + y[i]"""
    x, y = te.placeholder((n,), name="x"), te.placeholder((n,), name="y")
    return ComputeDAG([x, y, te.compute((n,), lambda i: x[i] + y[i], "z")])


@cache
def kernels() -> tuple[tuple[KernelArtifact, ...], tuple[DeviceFunction, ...]]:
    """Kernels by what they do, their size and where they run, and what a GPU runs of them."""
    found, functions = [], []
    for what, make in (("twice", doubled), ("add", added)):
        for size in (SIZE, HALF):
            dag, name = make(size), f"{what}{size}"
            host = SearchTask("t", dag, Target.host(), HardwareParams(1))
            found.append(build_kernel(host, default_steps(dag), f"{name}h"))
            steps = default_gpu_steps(dag)
            found.append(build_kernel(SearchTask("t", dag, Target("cuda"), GPU), steps, f"{name}g"))
            functions.append(lower_for_gpu(replay(dag, steps), f"{name}g", GPU))
    return tuple(found), tuple(functions)


def negative(source: Array, target: Array) -> None:
    """A Python function between kernels."""
    np.negative(source, out=target)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Inputs, constants, views of either, calls on three devices, of which some write only the first half of a buffer,
    and outputs of any kind.
    """
    buffers: list[BufferSpec] = []
    for kind, count in ((BufferKind.INPUT, draw(st.integers(1, 3))), (BufferKind.CONSTANT, draw(st.integers(0, 2)))):
        for _ in range(count):
            buffers.append(BufferSpec(f"b{len(buffers)}", (SIZE,), "float32", kind, len(buffers)))
    inputs = tuple(number for number, spec in enumerate(buffers) if spec.kind is BufferKind.INPUT)
    calls: list[Call] = []
    ready = list(range(len(buffers)))  # the roots that have been written

    def view(root: int, shape: tuple[int, ...]) -> int:
        if shape == buffers[root].shape and draw(st.booleans()):
            return root
        buffers.append(replace(buffers[root], name=f"b{len(buffers)}", shape=shape))
        return len(buffers) - 1

    for _ in range(draw(st.integers(1, 5))):
        what = draw(st.sampled_from(["twice", "twice", "add", "negative"]))
        device = 0 if what == "negative" else draw(st.integers(0, 2))
        read = [draw(st.sampled_from(ready)) for _ in range(2 if what == "add" else 1)]
        again = [root for root in ready if buffers[root].kind not in READ_ONLY and root not in read]
        again = again if what != "negative" else []
        half = bool(again) and draw(st.booleans())
        if half or (again and draw(st.booleans())):
            target = draw(st.sampled_from(again))
        else:
            kind = draw(st.sampled_from([BufferKind.INTERMEDIATE, BufferKind.OUTPUT]))
            target = len(buffers)
            buffers.append(BufferSpec(f"b{target}", (SIZE,), "float32", kind, target, 64 * target))
            ready.append(target)
        shape = (HALF,) if half else (SIZE,)
        name = what if what == "negative" else f"{what}{shape[0]}{'g' if device else 'h'}"
        calls.append(Call(name, tuple(view(root, shape) for root in (*read, target)), device=device))
    shapes = st.sampled_from([(SIZE,), (4, 4), (HALF,)])
    outputs = [view(draw(st.sampled_from(ready)), draw(shapes)) for _ in range(draw(st.integers(1, 4)))]
    outputs += draw(st.lists(st.sampled_from(outputs), max_size=1))
    return Plan("net", tuple(buffers), tuple(calls), inputs, tuple(outputs), 64 * (len(buffers) + 1))


def on_cpu(plan: Plan) -> Plan:
    """The same without GPUs."""
    calls = [replace(call, kernel=call.kernel.replace("g", "h") if call.device else call.kernel) for call in plan.calls]
    return replace(plan, calls=tuple(replace(call, device=0) for call in calls))


@dataclass
class Pair:
    """An executor on GPUs, and the same on the CPU alone. `written` are arrays for outputs by their number, and
    `read` those for inputs: ours, and the other's. In arrays that were for outputs before nothing may change.
    """

    gpus: LateGpus
    ours: GraphExecutor
    plain: GraphExecutor
    written: dict[int, tuple[Any, Array]]
    read: dict[int, tuple[Any, Array]]
    before: list[tuple[Any, Array]]

    def tensor(self, values: Array, number: int) -> DeviceArray:
        """An array of another library, which it works on in its own stream."""
        self.gpus.open(number)
        made = DeviceArray.allocate(self.gpus, self.gpus.stream(), number, values.shape, values.dtype.name)
        made.write(values)
        self.gpus.open((number + 1) % self.gpus.count)
        return made

    def set(self, draw: st.DataObject) -> None:
        place, values, where = self._input(draw)
        given = values if where is None else self.tensor(values, where)
        if self._both(lambda: self.ours.set_input(place, given), lambda: self.plain.set_input(place, values), where):
            self.read.pop(place, None)

    def lend(self, draw: st.DataObject) -> None:
        place, values, where = self._input(draw)
        mine = aligned_copy(values)
        given = aligned_copy(values) if where is None else self.tensor(values, where)
        if self._both(
            lambda: self.ours.set_input_zero_copy(place, given),
            lambda: self.plain.set_input_zero_copy(place, mine),
            where,
        ):
            self.read[place] = (given, mine)

    def take(self, draw: st.DataObject) -> None:
        plan = self.plain.network.plan
        place = draw.draw(st.integers(0, len(plan.outputs) - 1))
        values, where = np.zeros(plan.buffers[plan.outputs[place]].shape, np.float32), draw.draw(WHERE)
        mine = aligned_copy(values)
        given = aligned_copy(values) if where is None else self.tensor(values, where)
        if self._both(
            lambda: self.ours.set_output_zero_copy(place, given),
            lambda: self.plain.set_output_zero_copy(place, mine),
            where,
        ):
            if place in self.written:
                old, _ = self.written[place]
                self.before.append((old, self._numpy(old)))
            self.written[place] = (given, mine)

    def feed(self, draw: st.DataObject) -> None:
        """An array of the caller's, which may be that of an output, once more."""
        known = [pair for pair in (*self.written.values(), *self.read.values()) if pair[1].shape == (SIZE,)]
        if not known:
            return
        ours, mine = draw.draw(st.sampled_from(known))
        place, _, _ = self._input(draw)
        where = None if isinstance(ours, np.ndarray) else ours.device.device_id
        if draw.draw(st.booleans()):
            if self._both(lambda: self.ours.set_input(place, ours), lambda: self.plain.set_input(place, mine), where):
                self.read.pop(place, None)
        elif self._both(
            lambda: self.ours.set_input_zero_copy(place, ours),
            lambda: self.plain.set_input_zero_copy(place, mine),
            where,
        ):
            self.read[place] = (ours, mine)

    def change(self, draw: st.DataObject) -> None:
        values = random_values(SIZE, draw.draw(SEEDS))
        for lent, mine in self.read.values():
            mine[...] = values
            if isinstance(lent, np.ndarray):
                lent[...] = values
            else:
                self.gpus.open(lent.device.device_id)
                lent.write(values)

    def load(self, draw: st.DataObject) -> None:
        blob = self._blob(draw)
        self.ours.load_params(blob)
        self.plain.load_params(blob)
        self._forget(blob)

    def share(self, draw: st.DataObject) -> None:
        blob = self._blob(draw)
        ours, plain = pair_of(self.plain.network, self.ours.network.plan, self.gpus)
        ours.load_params(blob)
        plain.load_params(blob)
        self.ours.share_params(ours, blob)
        self.plain.share_params(plain, blob)
        self._forget(blob)

    def run(self, draw: st.DataObject) -> None:
        for _ in range(draw.draw(st.integers(1, 3))):
            self.ours.run()
            self.plain.run()
        for place in range(self.plain.get_num_outputs()):
            np.testing.assert_array_equal(self.ours.get_output(place), self.plain.get_output(place))
        for place, (lent, mine) in self.written.items():
            np.testing.assert_array_equal(self._numpy(lent), mine)
            np.testing.assert_array_equal(mine, self.plain.get_output(place))
        for old, values in self.before:
            np.testing.assert_array_equal(self._numpy(old), values)

    def fetch(self, draw: st.DataObject) -> None:
        self.run(draw)
        plan = self.plain.network.plan
        place = draw.draw(st.integers(0, len(plan.outputs) - 1))
        out = self.tensor(np.zeros(plan.buffers[plan.outputs[place]].shape, np.float32), draw.draw(st.integers(0, 1)))
        try:
            self.ours.get_output(place, out)
        except RetuneError:
            return
        np.testing.assert_array_equal(self._numpy(out), self.plain.get_output(place))

    def probe(self, _: st.DataObject) -> None:
        for place in range(self.plain.get_num_inputs()):
            np.testing.assert_array_equal(self.ours.get_input(place), self.plain.get_input(place))

    def alone(self, _: st.DataObject) -> None:
        for index in range(len(self.plain.network.plan.calls)):
            self.ours.call(index)
            self.plain.call(index)
            for number in self.plain.network.plan.calls[index].buffers[-1:]:
                homes = self.ours.placed.homes
                root = self.plain.network.plan.buffers[number].storage
                if homes.get(root, 0) == self.ours.network.plan.calls[index].device:
                    np.testing.assert_array_equal(self.ours.value(number), self.plain.value(number))

    def _input(self, draw: st.DataObject) -> tuple[int, Array, int | None]:
        place = draw.draw(st.integers(0, self.plain.get_num_inputs() - 1))
        return place, random_values(SIZE, draw.draw(SEEDS)), draw.draw(WHERE)

    def _blob(self, draw: st.DataObject) -> bytearray:
        plan = self.plain.network.plan
        names = [spec.name for at, spec in enumerate(plan.buffers) if spec.kind in READ_ONLY and spec.storage == at]
        chosen = draw.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
        return save_param_dict({name: random_values(SIZE, draw.draw(SEEDS)) for name in chosen})

    def _forget(self, blob: bytearray) -> None:
        plan = self.plain.network.plan
        for place, number in enumerate(plan.inputs):
            if plan.buffers[number].name.encode() in blob:
                self.read.pop(place, None)

    def _numpy(self, array: Any) -> Array:
        if isinstance(array, np.ndarray):
            return array.copy()
        self.gpus.open(array.device.device_id)
        return array.numpy()

    def _both(self, ours: Any, plain: Any, where: int | None) -> bool:
        """Whether ours does it; then, and where no array is on a GPU, so does the other one."""
        try:
            ours()
        except RetuneError:
            if where is None:
                try:
                    plain()
                except RetuneError:
                    return False
                raise
            return False
        plain()
        return True


WHERE = st.sampled_from([None, 0, 1])
SEEDS = st.integers(0, 999)


def pair_of(network: CompiledNetwork, plan: Plan, gpus: LateGpus) -> tuple[GraphExecutor, GraphExecutor]:
    spread = replace(network, plan=plan)
    memories = [CudaMemory(gpus, number, graphs=True) for number in range(2)]
    functions = {"negative": negative}
    return (
        GraphExecutor(spread, functions=functions, memories=memories),
        GraphExecutor(network, functions=functions),
    )


ACTIONS = [
    *[Pair.set, Pair.lend, Pair.take, Pair.change, Pair.load, Pair.share, Pair.fetch, Pair.probe, Pair.alone],
    *[Pair.take, Pair.lend, Pair.feed, Pair.run, Pair.run],
]


@settings(max_examples=25, deadline=None)
@given(plans(), st.data())
def test_any_plan_with_arrays_from_anywhere(plan: Plan, data: st.DataObject) -> None:
    artifacts, functions = kernels()
    constants = {
        number: random_values(SIZE, number)
        for number, spec in enumerate(plan.buffers)
        if spec.kind is BufferKind.CONSTANT and spec.storage == number
    }
    gpus = LateGpus(functions, count=2)
    network = CompiledNetwork(on_cpu(plan), artifacts, constants)
    pair = Pair(gpus, *pair_of(network, plan, gpus), {}, {}, [])
    for action in data.draw(st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=8)):
        action(pair, data)
    pair.run(data)
    pair.alone(data)
