"""Tuning tasks of single operators, by name and sizes, or of workloads that a module registers.

The request is one line of text, accepted wherever the name of a network is:

    operator:["retune.matmul", 512, 512, 512]            an operator of the table here
    operator:my_package.workloads:["gemm", 64, 64]       a workload that importing the module registers

The operators here take float32 and are those of `retune.compiler.ops`. Activations are channels-last, weights are
constants that a kernel may pack. Convolutions of stride 1 are padded to keep the size.
"""

import importlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retune.compiler import te
from retune.compiler.core.errors import OptionError, RetuneError
from retune.compiler.core.target import Target
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.ops import OPS, Attribute
from retune.compiler.ops.norm import layer_norm
from retune.compiler.schedule.task import SearchTask
from retune.compiler.schedule.workload_registry import register_workload
from retune.compiler.te.tensor import Tensor
from retune.compiler.tune.extract import Extracted, extract_network

PREFIX = "operator:"
# PyTorch's and ONNX's default.
_EPSILON = 1e-5

Argument = int | float | str | list[Any] | None


def matmul(rows: int, columns: int, inner: int) -> list[Tensor]:
    """(rows × inner) by a constant (inner × columns)."""
    x, w = te.placeholder((rows, inner), name="x"), te.placeholder((inner, columns), name="w")
    return [x, w, OPS["dense"].tensor((x, w), name="product", constants=frozenset({w}))]


def batched_matmul(batch: int, rows: int, columns: int, inner: int) -> list[Tensor]:
    """`batch` products of two activations, (rows × inner) by (inner × columns)."""
    x, w = te.placeholder((batch, rows, inner), name="x"), te.placeholder((batch, inner, columns), name="w")
    return [x, w, OPS["batch_matmul"].tensor((x, w), name="product")]


def conv2d(
    height: int, width: int, channels: int, filters: int, kernel: int, stride: int = 1, dilation: int = 1
) -> list[Tensor]:
    """A convolution of (1, height, width, channels) with `filters` filters of kernel × kernel."""
    return _convolution((height, width), (channels, filters), kernel, stride, dilation, groups=1)


def depthwise_conv2d(height: int, width: int, channels: int, kernel: int, stride: int = 1) -> list[Tensor]:
    """A convolution of (1, height, width, channels) with one filter of kernel × kernel for each channel."""
    return _convolution((height, width), (channels, channels), kernel, stride, 1, groups=channels)


def row_softmax(rows: int, columns: int) -> list[Tensor]:
    """Softmax of every row."""
    x = te.placeholder((rows, columns), name="x")
    return [x, OPS["softmax"].tensor((x,), {"axis": 1})]


def row_norm(rows: int, columns: int) -> list[Tensor]:
    """Layer normalization of every row, with scale and bias."""
    x = te.placeholder((rows, columns), name="x")
    scale, bias = (te.placeholder((columns,), name=name) for name in ("scale", "bias"))
    return [x, scale, bias, layer_norm(x, scale, bias, axis=1, epsilon=_EPSILON)]


def _convolution(
    size: tuple[int, int], channels: tuple[int, int], kernel: int, stride: int, dilation: int, groups: int
) -> list[Tensor]:
    taken, made = channels
    pad = (kernel - 1) * dilation // 2
    window = (kernel, kernel, made) if groups > 1 else (kernel, kernel, taken, made)
    x, w = te.placeholder((1, *size, taken), name="x"), te.placeholder(window, name="w")
    attrs: dict[str, Attribute] = {
        "strides": (stride, stride),
        "dilations": (dilation, dilation),
        "pads": (pad,) * 4,
        "groups": groups,
        "layout": "NHWC",
    }
    return [x, w, OPS["conv2d"].tensor((x, w), attrs, name="conv", constants=frozenset({w}))]


OPERATORS: Mapping[str, Callable[..., list[Tensor]]] = {
    "matmul": matmul,
    "batch_matmul": batched_matmul,
    "conv2d": conv2d,
    "depthwise_conv2d": depthwise_conv2d,
    "softmax": row_softmax,
    "layer_norm": row_norm,
}
"""The operators by name; their parameters are the sizes that are asked for. A task has the name after `retune.`."""

for _name, _function in OPERATORS.items():
    # A module that is imported again must not fail on names that it took itself.
    register_workload(f"retune.{_name}", _function, override=True)


@dataclass(frozen=True, slots=True)
class Operator:
    """A request for one operator: `name` in the workload registry, its arguments `args`, and the `module` that
    registers it ("" for this module).
    """

    name: str
    args: tuple[Argument, ...]
    module: str = ""

    @classmethod
    def of(cls, workload: str, args: Sequence[Argument], module: str = "") -> "Operator":
        """The operator `workload` of the table, or a workload that `module` registers, checked against what it takes.

        Raises: OptionError.
        """
        if module:
            return cls(workload, tuple(args), module)
        function = OPERATORS.get(workload)
        if function is None:
            raise OptionError(
                f"there is no operator {workload!r}; there are {', '.join(OPERATORS)}, "
                "and whatever a module registers, if you name the module"
            )
        signature = inspect.signature(function).replace(return_annotation=inspect.Signature.empty)
        try:
            signature.bind(*args)
        except TypeError as error:
            raise OptionError(f"{workload}{signature}: {error}") from None
        if not all(isinstance(each, int) and not isinstance(each, bool) and each > 0 for each in args):
            raise OptionError(f"{workload} takes integers of at least 1, not {list(args)}")
        return cls(f"retune.{workload}", tuple(args))

    @classmethod
    def parse(cls, text: str) -> "Operator":
        """The operator of a line. Raises: OptionError."""
        module, sign, rest = text.removeprefix(PREFIX).partition("[")
        try:
            name, *args = json.loads(sign + rest)
        except ValueError:
            name, args = None, []
        if not text.startswith(PREFIX) or not isinstance(name, str):
            raise OptionError(f'{text!r} is no operator; write {PREFIX}["retune.matmul", 512, 512, 512]')
        module = module.rstrip(":")
        return cls.of(name if module else name.removeprefix("retune."), args, module)

    def __str__(self) -> str:
        module = f"{self.module}:" if self.module else ""
        return f"{PREFIX}{module}{json.dumps([self.name, *self.args])}"


def is_operator(text: str) -> bool:
    """Whether a string names an operator and no network."""
    return text.startswith(PREFIX)


def operator_label(text: str) -> str:
    """The operator of a line, short enough for a list. Raises: OptionError."""
    operator = Operator.parse(text)
    return "_".join([operator.name.removeprefix("retune."), *map(str, operator.args)])


def label_of(subject: str) -> str:
    """What is to be tuned, short enough for a list: a name of the zoo as it is, of a path the name of the file, of an
    operator its name and sizes.
    """
    return operator_label(subject) if is_operator(subject) else Path(subject).stem or subject


def extract_operator(text: str, target: str, threads: int) -> Extracted:
    """The tuning task of an operator.

    Importing a module runs its code; name only modules of your own.
    Raises: OptionError when the module cannot be imported or registers no such workload, or its arguments do not fit;
    TargetError.
    """
    operator, machine = Operator.parse(text), Target(target)
    if operator.module:
        try:
            importlib.import_module(operator.module)
        except Exception as error:  # whatever the code of a user raises
            name = type(error).__name__
            raise OptionError(f"the module {operator.module} cannot be imported: {name}: {error}") from error
    try:
        task = SearchTask.of_workload(operator.name, operator.args, machine, hardware_of(machine, threads))
    except Exception as error:
        kind = "" if isinstance(error, RetuneError) else f"{type(error).__name__}: "
        raise OptionError(f"{text}: {kind}{error}") from error
    name = operator_label(text)
    named = SearchTask(name, task.dag, task.target, task.hardware, task.key, task.layout)
    return Extracted(text, name, machine, threads, [(named, 1, 0)])


def extract(subject: str, target: str, threads: int) -> Extracted:
    """The tuning tasks of a network, or of an operator in a line as `Operator` writes it.

    Raises: as `extract_network`, `extract_operator`.
    """
    extractor = extract_operator if is_operator(subject) else extract_network
    return extractor(subject, target, threads)
