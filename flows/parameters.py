"""In: what a person or a deployment asks for. Out: a frozen, checked `TuneJob`.

Always: plain values only, so it travels through Prefect's API.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from retune.compiler import config
from retune.compiler.driver.budget import Budget
from retune.compiler.driver.measuring import WEIGHTS, network_options
from retune.compiler.driver.operators import label_of
from retune.compiler.driver.tuning import Origin
from retune.compiler.errors import OptionError
from retune.compiler.measure.options import MeasureOptions
from retune.compiler.target import Target
from retune.storage.place import Place, is_remote, local_folder, veiled
from retune.tasks.plan import FleetPlan

DEFAULT_TRIALS = 1000
MAX_BATCH = 1024
MAX_CORES = 4096
DEVICE = "cpu"
"""The key of a fleet's device that nobody has named."""

_WAY = ("fleet", "on_device", "storage", "machine", "cache_bytes")
"""Fields that say how a job reaches its machine, not what it is."""


@dataclass(frozen=True, slots=True)
class TuneJob:
    """One request to tune a network.

    `network` is a name of the zoo or the path of an ONNX file. The run ends after `trials` measured programs or
    `minutes` of tuning, whichever comes first; None means no such limit, but one of them is set. `threads` is what
    the tuned network will run on, `batch` the most programs in a round, `home` the absolute path of the state folder,
    `store` the URL, without a password, where records and what was learned are kept instead of there (see
    docs/storage.md), `shapes` what dynamic inputs are fixed to, see `parse_shape`. After `early_stopping` trials
    without a shorter estimated latency the run ends (0: never). `weights` is where a kernel's weights are while it is
    timed, see `network_options`. `winograd` says whether convolutions may be computed in transformed spaces.

    With a `fleet` programs are built by its workers and timed on its device of the key `on_device`; `storage` is the
    place that it shares. `machine` and `cache_bytes` are then those of the device, see `retune.flows.device`.
    """

    network: str
    trials: int | None
    minutes: float | None
    threads: int
    target: str
    seed: int
    batch: int
    home: str
    shapes: tuple[str, ...] = ()
    early_stopping: int = 0
    weights: str = "auto"
    winograd: bool = True
    fleet: str = ""
    on_device: str = ""
    storage: str = ""
    machine: str = ""
    cache_bytes: int = 0
    store: str = ""

    def __post_init__(self) -> None:
        """Shapes that come from JSON are a list."""
        object.__setattr__(self, "shapes", tuple(self.shapes))

    @classmethod
    def checked(
        cls,
        network: str,
        trials: int | None = None,
        minutes: float | None = None,
        threads: int | None = None,
        target: str | None = None,
        seed: int | None = None,
        batch: int | None = None,
        home: str | None = None,
        shapes: Sequence[str] | None = None,
        early_stopping: int | None = None,
        weights: str | None = None,
        winograd: bool | None = None,
        fleet: str | None = None,
        on_device: str | None = None,
    ) -> Self:
        """A job with everything that is None filled in from the settings, and every value checked. A limit in trials or
        minutes takes the place of both settings. `home` may be a URL: then it is what `store` is, and the state folder
        is that of the settings.

        Raises: OptionError naming the option, its value and what it may be; TargetError.
        """
        cores = config.usable_cores()
        settings = config.load()
        if trials is None and minutes is None:
            trials, minutes = settings.trials, settings.minutes
        threads = settings.threads if threads is None else threads
        target = settings.target if target is None else target
        seed = settings.seed if seed is None else seed
        batch = settings.batch if batch is None else batch
        early_stopping = settings.early_stopping if early_stopping is None else early_stopping
        weights = settings.weights if weights is None else weights
        winograd = settings.winograd if winograd is None else winograd
        fleet = (settings.fleet if fleet is None else fleet) or ""
        on_device = (on_device or settings.device or DEVICE) if fleet else on_device
        _require(
            bool(fleet) or not on_device,
            f"the device {on_device} belongs to a fleet: say which one, for instance prefect",
        )
        _require(bool(network), "no network given: name one of the zoo or the path of an ONNX file")
        _require(trials is None or trials > 0, f"the budget must be at least 1 trial, not {trials}")
        _require(
            minutes is None or (math.isfinite(minutes) and minutes > 0),
            f"the budget must be more than 0 minutes, not {minutes}",
        )
        most = MAX_CORES if fleet else cores
        _require(threads is None or 1 <= threads <= most, f"threads must lie between 1 and {most}, not {threads}")
        _require(seed >= 0, f"the seed must not be negative, not {seed}")
        _require(1 <= batch <= MAX_BATCH, f"the batch must lie between 1 and {MAX_BATCH}, not {batch}")
        _require(early_stopping >= 0, f"early stopping needs a number of trials, or 0 for never, not {early_stopping}")
        _require(weights in WEIGHTS, f"weights must be one of {', '.join(WEIGHTS)}, not {weights!r}")
        folder = settings.home if not home or is_remote(home) else local_folder(home)
        return cls(
            network=network,
            trials=DEFAULT_TRIALS if trials is None and minutes is None else trials,
            minutes=minutes,
            threads=threads or (0 if fleet else cores),
            target="" if fleet and target is None else str(Target.host() if target is None else Target(target)),
            seed=seed,
            batch=batch,
            home=str(folder),
            store=veiled(home) if home and is_remote(home) else "",
            shapes=tuple(shapes or ()),
            early_stopping=early_stopping,
            weights=weights,
            winograd=winograd,
            fleet=fleet,
            on_device=on_device or "",
            storage=veiled(settings.fleet_storage or f"{folder}/fleet"),
        )

    @property
    def label(self) -> str:
        """The network, short enough for a list of runs."""
        return label_of(self.network)

    @property
    def device(self) -> str:
        """The identity of the machine that the job tunes for: this one, or that of the fleet's device."""
        return self.machine or config.device_name()

    @property
    def gpu(self) -> int | None:
        """The number, in CUDA, of the GPU of this machine that the job tunes for; None when it is not for one. Which
        GPU has number 0 is for `CUDA_VISIBLE_DEVICES` to say.
        """
        return 0 if self.target and Target(self.target).is_gpu and not self.fleet else None

    @property
    def plan(self) -> FleetPlan | None:
        """How the job reaches the workers of its fleet; None when this machine does all itself."""
        return FleetPlan(self.fleet, self.storage, self.on_device) if self.fleet else None

    def asked(self) -> dict[str, Any]:
        """The parameters of `tune_network` that make this job."""
        fields = asdict(self)
        for field in ("storage", "machine", "cache_bytes", "store"):
            del fields[field]
        return {**fields, "home": str(self.place), "target": self.target or None, "threads": self.threads or None}

    @property
    def place(self) -> Place:
        """Where records, the run ledger and what was learned are kept."""
        return self.store or Path(self.home)

    @property
    def budget(self) -> Budget:
        """What the run may spend."""
        return Budget(self.trials, None if self.minutes is None else self.minutes * 60)

    def measuring(self, constant_bytes: int) -> MeasureOptions:
        """How the run builds and times programs of a network with so many bytes of weights."""
        return network_options(self.threads, constant_bytes, self.weights, self.cache_bytes or None)

    def origin(self, run_id: str, measuring: MeasureOptions) -> Origin:
        """What every record of the run has in common."""
        options = measuring.to_json()
        return Origin(run_id, self.network, self.target, self.device, self.threads, self.seed, options)

    def fingerprint(self, task_keys: Sequence[str]) -> str:
        """What makes two requests the same run, so that the second resumes the first; when it ends is no part of it."""
        same = {**asdict(self), "device": self.device, "tasks": sorted(task_keys)}
        for field in ("trials", "minutes", "early_stopping", "home", "store", *_WAY):
            del same[field]
        return json.dumps(same, sort_keys=True)

    def describe(self) -> dict[str, str | int | float | None]:
        """The request as plain values, for the ledger and the report."""
        fields = {**asdict(self), "shapes": " ".join(self.shapes), "device": self.device}
        return {name: value for name, value in fields.items() if self.fleet or name not in _WAY}

    def run_folder(self, run_id: str) -> Path:
        """Where a run keeps its report and its compiled network."""
        return Path(self.home) / "runs" / run_id


def _require(holds: bool, sentence: str) -> None:
    if not holds:
        raise OptionError(sentence)
