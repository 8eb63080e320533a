"""What layers cost in each precision: seconds in the network, and errors at its outputs.

All is measured when it is first asked for, so that several choices for one network measure once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from retune.compiler.graph.precision.layers import FLOAT32, FORMS, INT8, Assignment, Layer, layers_of
from retune.compiler.measure.processes.device_lock import device_lock
from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.executor.graph_executor import GraphExecutor
from retune.compiler.tune.precision.bench import Bench, kernels_together, run, times_of_layers
from retune.compiler.tune.precision.calibrate import METHODS, Ranges, collect_ranges
from retune.compiler.tune.precision.errors import error_of
from retune.compiler.tune.precision.request import Metric
from retune.compiler.tune.precision.samples import Sample
from retune.compiler.tune.precision.sensitivity import Sensitivity, Unit, units_of

LEAST_GAIN = 0.97
"""A form must take at most this share of the time in float32; less is within the noise of timing."""
_SENSED = 2
"""Samples that errors of single layers are measured on."""


@dataclass
class Costs:
    """Costs of the layers of the network of `bench`. Ranges and errors of single layers come from `samples`, errors of
    whole networks from these and from `held_out`, which no range covers: of a few samples alone the largest error
    differs from that of others by a factor of two.
    """

    bench: Bench
    metric: str | Metric
    samples: Sequence[Sample]
    held_out: Sequence[Sample]
    _errors: dict[frozenset[tuple[str, str]], float] = field(default_factory=dict)

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """The layers, in the order of the graph."""
        return layers_of(self.bench.graph)

    @property
    def checked(self) -> Sequence[Sample]:
        """The samples that errors of whole networks are measured on."""
        # First those that no range covers: they err most, and tell soonest that a tolerance does not hold.
        return self.held_out if self.held_out is self.samples else [*self.held_out, *self.samples]

    @cached_property
    def reference(self) -> list[list[Array]]:
        """The outputs in float32 of each sample that is checked."""
        return [run(self.bench.float32(), sample) for sample in self.checked]

    @cached_property
    def ranges(self) -> Ranges:
        """The ranges of the method whose int8 network has the least mean error at the outputs."""
        by_method = collect_ranges(self.bench, self.samples)
        metric = self.metric if callable(self.metric) else "mean"
        layers, samples = self.all_in(INT8), self.samples[:_SENSED]
        reference = [run(self.bench.float32(), sample) for sample in samples]
        errors = {}
        for method in METHODS:
            executor = self.bench.compile_form(Assignment(layers, by_method[method]))
            errors[method] = error_of(metric, [run(executor, sample) for sample in samples], reference)
        return by_method[min(METHODS, key=lambda method: errors[method])]

    def all_in(self, form: str) -> dict[str, str]:
        """Every layer that has a form, in it."""
        return {layer.name: form for layer in self.layers if form in layer.forms}

    def executor(self, layers: Mapping[str, str]) -> GraphExecutor:
        """The network with layers in these precisions."""
        return self.bench.compile_form(Assignment(layers, self.ranges if INT8 in layers.values() else {}))

    def error(self, layers: Mapping[str, str], most: float = np.inf) -> float:
        """The error at the outputs, on all samples, of a network with layers in these precisions; that of one sample
        where it exceeds `most`.
        """
        key = frozenset(layers.items())
        if key in self._errors:
            return self._errors[key]
        executor, outputs = self.executor(layers), list[list[Array]]()
        for sample, reference in zip(self.checked, self.reference, strict=True):
            outputs.append(run(executor, sample))
            # Top-1 is a share of all samples.
            if self.metric != "top1" and (error := error_of(self.metric, outputs[-1:], [reference])) > most:
                return error
        self._errors[key] = error_of(self.metric, outputs, self.reference)
        return self._errors[key]

    @cached_property
    def times(self) -> dict[str, dict[str, float]]:
        """Seconds of each layer by form."""
        return self._timed[0]

    @cached_property
    def units(self) -> list[Unit]:
        """Layers in the groups whose precision is chosen together."""
        return self._timed[1]

    @cached_property
    def _timed(self) -> tuple[dict[str, dict[str, float]], list[Unit]]:
        names = [layer.name for layer in self.layers]
        executors = {form: self.executor(self.all_in(form)) for form in (FLOAT32, *FORMS)}
        with device_lock():
            times = times_of_layers(executors, names)
        return times, units_of(self.layers, kernels_together(executors, names))

    def seconds(self, unit: Unit, form: str) -> float:
        """Seconds of the layers of a unit in a form."""
        return sum(self.times[form].get(layer, 0.0) for layer in unit)

    @cached_property
    def faster(self) -> dict[str, list[Unit]]:
        """The units whose layers all have a form, and are faster in it, for each form with such."""
        forms_of = {layer.name: layer.forms for layer in self.layers}
        faster = {
            form: [
                unit
                for unit in self.units
                if all(form in forms_of[layer] for layer in unit)
                and self.seconds(unit, form) < LEAST_GAIN * self.seconds(unit, FLOAT32)
            ]
            for form in FORMS
        }
        return {form: units for form, units in faster.items() if units}

    @cached_property
    def unit_errors(self) -> dict[tuple[Unit, str], float]:
        """The error at the outputs of each unit alone, in each form in which it is faster."""
        sensed = self.metric if self.metric in ("largest", "mean", "cosine") else "mean"
        return Sensitivity(self.bench, self.ranges, sensed, self.samples[-_SENSED:]).measure(self.faster)
