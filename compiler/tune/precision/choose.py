"""Chooses the precision of every layer of a network, by measured time and measured error.

bfloat16, int8   every layer that has this form; of int8 the ranges with the least error
auto             1. each form of the whole network is timed, kernel by kernel
                 2. forms that are faster than float32 are run apart, and their errors through the float32 network
                 3. a knapsack chooses: seconds saved against the sum of squared errors
                 4. the choice is compiled and its error measured on all samples; the budget of the knapsack
                    follows, and at last the layers with the largest errors become float32 until the tolerance holds
                 5. the choice is timed beside the network in one form and beside float32, and the fastest is taken
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from retune.compiler.core.errors import ArtifactError, OptionError
from retune.compiler.core.target import Target
from retune.compiler.driver.compile_network import made_for
from retune.compiler.graph.precision.layers import FLOAT32, INT8, is_quantized, layers_of
from retune.compiler.measure.processes.device_lock import device_lock
from retune.compiler.measure.record import TaskProgram
from retune.compiler.runtime.executor.network import check_cpu
from retune.compiler.tune.extract import ImportedNetwork
from retune.compiler.tune.precision.bench import Bench, seconds_in_turn, times_of_layers
from retune.compiler.tune.precision.costs import LEAST_GAIN, Costs
from retune.compiler.tune.precision.errors import require_measurable
from retune.compiler.tune.precision.knapsack import Option, choose_options
from retune.compiler.tune.precision.request import AUTO, LayerChoice, PrecisionChoice, PrecisionRequest
from retune.compiler.tune.precision.samples import hold_out, read_samples
from retune.compiler.tune.precision.sensitivity import Unit

_ATTEMPTS = 5
"""Choices that are compiled before layers are repaired."""
_TRIFLE = 0.01
"""Share of the seconds in float32: what a further attempt might save beyond the last must be more."""
_MARGIN = 0.9
"""Share of the tolerance that `auto` uses: errors on other inputs, and of tuned programs, differ from the measured."""
_NEAR = 1.2
"""A choice that takes more of the time of the fastest in a first round is timed no further."""
_CURVE = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
"""Tolerances of the curve in the report."""


def choose_for_network(
    network: ImportedNetwork,
    request: PrecisionRequest,
    target: str,
    threads: int,
    winograd: bool,
    best: Mapping[str, TaskProgram],
    seed: int = 0,
) -> PrecisionChoice:
    """As `choose`, for a target with so many threads; `best` are the best known programs by workload key.

    Raises: OptionError for a GPU, and for auto with a CPU whose code cannot run here.
    """
    machine = Target(target)
    if not machine.traits.uses_threads:
        raise OptionError(f"precision {request.precision} is for CPUs: leave out the target {target}, or the precision")
    # Other CPUs than this are compiled for, but only what runs here can be measured.
    if request.precision == AUTO:
        try:
            check_cpu(target, made_for(machine, threads))
        except ArtifactError as error:
            raise OptionError(
                f"precision auto measures, and code for {target} cannot run here: take bfloat16 or int8"
            ) from error
    here = machine if request.precision == AUTO else Target.host()
    return choose(Bench(network.prepared(), here, threads, winograd, best), request, seed)


def choose(bench: Bench, request: PrecisionRequest, seed: int = 0, costs: Costs | None = None) -> PrecisionChoice:
    """The precision of every layer of the network of `bench`. `costs` are those that `costs_of` gave for the samples
    and the metric of the request, where several tolerances are asked for.

    A network with int8 in it is taken as it is, and `note` says so. Raises: OptionError for samples that do not fit.
    """
    layers, made = layers_of(bench.graph), PrecisionChoice(request.precision, tolerance=request.allowed)
    made = replace(made, metric=request.metric if isinstance(request.metric, str) else "function")
    if is_quantized(bench.graph):
        return replace(made, note=f"{bench.graph.name} is quantized already: it is taken as it is")
    if not layers:
        return replace(made, note=f"{bench.graph.name} has no products or convolutions in float32")
    if any(value.dtype == "float32" and not value.size for value in bench.graph.values.values()):
        return replace(made, note=f"{bench.graph.name} has values without elements: it stays in float32")
    costs = costs or costs_of(bench, request, seed)
    made = replace(made, warning="" if request.calibrate is not None else _RANDOM.format(bench.graph.name))
    if request.precision == AUTO:
        return _Auto(costs, request.allowed, made).choose()
    chosen = costs.all_in(request.precision)
    rows = tuple(LayerChoice(layer.name, layer.op, chosen.get(layer.name, FLOAT32)) for layer in layers)
    ranges = costs.ranges if request.precision == INT8 else {}
    return replace(made, layers=rows, ranges=ranges, error=costs.error(chosen))


def costs_of(bench: Bench, request: PrecisionRequest, seed: int = 0) -> Costs:
    """What the layers cost in each precision, on the samples of the request. Raises: OptionError for samples that do
    not fit, or that tell nothing.
    """
    costs = Costs(bench, request.metric, *hold_out(read_samples(request.calibrate, bench.graph.inputs, seed)))
    require_measurable(request.metric, costs.reference)
    return costs


_RANDOM = (
    "{}: ranges and errors are those of random inputs, since there are no samples: give some, by --calibrate FILE.npz"
)


@dataclass(slots=True)
class _Auto:
    """The search for the fastest assignment whose error is within `allowed`."""

    costs: Costs
    allowed: float
    made: PrecisionChoice
    options: list[tuple[Unit, list[str]]] = field(default_factory=list)

    def choose(self) -> PrecisionChoice:
        faster = self.costs.faster
        if not faster:
            return self._float32("no layer is faster in bfloat16 or int8 than in float32 here")
        self.options = [(unit, [form for form in faster if unit in faster[form]]) for unit in self.costs.units]
        best = self._fastest([self._within_tolerance(), *self._wholes()])
        if not best:
            limit = f"{100 * self.allowed:.3g}%"
            return self._float32(f"no layer can leave float32 within the tolerance of {limit} ({self.made.metric})")
        return self._confirm(best)

    @property
    def _limit(self) -> float:
        """The largest error on the samples."""
        return _MARGIN * self.allowed

    def _solve(self, limit: float) -> dict[Unit, str]:
        """The fastest choice whose errors are predicted to stay within `limit`. Independent errors add in squares; 1 -
        cosine grows with the square of an error, and adds as it is.
        """
        power = 1.0 if self.costs.metric == "cosine" else 2.0
        groups = [
            [Option(self._gain({unit: form}), self.costs.unit_errors[unit, form] ** power) for form in forms]
            for unit, forms in self.options
        ]
        chosen = choose_options(groups, limit**power)
        pairs = zip(self.options, chosen, strict=True)
        return {unit: forms[index] for (unit, forms), index in pairs if index is not None}

    def _layers_in(self, chosen: Mapping[Unit, str]) -> dict[str, str]:
        return {layer: form for unit, form in chosen.items() for layer in unit}

    def _measure(self, chosen: Mapping[Unit, str]) -> float:
        """The error on all samples where it is within the limit, else that of a sample that is above."""
        return self.costs.error(self._layers_in(chosen), self._limit)

    def _gain(self, chosen: Mapping[Unit, str]) -> float:
        seconds = self.costs.seconds
        return sum(seconds(unit, FLOAT32) - seconds(unit, form) for unit, form in chosen.items())

    def _within_tolerance(self) -> dict[Unit, str]:
        """The choice that saves most among those whose measured error is within the tolerance; empty if none is."""
        allowed = limit = self._limit
        best: dict[Unit, str] = {}
        low, high, last = 0.0, math.inf, dict[Unit, str]()
        trifle = _TRIFLE * sum(self.costs.times[FLOAT32].values())
        for _ in range(_ATTEMPTS):
            chosen = self._solve(limit)
            if not chosen or chosen == last or (best and self._gain(chosen) < self._gain(best) + trifle):
                break
            error, last = self._measure(chosen), chosen
            if error <= allowed:
                low = limit
                best = max(best, chosen, key=self._gain)
            else:
                high = limit
            # Bisection between limits that hold and that do not, in the logarithm; a factor of 2 until both are known.
            is_between = low > 0.0 and high < math.inf
            limit = math.sqrt(low * high) if is_between else limit * (2.0 if error <= allowed else 0.5)
        return best or self._repair(last)

    def _wholes(self) -> list[dict[Unit, str]]:
        """All layers that are faster in one form, for each form whose measured error is within the tolerance: less is
        converted between layers than times of single layers tell.
        """
        wholes = [dict.fromkeys(units, form) for form, units in self.costs.faster.items()]
        return [whole for whole in wholes if self._measure(whole) <= self._limit]

    def _fastest(self, choices: Sequence[dict[Unit, str]]) -> dict[Unit, str]:
        """The choice whose network takes the least time; empty if all are."""
        different = [choice for number, choice in enumerate(choices) if choice and choice not in choices[:number]]
        if len(different) < 2:
            return different[0] if different else {}
        executors = [self.costs.executor(self._layers_in(choice)) for choice in different]
        with device_lock():
            first = seconds_in_turn(executors, rounds=1)
            near = [number for number, seconds in enumerate(first) if seconds <= _NEAR * min(first)]
            if len(near) < 2:
                return different[near[0]]
            seconds = seconds_in_turn([executors[number] for number in near])
        return different[near[seconds.index(min(seconds))]]

    def _repair(self, chosen: dict[Unit, str]) -> dict[Unit, str]:
        """The choice without the units of the largest errors, until the tolerance holds: first one becomes float32,
        then two, four, and so on.
        """
        left, count = dict(chosen), 1
        while left:
            for unit in sorted(left, key=lambda unit: -self.costs.unit_errors[unit, left[unit]])[:count]:
                left.pop(unit)
            count *= 2
            if left and self._measure(left) <= self._limit:
                break
        return left

    def _confirm(self, chosen: dict[Unit, str]) -> PrecisionChoice:
        """The choice, timed beside float32: layers that are slower in it become float32 while the tolerance holds."""
        names = [layer.name for layer in self.costs.layers]
        for _ in range(_ATTEMPTS):
            executors = {FLOAT32: self.costs.executor({}), AUTO: self.costs.executor(self._layers_in(chosen))}
            with device_lock():
                times = times_of_layers(executors, names)
            slower = [
                unit
                for unit in chosen
                if LEAST_GAIN * sum(times[AUTO].get(layer, 0.0) for layer in unit)
                > sum(times[FLOAT32].get(layer, 0.0) for layer in unit)
            ]
            left = {unit: form for unit, form in chosen.items() if unit not in slower}
            if not slower or not left or self._measure(left) > self._limit:
                break
            chosen = left
        executors[AUTO] = self.costs.executor(self._layers_in(chosen))
        with device_lock():
            seconds = dict(zip(executors, seconds_in_turn(list(executors.values())), strict=True))
        if seconds[AUTO] > LEAST_GAIN * seconds[FLOAT32] or not chosen:
            return self._float32("the network is no faster with layers in bfloat16 or int8 than in float32 here")
        return self._result(chosen, times, seconds)

    def _result(
        self, chosen: Mapping[Unit, str], times: Mapping[str, Mapping[str, float]], seconds: Mapping[str, float]
    ) -> PrecisionChoice:
        forms, unit_of = self._layers_in(chosen), {layer: unit for unit in chosen for layer in unit}
        rows = []
        for layer in self.costs.layers:
            form = forms.get(layer.name, FLOAT32)
            error = self.costs.unit_errors[unit_of[layer.name], form] if form != FLOAT32 else 0.0
            took = [times[kind].get(layer.name) for kind in (FLOAT32, AUTO)]
            rows.append(LayerChoice(layer.name, layer.op, form, took[0], took[1], error))
        error = self._measure(chosen)
        return replace(
            self.made,
            layers=tuple(rows),
            ranges=self.costs.ranges if INT8 in forms.values() else {},
            error=error,
            float32_seconds=seconds[FLOAT32],
            seconds=seconds[AUTO],
            curve=self._curve(error, chosen, seconds[FLOAT32]),
        )

    def _curve(self, error: float, chosen: Mapping[Unit, str], whole: float) -> tuple[tuple[float, float], ...]:
        """Predicted seconds of the network at other tolerances; predicted errors are scaled by the measured error."""
        power = 1.0 if self.costs.metric == "cosine" else 2.0
        predicted = sum(self.costs.unit_errors[unit, form] ** power for unit, form in chosen.items()) ** (1 / power)
        scale = predicted / error if error > 0.0 else 1.0
        return tuple((tolerance, max(whole - self._gain(self._solve(tolerance * scale)), 0.0)) for tolerance in _CURVE)

    def _float32(self, note: str) -> PrecisionChoice:
        seconds, name = self.costs.times[FLOAT32], self.costs.bench.graph.name
        rows = tuple(LayerChoice(layer.name, layer.op, FLOAT32, seconds.get(layer.name)) for layer in self.costs.layers)
        return replace(self.made, layers=rows, note=f"{name} stays in float32: {note}")
