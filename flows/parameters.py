"""The request of a person or a deployment: `TuneJob`, frozen and checked, and its options as function parameters.

A job holds plain values only, so it travels through Prefect's API.
"""

import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import Field as Described

from retune.compiler.core import config
from retune.compiler.core.errors import OptionError
from retune.compiler.core.options import BUDGET, FLEET, TuneOptions, info_of, kinds_of, tune_options
from retune.compiler.core.target import Target
from retune.compiler.driver.hardware import threads_of
from retune.compiler.graph.precision.layers import FLOAT32
from retune.compiler.measure.options import MeasureOptions, network_options
from retune.compiler.measure.runner import gpu_of_key
from retune.compiler.tune.operators import label_of
from retune.compiler.tune.precision.request import PrecisionRequest, require_precision
from retune.compiler.tune.precision.samples import digest_of
from retune.compiler.tune.tuning import RunHeader
from retune.compiler.tune.tuning_loop import Budget
from retune.storage.store_url import Location, folder_of, is_remote, redact
from retune.tasks.fleet.plan import FleetPlan, require_fleet

# About four minutes at the four trials a second that time budgets assume.
DEFAULT_TRIALS = 1000
THROUGHPUT = "throughput"
"""The objective of a job that shares out its threads to instances."""
DEVICE = "cpu"
"""The key of a fleet's device when none is named."""

_WAY = ("fleet", "on_device", "storage", "machine", "cache_bytes")
"""Fields that say how a job reaches its machine, not what it is."""
_SEVERAL = "instances"
"""A field that only a job with several instances tells of."""

_ALWAYS = ("threads", "target", "seed", "batch", "weights", "winograd")
"""Options that every fingerprint has; others are in it where they differ from their default, so that a run that began
before there was such an option is still found.
"""

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., object])


def add_options(
    function: AnyFunction, wanted: Iterable[Field[object]], annotation: Callable[[Field[object]], object]
) -> AnyFunction:
    """Give a function that ends in `**options` a parameter for each of the options wanted, before its own keyword-only
    ones. None, the default, stands for the setting.
    """
    signature = inspect.signature(function)
    plain = [param for param in signature.parameters.values() if param.kind is not param.VAR_KEYWORD]
    made = [
        inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation(field))
        for field in wanted
    ]
    own = [param for param in plain if param.kind is param.KEYWORD_ONLY]
    first = [param for param in plain if param.kind is not param.KEYWORD_ONLY]
    setattr(function, "__signature__", signature.replace(parameters=[*first, *made, *own]))  # noqa: B010 - no attribute of Callable
    return function


def takes_options(*wanted: str) -> Callable[[AnyFunction], AnyFunction]:
    """Decorate the function of a flow that ends in `**options`: each option that is wanted, by its name or its group,
    becomes a parameter, with its meaning and its choices in the form of a run in Prefect's UI.
    """
    chosen = tune_options(*wanted)

    def decorate(function: AnyFunction) -> AnyFunction:
        meanings = "".join(f"\n    {field.name}: {info_of(field).meaning}" for field in chosen)
        function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\nArgs:{meanings}\n"
        return add_options(function, chosen, _parameter)

    return decorate


def _parameter(field: Field[object]) -> Any:
    kind, choices = kinds_of(TuneOptions)[field.name], info_of(field).choices
    return Annotated[kind | None, Described(json_schema_extra={"enum": [*choices]})] if choices else kind | None


@dataclass(frozen=True, slots=True)
class TuneJob:
    """One request to tune a network. The run ends when a limit of the options is reached; one of them is set."""

    network: str
    """A name of the zoo or the path of an ONNX file."""
    options: TuneOptions
    """What was asked for, completed by the settings. With a fleet programs are timed on its device `on_device`."""
    home: str
    """The absolute path of the state folder."""
    shapes: tuple[str, ...] = ()
    """What dynamic inputs are fixed to, see `retune.compiler.core.input_shapes`."""
    store: str = ""
    """The URL, without a password, where records and what was learned are kept instead of `home`, see
    docs/reference/storage.md.
    """
    storage: str = ""
    """The place that a fleet shares."""
    machine: str = ""
    """The identity of a fleet's device or of a GPU, see `retune.flows.device`; empty for this machine's CPU."""
    cache_bytes: int = 0
    """The last cache of a fleet's device; 0 where it is this machine's."""
    instances: int = 1
    """How many instances of the network share the threads that were asked for; several where that is measured to bring
    most throughput.
    """

    @classmethod
    def of(cls, network: str, *, shapes: Sequence[str] | None = None, home: str | None = None, **given: Any) -> Self:
        """Make a job of the options given; those that are None come from the settings. `home` may be a URL: then it is
        what `store` is, and the state folder is that of the settings.

        Raises: OptionError naming the option, its value and what it may be; TargetError.
        """
        if not network:
            raise OptionError("no network given: name one of the zoo or the path of an ONNX file")
        settings = config.load()
        folder = folder_of(home) or settings.home
        for name in (network, str(folder)):
            if any("\ud800" <= letter <= "\udfff" for letter in name):  # which stand for bytes that are no UTF-8
                raise OptionError(f"{name!r} is not UTF-8, as Prefect needs: rename it, or set LC_ALL=C.UTF-8")
        return cls(
            network=network,
            options=_complete(TuneOptions.of(settings, **given), given),
            home=str(folder),
            shapes=tuple(shapes or ()),
            store=redact(home) if home and is_remote(home) else "",
            storage=redact(settings.fleet_storage or f"{folder}/fleet"),
        )

    @property
    def threads(self) -> int:
        """What an instance of the network will run on; 0 until a fleet's device has said how many cores it has."""
        return (self.options.threads or 0) // self.instances

    @property
    def target(self) -> str:
        """What programs are built for; empty until a fleet's device has said what it is."""
        return self.options.target or ""

    @property
    def precision(self) -> PrecisionRequest:
        """What is asked of the network's precision."""
        return PrecisionRequest.of(self.options)

    @property
    def label(self) -> str:
        """The network, short enough for a list of runs."""
        return label_of(self.network)

    @property
    def device(self) -> str:
        """The identity of the machine that the job tunes for: this machine, or that of the fleet's device."""
        return self.machine or config.device_name()

    @property
    def gpu(self) -> int | None:
        """The number, in CUDA, of the GPU of this machine that the job tunes for; None when it is for no GPU. Which
        GPU has number 0 is for `CUDA_VISIBLE_DEVICES` to say.
        """
        return gpu_of_key(Target(self.target).traits.device) if self.target and not self.options.fleet else None

    @property
    def plan(self) -> FleetPlan | None:
        """How the job reaches the workers of its fleet; None when this machine does all itself."""
        options = self.options
        return FleetPlan(options.fleet, self.storage, options.on_device or DEVICE) if options.fleet else None

    def parameters(self) -> dict[str, object]:
        """The parameters of `tune_network` that make this job, which are those of `of`."""
        return {"network": self.network, "shapes": self.shapes, "home": str(self.location), **asdict(self.options)}

    @property
    def location(self) -> Location:
        """Where records, the run ledger and what was learned are kept."""
        return self.store or Path(self.home)

    @property
    def budget(self) -> Budget:
        """What the command may spend."""
        minutes = self.options.minutes
        return Budget(self.options.trials, None if minutes is None else minutes * 60)

    def measuring(self, constant_bytes: int) -> MeasureOptions:
        """How the run builds and times programs of a network with so many bytes of weights."""
        return network_options(self.threads, constant_bytes, self.options.weights, self.cache_bytes or None)

    def run_info(self, run_id: str, measuring: MeasureOptions) -> RunHeader:
        """What every record of the run has in common."""
        options = measuring.to_json()
        return RunHeader(run_id, self.network, self.target, self.device, self.threads, self.options.seed, options)

    def fingerprint(self, task_keys: Sequence[str]) -> str:
        """What makes two requests the same run, so that the second resumes the first; when it ends is no part of it."""
        options = {
            field.name: getattr(self.options, field.name)
            for field in fields(TuneOptions)
            if info_of(field).group not in (BUDGET, FLEET)
            and (field.name in _ALWAYS or getattr(self.options, field.name) != field.default)
        }
        # The tasks' keys stand for the network: a changed file, or a pass that fuses otherwise, is another run.
        files = {"samples": self.options.calibrate, "sample": self.options.sample}
        samples = {name: digest_of(path) for name, path in files.items() if path}
        told = {
            **samples,
            "threads": self.options.threads or 0,
            "target": self.target,
            "device": self.device,
            "tasks": sorted(task_keys),
        }
        return json.dumps({"network": self.network, "shapes": self.shapes, **options, **told}, sort_keys=True)

    def describe(self) -> dict[str, str | int | float | None]:
        """The request as plain values, for the ledger and the report."""
        plain = {**asdict(self), "shapes": " ".join(self.shapes), "device": self.device}
        options = {**plain.pop("options"), "threads": self.threads, "target": self.target}
        told = {"network": self.network, **options, **plain}
        left_out = {*(() if self.options.fleet else _WAY), *((_SEVERAL,) if self.instances == 1 else ())}
        return {name: value for name, value in told.items() if name not in left_out}

    def run_folder(self, run_id: str) -> Path:
        """Where a run keeps its report and its compiled network."""
        return Path(self.home) / "runs" / run_id


def _complete(options: TuneOptions, given: Mapping[str, Any]) -> TuneOptions:
    """Fill in what this machine decides, unless a fleet's device will. `given` is what was asked for beside settings.

    Raises: OptionError for options that exclude each other, TargetError.
    """
    device = given.get("on_device")
    require_precision(options, given)
    calibrate, sample = (path and str(Path(path).absolute()) for path in (options.calibrate, options.sample))
    options = replace(options, calibrate=calibrate, sample=sample)
    if options.trials is None and options.minutes is None:
        options = replace(options, trials=DEFAULT_TRIALS)
    on_gpu = options.target is not None and gpu_of_key(Target(options.target).traits.device) is not None
    if options.objective == THROUGHPUT and (options.fleet or on_gpu):
        raise OptionError("the objective throughput shares out the CPU of this machine: give neither a fleet nor a GPU")
    if options.precision != FLOAT32 and (options.fleet or on_gpu):
        raise OptionError(
            f"precision {options.precision} is for the CPU of this machine: give neither a fleet nor a GPU"
        )
    if options.fleet:
        require_fleet(options.fleet)
        target = options.target and str(Target(options.target))
        return replace(options, target=target, on_device=options.on_device or DEVICE)
    if device:
        raise OptionError(f"the device {device} belongs to a fleet: say which one, for instance prefect")
    cores = len(config.usable_cpus())
    machine = Target.host() if options.target is None else Target(options.target)
    threads = threads_of(machine, options.threads)
    if threads > cores:
        raise OptionError(f"threads must be between 1 and {cores}, not {threads}")
    return replace(options, threads=threads, target=str(machine), on_device=None)
