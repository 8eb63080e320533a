"""The functions of `import retune` that compile: compile, tune, export, profile, explain."""

import inspect
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from retune.compiler.core import config
from retune.compiler.core.errors import ArtifactError, OptionError
from retune.compiler.core.input_shapes import has_sizes, shape_texts
from retune.compiler.core.options import TuneOptions, flag_of, kinds_of
from retune.compiler.driver.export import ExportedModel, exported_files
from retune.compiler.graph.precision.layers import Assignment
from retune.compiler.measure.record import TaskProgram
from retune.compiler.runtime.arguments import path_of, require_thread_count
from retune.compiler.runtime.atomic_write import require_writable
from retune.compiler.runtime.executor.library import Library
from retune.compiler.tune.explain import Explanation
from retune.compiler.tune.extract import Extracted, ImportedNetwork
from retune.compiler.tune.extract_dynamic import ExtractedDynamic
from retune.compiler.tune.precision.request import Metric, PrecisionChoice, PrecisionRequest, require_precision
from retune.compiler.tune.precision.samples import read_samples, save_samples
from retune.compiler.vm.executable import Executable
from retune.flows.cli.commands.arguments import home_of, state_folder_of
from retune.flows.cli.commands.compile import HOST, choose_precisions
from retune.flows.cli.commands.export import export_model
from retune.flows.cli.kernel_explainer import KernelExplainer
from retune.flows.dynamic_network import compile_dynamic, import_network
from retune.flows.parameters import TuneJob
from retune.models import Model, is_torch_module, model_of
from retune.network import Network
from retune.network_report import NetworkReport
from retune.storage.parquet import ParquetRecordStore
from retune.storage.runs import RunInfo, RunLedger
from retune.storage.store_url import Location
from retune.tasks.find_programs import find_programs, symbolic_programs
from retune.tuning import run_tuning

_log = logging.getLogger(__name__)

EFFORTS = {"quick": 16, "standard": 64, "thorough": 256}
"""Trials for each tuning task of a network, by the name of the effort. 64 are one round of a task, Ansor's batch; four
rounds are what its paper gives a task of a network.
"""


def compile(
    model: object,
    *args: object,
    dynamic: bool = False,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    threads: int | None = None,
    target: str | None = None,
    store: str | Path | None = None,
    precision: str | None = None,
    tolerance: float | None = None,
    metric: str | Metric | None = None,
    calibrate: object = None,
    **kwargs: object,
) -> Network:
    """Compile a model with the best programs that the store has for this machine; only precision "auto" measures.

    `model` is a `torch.nn.Module`, with example inputs in `args` and `kwargs`; an ONNX model, its bytes or its path; or
    a name of the zoo. `shapes` are those of dynamic inputs by name, such as `{"ids": (1, 128)}`. With `dynamic`, or a
    range among them as in `{"ids": ("1..8", "1..512")}`, kernels are compiled once for all shapes, and dimensions that
    `shapes` does not have stay those of the model. `threads` are all cores unless given. `store` is the
    state folder, ./.retune unless given, or a URL. `precision` is "float32", "bfloat16", "int8" or "auto", with which
    the error of the outputs stays within `tolerance` (0.01) by `metric`: "largest", "mean", "cosine", "top1" or a
    function of the outputs and those in float32. `calibrate` are samples of the inputs: the path of a `.npz` or of a
    folder of them, or an iterable of dictionaries or arrays. The precision of each layer is `network.precision`.
    Raises: ModelError when the model cannot be imported; OptionError, TargetError, StoreError.
    """
    home = home_of(None if store is None else str(store))
    texts = shape_texts(shapes)
    dynamic = dynamic or has_sizes(texts)
    known = _model_of(compile, model, args, kwargs, store, dynamic=dynamic)
    count = _thread_count(threads)
    if dynamic:
        compiler = compile_dynamic(known.source, texts, target or HOST, count, precision, home)
        return Network(compiler.get_exec(), known.signature)
    details = {"tolerance": tolerance, "metric": None if callable(metric) else metric}
    options = TuneOptions.of(config.load(), target=target, precision=precision, **details)
    require_precision(options, {"metric": metric, "calibrate": calibrate, "tolerance": tolerance})
    request = PrecisionRequest.of(options, metric=metric if callable(metric) else None, calibrate=calibrate)
    imported = ImportedNetwork(known.source, texts)
    choice = choose_precisions(imported, request, options, count, home)
    if choice is not None and choice.note:
        _log.warning("%s", choice.note)
    extracted = imported.extract(options.target or HOST, count, options.winograd)
    programs = find_programs(extracted, home, None)
    explainer = KernelExplainer(extracted, programs, home)
    network = extracted.compile(programs, release=True)
    return Network(Library(network), known.signature, explainer, choice)


def tune(
    model: object,
    *args: object,
    minutes: float | None = None,
    trials: int | None = None,
    effort: str | None = None,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    store: str | Path | None = None,
    progress: bool = True,
    precision: str | None = None,
    tolerance: float | None = None,
    metric: str | None = None,
    calibrate: Any = None,
    options: Mapping[str, object] | None = None,
    **kwargs: object,
) -> Network:
    """Search for the fastest programs of a model's kernels on this machine, and compile it with them.

    This is `retune tune`: the same flow, records, resumption after an interruption, and report. The search ends after
    so many `minutes` or `trials`, or by `effort`: "quick", "standard" (the default) or "thorough", which are 16, 64 and
    256 trials for each kind of kernel. The same call again searches no more and takes the result from the store. With
    a range in `shapes` kernels are tuned for a sample of shapes, log-uniform over the ranges, or that of a file, the
    option `sample`.
    `model`, `args`, `kwargs`, `shapes`, `store`, `precision`, `tolerance` and `calibrate` are as for `compile`, and
    `metric` is a name. Precisions are chosen before the search, and what was chosen is tuned. `options` are further
    options of `retune tune` by name, such as `{"threads": 1, "seed": 7}`. Where the untuned network was faster, it is
    returned.
    Raises: ModelError, OptionError, TargetError, StoreError; MeasureError when the run fails.
    """
    home = None if store is None else str(store)
    known = _model_of(tune, model, args, kwargs, store)
    if options is not None and not isinstance(options, Mapping):
        raise OptionError(f"options map names of options to their values, unlike {options!r:.80}")
    if callable(metric):
        raise OptionError("a function as metric is for retune.compile; a tuning run takes a name, such as 'mean'")
    if calibrate is not None and not isinstance(calibrate, str | Path):
        inputs = ImportedNetwork(known.source, shape_texts(shapes)).prepared().inputs
        calibrate = save_samples(read_samples(calibrate, inputs, 0), models_folder(store))
    named = {
        "precision": precision,
        "tolerance": tolerance,
        "metric": metric,
        "calibrate": calibrate and str(calibrate),
    }
    chosen = {**(options or {}), **{name: value for name, value in named.items() if value is not None}}
    unknown = set(chosen) - {field.name for field in fields(TuneOptions)}
    if unknown:
        names = ", ".join(field.name for field in fields(TuneOptions))
        raise OptionError(f"there is no option {', '.join(sorted(unknown))}; there are {names}")
    texts = shape_texts(shapes)
    if effort is not None and effort not in EFFORTS:
        raise OptionError(f"effort must be one of {', '.join(EFFORTS)}, not {effort!r}")
    if effort is not None and (minutes is not None or trials is not None):
        raise OptionError("give the effort, or a limit in minutes or trials, not both")
    # Some limit, or `of` would take those of retune.toml; which one does not matter here, since the fingerprint of a
    # request has no budget in it.
    limits = {"minutes": minutes, "trials": 1 if trials is None else trials}
    job = TuneJob.of(known.source, shapes=texts, home=home, **{**chosen, **limits})
    imported = import_network(job)
    extracted = imported.extract(job.target, job.threads, job.options.winograd)
    if minutes is None and trials is None:
        trials = EFFORTS[effort or "standard"] * max(1, len(extracted.tasks))
    chosen.update(minutes=minutes, trials=trials)
    # By the fingerprint, not by the arguments: the same request from a script and from the command line is one run.
    done = _finish(job, extracted, trials, minutes)
    if done is None:
        ledger = RunLedger(job.location)
        before = {run.run_id for run in ledger.list() if run.is_complete}
        run_tuning(known.source, _flags(chosen, texts, home), progress=progress)
        wanted = job.fingerprint(extracted.task_keys)
        ended = (run for run in ledger.list() if run.is_complete and run.run_id not in before)
        of_network = (run for run in ended if run.describe.get("network") == job.network)
        # A fleet's device changes the fingerprint, so that it only decides where several runs ended meanwhile.
        done = max(of_network, key=lambda run: (run.fingerprint == wanted, run.run_id))
    if isinstance(extracted, ExtractedDynamic):
        programs = symbolic_programs(job.location, job.target, job.threads)
        explainer = KernelExplainer(extracted, programs, job.location)
        return Network(Executable.load(_fastest(job, done)), known.signature, explainer)
    library = Library.load(_fastest(job, done))
    choice = PrecisionChoice.from_json(done.precision) if done.precision else None
    if library.instances > 1 or choice:  # for a part of the threads, or with layers in other precisions
        imported = ImportedNetwork(known.source, texts)
        imported.assign(choice.assignment if choice else Assignment())
        extracted = imported.extract(job.target, job.threads // library.instances, job.options.winograd)
    explainer = KernelExplainer(extracted, _served_programs(library, job.location), job.location)
    return Network(library, known.signature, explainer, choice)


def _served_programs(library: Library, home: Location) -> dict[str, TaskProgram]:
    """The programs that a network was compiled from, as far as the store has their records."""
    store = ParquetRecordStore(home)
    ids = {row.task_key: row.record_id for row in library.network.coverage if row.record_id}
    records = {key: {each.record_id: each for each in store.records(task_key=key)} for key in ids}
    named = {key: records[key].get(number) for key, number in ids.items()}
    return {key: record.program for key, record in named.items() if record is not None}


def export(
    model: object,
    path: str | Path,
    *args: object,
    runtime: str = "onnxruntime",
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    threads: int | None = None,
    target: str | None = None,
    store: str | Path | None = None,
    **kwargs: object,
) -> ExportedModel:
    """Write a model for another runtime, compiled with the best programs that the store has; nothing is measured.

    For ONNX Runtime these are NAME.onnx and NAME.so, a library of custom operators. Nodes that Retune cannot compile
    stay as they are, between compiled parts. With `runtime="c"` they are NAME.so and NAME.h. `model` may be a compiled
    network too, as `Network.export` takes it; the other arguments are as for `compile`.
    Raises: ModelError when no node can be imported; OptionError, TargetError, StoreError; as `Network.export`.
    """
    if isinstance(model, Network):
        if args or kwargs or shapes or threads or target:
            raise OptionError("the network is compiled: inputs, shapes, threads and target are for models")
        return model.export(path, runtime=runtime)
    path = path_of(path)
    for file in exported_files(path, runtime):
        require_writable(file)
    home = home_of(None if store is None else str(store))
    known = _model_of(export, model, args, kwargs, store)
    options = TuneOptions.of(config.load(), target=target, threads=_thread_count(threads))
    return export_model(known.source, path, runtime, options, shape_texts(shapes), home)[0]


def profile(network: Network, *args: object, **kwargs: object) -> NetworkReport:
    """Where the time of a run on the given inputs goes; zeros unless given. Raises: OptionError."""
    if not isinstance(network, Network):
        raise OptionError(f"a compiled network is needed, such as retune.compile makes, not {network!r:.80}")
    return network.profile(*args, **kwargs) if args or kwargs else network.report()


def explain(network: Network, kernel: str) -> Explanation:
    """What a kernel of a network computes, how, what limits it, and how it was found: `retune explain`.

    `kernel` is its name, as `network.report()` shows it, or how it begins; print the result, or take one
    stage of it with `stage("asm")`. The network must be made by `compile` or `tune`: files have no schedules.
    Raises: OptionError for a network from a file or of dynamic shapes, or when no kernel is called so, or several are.
    """
    if not isinstance(network, Network):
        raise OptionError(f"a compiled network is needed, such as retune.compile makes, not {network!r:.80}")
    explainer = network.explainer
    if explainer is None:
        raise OptionError("this network comes from a file or has dynamic shapes: compile the model to explain a kernel")
    if not isinstance(kernel, str):
        raise OptionError(f"a kernel is named by a string, not {kernel!r:.80}")
    names = explainer.find(kernel)
    if len(names) > 1:
        raise OptionError(f"{len(names)} kernels begin with {kernel!r}: {', '.join(names)}")
    return explainer.explain(names[0])


def _model_of(
    function: Callable[..., Any],
    model: object,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    store: str | Path | None,
    *,
    dynamic: bool = False,
) -> Model:
    """The model as `model_of` has it, for an API function with its further arguments.

    Raises: as `model_of`; OptionError when a model that is no PyTorch module has example inputs, which every keyword
    is that `function` does not know.
    """
    if not is_torch_module(model):
        if kwargs:
            parameters = inspect.signature(function).parameters.values()
            names = ", ".join(entry.name for entry in parameters if entry.kind is entry.KEYWORD_ONLY)
            raise OptionError(f"{function.__name__} has no argument {', '.join(kwargs)}; it has {names}")
        if args:
            raise OptionError("example inputs are for a torch.nn.Module: leave them out for other models")
    return model_of(model, args, kwargs, models_folder(store), dynamic=dynamic)


def _thread_count(threads: int | None) -> int:
    if threads is None:
        return config.thread_count(config.usable_cores())
    require_thread_count(threads)
    return threads


def models_folder(store: str | Path | None) -> Path:
    """Where models that come from memory are kept as files: in the state folder of this machine."""
    return state_folder_of(None if store is None else str(store)) / "models"


def _flags(options: Mapping[str, object], shapes: Sequence[str], store: str | None) -> list[str]:
    """The options as arguments of `retune tune`."""
    kinds = kinds_of(TuneOptions)
    flags = [flag for text in shapes for flag in ("--shape", text)]
    flags += [] if store is None else ["--store", os.path.abspath(store) if "://" not in store else store]
    for field in fields(TuneOptions):
        value = options.get(field.name)
        if value is None:
            continue
        name = flag_of(field)
        flags += [f"--{name}" if value else f"--no-{name}"] if kinds[field.name] is bool else [f"--{name}", str(value)]
    return flags


def _finish(job: TuneJob, extracted: Extracted, trials: int | None, minutes: float | None) -> RunInfo | None:
    """A finished run of the same request with at least this budget; the fastest of several."""
    wanted = job.fingerprint(extracted.task_keys)
    runs = []
    for run in RunLedger(job.location).list():
        if run.fingerprint != wanted or not run.is_complete or run.summary is None:
            continue
        asked = run.describe
        enough = _at_least(asked.get("trials"), trials) and _at_least(asked.get("minutes"), minutes)
        # The folder of a run may have been deleted by hand since.
        if enough and run.summary.get("is_right") and Path(str(run.summary.get("artifact"))).exists():
            runs.append(run)
    return min(runs, key=lambda run: float((run.summary or {})["tuned_seconds"] or 0.0), default=None)


def _at_least(spent: Any, limit: float | None) -> bool:
    """Whether a run with the limit `spent`, None for no limit, searched as much as `limit` asks for."""
    return spent is None or (limit is not None and float(spent) >= limit)


def _fastest(job: TuneJob, run: RunInfo) -> Path:
    """The file of a finished run: the tuned network, unless the untuned network was faster. Raises: ArtifactError."""
    summary = run.summary or {}
    tuned = Path(str(summary.get("artifact", "")))
    if not summary.get("is_right"):
        raise ArtifactError(
            f"the run {run.run_id} made a network with wrong results: see its report in {job.run_folder(run.run_id)}"
        )
    untuned = tuned.parent / "untuned" / tuned.name
    is_slower = float(summary["tuned_seconds"] or 0.0) > float(summary["untuned_seconds"] or 0.0)
    return untuned if is_slower and untuned.exists() else tuned
