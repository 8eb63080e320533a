"""Throughput of the search: programs sampled, scored and evolved per second and core.

    python -m benchmarks.search_speed [--only REGEX] [--seconds S] [--out FILE] [--programs N]

Programs are drawn for convolutions of a ResNet-50, with real search spaces and a trained model. Timed are the sampling,
the replay of their steps with bounds inference, the features, the prediction, and all of them together; then whole
rounds of the policy, a population and all of its generations with features and model, in individuals per second; then
how long the model trains on as many programs as a long run has measured, and on one more round. The targets are 20,000
programs per second for features and model, and 1 s of training.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np

from benchmarks.harness import Figure, Run, parse, seconds_of
from retune.compiler import te
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.model import TrainingBatch, XGBModel
from retune.compiler.model.features import extract
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.policy import SketchPolicy
from retune.compiler.search.space import SketchSpace
from retune.compiler.search.spaces import build_spaces
from retune.compiler.te.tensor import Tensor

CONVOLUTIONS = {
    "resnet50_conv_56x56_64_64_3x3": (56, 64, 64, 3, 1),
    "resnet50_conv_28x28_128_128_3x3": (28, 128, 128, 3, 1),
    "resnet50_conv_14x14_256_1024_1x1": (14, 256, 1024, 1, 1),
}
"""Name → output size, input channels, output channels, kernel size, stride."""

HARDWARE = HardwareParams(num_cores=2)
TRAINED_ON = 1024
LONG_RUN = 5000
ROUND = 64


def convolution(size: int, inputs: int, outputs: int, kernel: int, stride: int) -> SearchTask:
    """A padded channels-last convolution with bias and ReLU."""
    padding = kernel // 2
    extent = (size - 1) * stride + 1 + 2 * (kernel // 2)
    x = te.placeholder((1, extent - 2 * padding, extent - 2 * padding, inputs), name="x")
    w = te.placeholder((kernel, kernel, inputs, outputs), name="w")
    b = te.placeholder((outputs,), name="b")
    padded = _padded(x, padding) if padding else x
    ry, rx, rc = te.reduce_axis(kernel, "ry"), te.reduce_axis(kernel, "rx"), te.reduce_axis(inputs, "rc")
    conv = te.compute(
        (1, size, size, outputs),
        lambda n, y, x, c: te.sum(padded[n, y * stride + ry, x * stride + rx, rc] * w[ry, rx, rc, c], [ry, rx, rc]),
        name="conv",
        attrs={"layout_free_placeholders": (w,)},
    )
    relu = te.compute(
        conv.shape, lambda n, y, x, c: te.maximum(conv[n, y, x, c] + b[c], te.const(0.0, "float32")), name="relu"
    )
    return SearchTask("conv", ComputeDAG([x, w, b, relu]), Target.host(), HARDWARE)


def _padded(x: Tensor, padding: int) -> Tensor:
    batch, height, width, channels = x.shape
    low = padding
    return te.compute(
        (batch, height + 2 * low, width + 2 * low, channels),
        lambda n, y, z, c: te.if_then_else(
            te.logical_and(low <= y, y < height + low, low <= z, z < width + low),
            x[n, y - low, z - low, c],
            te.const(0.0, "float32"),
        ),
        name="pad",
    )


def trained_model(space: SketchSpace) -> XGBModel:
    """A model of usual size for the programs of a space, trained on invented times."""
    model = XGBModel(seed=0, threads=1)
    for batch in invented(space, TRAINED_ON, np.random.default_rng(1)):
        model.update(batch)
    return model


def invented(space: SketchSpace, programs: int, rng: np.random.Generator) -> list[TrainingBatch]:
    """Programs of a space with invented times, a batch a family: families differ in how many statements they have."""
    batches = []
    for _, group in space.groups(space.sample(rng, programs)):
        features = extract(group.nests, group.choices, HARDWARE, count=len(group.rows))
        batches.append(TrainingBatch("conv", features, rng.lognormal(-7.0, 0.5, len(features))))
    return batches


def figures(name: str, run: Run) -> Iterator[Figure]:
    """Programs a second of every stage, for the largest space of one convolution."""
    task = convolution(*CONVOLUTIONS[name])
    space = max(build_spaces(task, SearchOptions()), key=lambda one: one.layout.width)
    model = trained_model(space)
    programs = run.options["programs"]
    rows = space.sample(np.random.default_rng(0), programs)
    groups = [group for _, group in space.groups(rows)]

    def features() -> list[Any]:
        return [extract(group.nests, group.choices, HARDWARE, count=len(group.rows)) for group in groups]

    found = features()
    stages: dict[str, Callable[[], object]] = {
        "sampling": lambda: space.sample(np.random.default_rng(0), programs),
        "replay": lambda: list(space.groups(rows)),
        "features": features,
        "prediction": lambda: [model.predict(one) for one in found],
        "features and prediction": lambda: [model.predict(one) for one in features()],
        "replay, features and prediction": lambda: [
            model.predict(extract(group.nests, group.choices, HARDWARE, count=len(group.rows)))
            for _, group in space.groups(rows)
        ],
    }
    details = {"programs": programs, "families": len(groups), "statements": found[0].shape[1]}
    for stage, work in stages.items():
        speed = programs / seconds_of(work, seconds=run.seconds)
        yield Figure(name, "retune", 1, f"programs a second: {stage}", speed, "1/s", details=details)
    yield evolution(name, task, model, run)
    yield from training_figures(name, space, run)


def evolution(name: str, task: SearchTask, model: XGBModel, run: Run) -> Figure:
    """Individuals a second of whole rounds, in all spaces and generations; twins count, as they do in a search."""
    options = SearchOptions(population=run.options["programs"])
    policy = SketchPolicy(task, model, options)
    rounds = count()
    speed = (
        options.population
        * (1 + options.generations)
        / seconds_of(lambda: policy.ask(64, next(rounds)), seconds=run.seconds)
    )
    details = {"population": options.population, "generations": options.generations, "spaces": len(policy.spaces)}
    return Figure(name, "retune", 1, "programs a second: evolution", speed, "1/s", details=details)


def training_figures(name: str, space: SketchSpace, run: Run) -> Iterator[Figure]:
    """Seconds of a training from scratch on a long run's programs, and of an update with a round."""
    rng = np.random.default_rng(2)
    known = invented(space, LONG_RUN, rng)
    fresh = max(invented(space, 2 * ROUND, rng), key=lambda batch: len(batch.seconds))
    fresh = TrainingBatch(fresh.task_key, fresh.features[:ROUND], fresh.seconds[:ROUND])
    trained = XGBModel(seed=0, threads=1)

    def scratch() -> XGBModel:
        model = XGBModel(seed=0, threads=1)
        model.learn(known)
        return model

    taken = seconds_of(scratch, seconds=run.seconds)
    yield Figure(name, "retune", 1, "training from scratch", taken, "s", details={"programs": LONG_RUN})
    trained.learn(known)
    taken = seconds_of(lambda: trained.update(fresh), seconds=min(run.seconds, 0.5))
    yield Figure(name, "retune", 1, "training on a round", taken, "s", details={"programs": len(fresh.seconds)})


def main(argv: Sequence[str] | None = None) -> None:
    """Print nine JSON lines a convolution."""
    run = parse(
        __doc__,
        argv,
        seconds=1,
        seconds_help="seconds for each figure",
        options={"programs": (2048, "programs scored at once")},
    )
    for name in filter(run.wants, CONVOLUTIONS):
        run.write_all(figures(name, run))


if __name__ == "__main__":
    main()
