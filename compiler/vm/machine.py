"""The virtual machine: computes the functions of an executable on a device.

It has the interface of TVM's virtual machine. Arrays that go in are used in place where they are dense and aligned,
arrays that come out are the caller's own.
"""

import copy
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from retune.compiler.core import config
from retune.compiler.core.errors import ArtifactError, MachineError, OptionError
from retune.compiler.core.target import Target
from retune.compiler.graph.program import MAIN
from retune.compiler.graph.region import Param, bind
from retune.compiler.runtime.arguments import require_thread_count
from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.device import Device, cpu, devices_in, gpus_among
from retune.compiler.runtime.device import device as device_by_name
from retune.compiler.runtime.executor.claims import Claims, add_lock
from retune.compiler.runtime.executor.executors import gpus_of
from retune.compiler.runtime.executor.params import load_param_dict_from_file
from retune.compiler.runtime.loader import load_kernels
from retune.compiler.runtime.timing import BenchmarkResult, TimeEvaluator
from retune.compiler.vm.allocator import NAIVE, POOLED, allocator
from retune.compiler.vm.callees import Callees
from retune.compiler.vm.executable import Executable
from retune.compiler.vm.interpreter import Interpreter, Profile
from retune.compiler.vm.resources import Resources, VMOptions
from retune.compiler.vm.values import ADT, argument_of, describe, result

if TYPE_CHECKING:
    from retune.compiler.runtime.executor.debug_report import Report

_UNSET = object()
"""In place of an argument that was not set."""
MemoryConfig = str | int | Mapping[Device, str | int] | None


class VirtualMachine:
    """Runs an executable. Threads may share one: a call with arguments is computed alone, and returns its own result.
    Threads that set arguments, run and get outputs in separate calls must take turns, or a thread gets an error.

    machine = VirtualMachine(vm.compile("model.onnx"), cpu())
    scores = machine.run(image)
    """

    lock: threading.RLock
    NAIVE_ALLOCATOR = 1
    POOLED_ALLOCATOR = 2

    def __init__(
        self,
        exe: Executable,
        device: Device | Sequence[Device] | None = None,
        memory_cfg: MemoryConfig = None,
        *,
        threads: int | None = None,
        options: VMOptions | None = None,
    ) -> None:
        """`memory_cfg` says where arrays come from: "pooled" (the default), "naive", or one of these by device;
        `threads` how many threads kernels run on, by default as many as they were compiled for, or fewer CPUs.

        Raises: OptionError for a device that the executable was not compiled for; ArtifactError when the library lacks
        something or is for another machine; DeviceError when it is for a GPU, and there is none of that number.
        """
        if not isinstance(exe, Executable):
            raise OptionError(f"a virtual machine runs an Executable, which compile makes, not a {type(exe).__name__}")
        self.devices = _devices_of(exe, device)
        if not isinstance(options, VMOptions | None):
            raise OptionError(f"options must be VMOptions, not a {type(options).__name__}")
        self._exe = exe
        self.options = options or VMOptions()
        if threads is None:
            threads = config.thread_count(min(int(exe.library.about.get("threads", 1)), config.usable_cores()))
        self.threads = threads
        require_thread_count(self.threads)
        memory = allocator(_memory_kind(memory_cfg))
        exe.library.check_machine()
        kernels = load_kernels(exe.library.kernels)
        self._resources = Resources(exe.library, kernels, memory, self.threads, self.options, self.devices)
        self._link()
        add_lock(self)
        self._inputs: dict[str, list[Any]] = {}
        self._outputs: list[Any] = []
        self._ready: dict[str, list[Any]] = {}
        """Arguments that are all there and fit each other."""
        self._claims = Claims(1)

    def __reduce__(self) -> NoReturn:
        raise ArtifactError("a virtual machine cannot be copied or pickled: make another one of its executable")

    def _link(self) -> None:
        """Make everything that depends on constants, when all are there. Raises: ArtifactError when the library lacks
        something.
        """
        self._program = self._exe.program
        self._callees = Callees(self._program, self._resources)
        self._interpreter = None if self._exe.late else Interpreter(self._program, self._callees)

    # Inputs

    def set_input(self, func_name: str, *args: object, **kwargs: object) -> None:
        """Give a function its arguments, in order or by name; other names are ignored.

        Raises: MachineError when there are too many or too few; ShapeMismatchError when one does not fit.
        """
        params = self._params(func_name)
        if len(args) != len(params) or kwargs:
            args = self._in_order(func_name, args, kwargs)
        values = self._check(func_name, params, [argument_of(*pair) for pair in zip(args, params, strict=True)])
        with self.lock:
            self._inputs[func_name] = self._ready[func_name] = values
            self._claims.note_set(func_name, f"what {func_name} takes")

    def _in_order(self, func_name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[object, ...]:
        """The arguments of a function in the order of its parameters. Raises: MachineError as `set_input`."""
        params = self._params(func_name)
        names = [param.name for param in params]
        if len(args) > len(params):
            raise MachineError(
                f"{_of(func_name)} takes {len(params)} inputs ({', '.join(names)}), {len(args)} are given"
            )
        named = dict(zip(names, args, strict=False))
        twice = sorted(set(named) & set(kwargs))
        if twice:
            raise MachineError(f"{_of(func_name)} is given {', '.join(twice)} twice")
        named |= {name: value for name, value in kwargs.items() if name in names}
        missing = [name for name in names if name not in named]
        if missing:
            raise MachineError(f"{_of(func_name)} takes {len(params)} inputs; {', '.join(missing)} missing")
        return tuple(named[name] for name in names)

    def set_one_input(self, func_name: str, *args: object, **kwargs: object) -> None:
        """Give a function one argument: by its number or name and the array, or by keyword.

        Raises: MachineError when there is no such argument; ShapeMismatchError when it does not fit.
        """
        params = self._params(func_name)
        if len(args) + 2 * len(kwargs) != 2:
            raise MachineError("set_one_input takes one argument: its number or name and the array, or a keyword")
        key, value = args if args else next(iter(kwargs.items()))
        names = [param.name for param in params]
        index = names.index(key) if isinstance(key, str) and key in names else key
        if isinstance(index, (str, bool)) or not isinstance(index, (int, np.integer)) or not 0 <= index < len(params):
            raise MachineError(f"{_of(func_name)} has no input {key!r}; it has {', '.join(names)}")
        # Checked outside the lock: only the assignment needs it.
        checked = self._check(func_name, [params[index]], [argument_of(value, params[index])])[0]
        with self.lock:
            inputs = list(self._inputs.get(func_name) or [_UNSET] * len(params))
            inputs[index] = checked
            self._inputs[func_name] = inputs
            self._ready.pop(func_name, None)  # it fits alone, perhaps not beside the others
            self._claims.note_set((func_name, index), f"{names[index]} of {func_name}")

    def get_input_index(self, input_name: str, func_name: str = MAIN) -> int:
        """The number of an argument, -1 when there is none of that name. Raises: ArtifactError for another function."""
        names = [param.name for param in self._params(func_name)]
        return names.index(input_name) if isinstance(input_name, str) and input_name in names else -1

    # Running

    def invoke(self, func_name: str, *args: object, **kwargs: object) -> Any:
        """The result of a function: an array (of NumPy, with `numpy()`), or an `ADT` of results. Without arguments it
        takes those that were set before.

        Raises: as `set_input`; what the function meets.
        """
        with self.lock:
            if args or kwargs:
                self.set_input(func_name, *args, **kwargs)
            # Raises if another thread has set inputs since: calls with arguments are atomic, split ones are checked.
            self._claims.take_inputs()
            inputs = self._arguments(func_name)
            return result(self._linked_interpreter().run(func_name, inputs), inputs)

    def run(self, *args: object, **kwargs: object) -> Any:
        """The result of `main`. Raises: as `invoke`."""
        return self.invoke(MAIN, *args, **kwargs)

    def invoke_stateful(self, func_name: str, *args: object, **kwargs: object) -> None:
        """Run a function and keep its results for `get_outputs`. Raises: as `invoke`."""
        with self.lock:
            self._outputs = _leaves(self.invoke(func_name, *args, **kwargs))
            self._claims.note_run()

    def get_outputs(self) -> list[Any]:
        """The results of the last `invoke_stateful`."""
        with self.lock:
            self._claims.note_read(0)
            return list(self._outputs)

    def invoke_with_outputs(
        self, func_name: str, input_args: Mapping[str, object], output_args: Sequence[Array]
    ) -> None:
        """Run a function and copy its results, which must be arrays, into arrays of the caller.

        Raises: as `invoke`; OptionError when these are not as many, or of another shape or type.
        """
        named = isinstance(input_args, Mapping) and all(isinstance(name, str) for name in input_args)
        if not named or not isinstance(output_args, Sequence) or isinstance(output_args, str):
            raise OptionError("invoke_with_outputs takes inputs by name and the arrays for the outputs")
        results = _leaves(self.invoke(func_name, **input_args))
        if len(results) != len(output_args):
            raise OptionError(f"{_of(func_name)} has {len(results)} results, {len(output_args)} arrays are given")
        for index, (array, out) in enumerate(zip(results, output_args, strict=True)):
            target = out if isinstance(out, np.ndarray) or not hasattr(out, "numpy") else out.numpy()
            if not isinstance(target, np.ndarray):
                raise OptionError(f"output {index} must be a writable array, not a {type(out).__name__}")
            fits = isinstance(array, np.ndarray) and (target.shape, target.dtype) == (array.shape, array.dtype)
            if not fits or not target.flags.writeable:
                raise OptionError(
                    f"result {index} is {describe(array)}; a writable array of that kind is needed, "
                    f"not {describe(target)}"
                )
            np.copyto(target, array)

    def benchmark(
        self,
        device: Device | Sequence[Device],
        *args: object,
        func_name: str = MAIN,
        repeat: int = 5,
        number: int = 5,
        min_repeat_ms: float | None = None,
        limit_zero_time_iterations: int = 100,
        end_to_end: bool = False,
        cooldown_interval_ms: float = 0,
        repeats_to_cooldown: int = 1,
        **kwargs: object,
    ) -> BenchmarkResult:
        """Seconds of a call: `repeat` means over `number` calls each, or over as many as last `min_repeat_ms`.

        Arguments are set once before; with `end_to_end` they are set, and copied, in every call.
        Raises: as `invoke`; OptionError when an option makes no sense.
        """
        for other in devices_in(device):
            if other not in (cpu(), *self.devices):
                raise OptionError(f"this machine runs on {' and '.join(map(str, self.devices))}, not on {other}")
        self.set_input(func_name, *args, **kwargs)
        counts = (number, repeat, 0.0 if min_repeat_ms is None else min_repeat_ms, limit_zero_time_iterations)
        evaluator = TimeEvaluator(*counts, cooldown_interval_ms, repeats_to_cooldown)
        if not end_to_end:
            return evaluator(lambda: self.invoke(func_name))
        # Fresh copies each time, as a caller's arrays would be: reused ones would stay in the cache.
        values = copy.deepcopy(self._arguments(func_name))

        def whole() -> None:
            self.invoke(func_name, *copy.deepcopy(values))

        return evaluator(whole)

    def profile(self, *args: object, func_name: str = MAIN, **kwargs: object) -> "Report":
        """How long every region, every kernel of known shapes, and branches and loops themselves take in one call,
        after a call that is not timed. Raises: as `invoke`.
        """
        self.invoke(func_name, *args, **kwargs)
        profile = Profile()
        with self.lock:
            Interpreter(self._program, self._callees, profile).run(func_name, self._arguments(func_name))
        return profile.report(str(cpu(0)), self.threads)

    @property
    def regions(self) -> tuple[str, ...]:
        """The names of the parts that are compiled, or computed by NumPy, when their shapes are known."""
        return tuple(self._callees.specialized)

    def specializations(self) -> tuple[Any, ...]:
        """What regions were compiled for, and which of their kernels were tuned, fitted from another's record, or not
        tuned: `retune.compiler.vm.specialize.Specialization`. Waits for what is compiled in the background.
        """
        regions = [region for region in self._callees.specialized.values() if hasattr(region, "reports")]
        for region in regions:
            region.wait()
        return tuple(report for region in regions for report in region.reports)

    # Constants that are bound late

    def load_late_bound_consts(self, path: str) -> None:
        """Bind the constants in a file. Raises: ArtifactError as `load_late_bound_consts_from_map`."""
        self.load_late_bound_consts_from_map(load_param_dict_from_file(path))

    def load_late_bound_consts_from_map(self, constants: Mapping[str, Array]) -> None:
        """Bind constants that the executable leaves open. Raises: ArtifactError as `Executable` does."""
        with self.lock:
            self._exe.load_late_bound_consts_from_map(constants)
            self._link()

    def _linked_interpreter(self) -> Interpreter:
        """The interpreter. Raises: MachineError when constants are missing."""
        if self._interpreter is None:
            self._link()  # the executable may have got them meanwhile
        if self._interpreter is None:
            raise MachineError(f"the constants {', '.join(self._exe.late)} are bound late, and no arrays were given")
        return self._interpreter

    def _params(self, func_name: str) -> tuple[Param, ...]:
        return self._exe.function(func_name).params

    def _arguments(self, func_name: str) -> list[Any]:
        """The arguments of a function. Raises: MachineError when some are missing; as `set_input`."""
        ready = self._ready.get(func_name) if isinstance(func_name, str) else None
        if ready is not None:
            return ready
        params = self._params(func_name)
        inputs = self._inputs.get(func_name, [_UNSET] * len(params))
        missing = [param.name for param, array in zip(params, inputs, strict=True) if array is _UNSET]
        if missing:
            raise MachineError(f"{_of(func_name)} was not given {', '.join(missing)}: call set_input first")
        self._ready[func_name] = ready = self._check(func_name, params, inputs)
        return ready

    def _check(self, func_name: str, params: Sequence[Param], arrays: list[Any]) -> list[Any]:
        """The arguments, which must fit the parameters. Raises: ShapeMismatchError."""
        ranges = self._program.ranges if func_name == MAIN else {}
        bind(params, {param.name: array for param, array in zip(params, arrays, strict=True)}, ranges)
        return arrays


def _of(func_name: str) -> str:
    """A function in a message."""
    return "the network" if func_name == MAIN else func_name


def _devices_of(exe: Executable, device: Device | Sequence[Device] | None) -> tuple[Device, ...]:
    """The CPU, or the GPU that an executable is for; a device that is not given is the first.

    Raises: OptionError when it was compiled for something else; DeviceError when the GPU is not there.
    """
    target = Target(str(exe.library.about.get("target", "llvm")))
    usual = device_by_name(target.traits.device)
    devices = devices_in(usual if device is None else device)
    gpus = gpus_among(devices, "programs")
    if len(gpus) != len(gpus_among([usual], "programs")):
        where = f"{target.traits.noun} alone, such as {usual}"
        told = ", ".join(map(str, devices))
        raise OptionError(f"what was compiled for {target.kind} runs on {where}, not on {told}")
    if gpus:
        gpus_of(gpus)
    return tuple(gpus) or (cpu(),)


def _leaves(results: Any) -> list[Array]:
    return list(results) if isinstance(results, ADT) else [results]


def _memory_kind(config: MemoryConfig) -> str:
    """Which allocator serves the CPU. Raises: OptionError when that cannot be told."""
    if isinstance(config, Mapping):
        config = next((kind for device, kind in config.items() if device == cpu(0)), POOLED)
    kinds = {None: POOLED, POOLED: POOLED, NAIVE: NAIVE, 1: NAIVE, 2: POOLED}
    if isinstance(config, bool) or not isinstance(config, (str, int, type(None))) or config not in kinds:
        raise OptionError(f"memory_cfg is {POOLED!r}, {NAIVE!r}, or one of these for each device, not {config!r}")
    return kinds[config]
