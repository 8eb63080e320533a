"""Random PyTorch functions with views and writes in place: the backend `retune` against eager PyTorch.

A function is a text, so that a failing one can be read and run. Eager mode tries each statement before it is kept.
"""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.correctness.compare import Arrays, Outcome, judged, nudged, tolerance

_TYPES = ("float32", "float32", "float32", "float64", "float16", "bfloat16", "int64", "int32", "bool")
_LARGEST = 1e4
_VIEWS = (
    "{x}.t()", "{x}.transpose(0, -1)", "{x}.unsqueeze({i})", "{x}.reshape(-1)", "{x}.flatten()", "{x}[1:]", "{x}[::2]",
    "{x}[..., -1]", "{x}[..., :2]", "{x}[0]", "{x}.narrow(0, 0, 1)", "{x}.expand(3, *{x}.shape)", "{x}.movedim(0, -1)",
    "{x}.squeeze()", "{x}.chunk(2, -1)[0]", "{x}.diagonal()", "{x}.unfold(-1, 2, 1)", "{x}.view({x}.shape[::-1])",
    "{x}.split(1, 0)[-1]", "{x}.as_strided(({x}.shape[-1],), (1,))", "{x}.mT",
)  # fmt: skip
_COMPUTED = (
    "{x} + {y}", "{x} - {y}", "{x} * {y}", "{x} @ {y}", "{x} * {c}", "torch.where({x} > 0, {x}, {y})", "{x}.relu()",
    "{x}.tanh()", "{x}.sigmoid()", "{x}.abs()", "{x}.sum({i})", "{x}.sum()", "{x}.mean(-1, keepdim=True)",
    "{x}.amax({i})",
    "{x}.cumsum(-1)", "{x}.softmax(-1)", "torch.cat([{x}, {y}], {i})", "torch.stack([{x}, {y}])", "{x}.clamp(-1, 1)",
    "{x}.flip({i})", "{x}.roll(1, -1)", "torch.maximum({x}, {y})", "{x} > {y}", "{x}.to(torch.float32)", "{x}.clone()",
    "{x}.float().var(-1)", "{x}.argmax(-1)", "{x}.sort(-1)[0]", "{x}.any()", "{x}.contiguous()", "{x}.repeat(2, 1)",
    "{x}.to(torch.int64)", "-{x}", "{x}.tril()", "torch.nn.functional.pad({x}, (1, 0))", "{x}.logical_not()",
)  # fmt: skip
_WRITES = (
    "{x}.add_({y})", "{x}.mul_({c})", "{x}.relu_()", "{x}.zero_()", "{x}.copy_({y})", "{x}[0] = {y}",
    "{x}[..., 1:] = {c}",
    "{x}[::2] += {c}", "{x}.fill_({c})", "{x}.clamp_(-1, 1)", "{x}.sub_({y})", "{x}[{x} > 0] = {c}", "{x}.tanh_()",
    "{x}.t().add_({c})", "{x}.masked_fill_({x} > 0, {c})", "{x}.neg_()", "{x}.index_fill_(0, torch.tensor([0]), {c})",
)  # fmt: skip


def function_of(seed: int) -> tuple[str, Callable[[], list[Any]]]:
    """The text of a function `f` of three tensors, and what makes the tensors."""
    import torch

    rng = np.random.default_rng([seed, 5])
    dtypes = [getattr(torch, _TYPES[rng.integers(len(_TYPES))])] * 2 + [torch.float32]
    rows, columns = (int(size) for size in rng.integers(1, 7, 2))
    shapes = [
        (rows, columns),
        [(rows, columns), (columns,), (1, columns), (columns, rows)][rng.integers(4)],
        (rows, rows),
    ]

    def inputs() -> list[Any]:
        torch.manual_seed(seed)
        return [(torch.randn(shape) * 2).to(dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]

    lines: list[str] = []
    names, count = ["a", "b", "c"], int(rng.integers(3, 11))
    for _ in range(12 * count):
        if len(lines) >= count:
            break
        kinds = (_VIEWS, _COMPUTED, _WRITES)
        forms = kinds[rng.choice(3, p=[0.35, 0.35, 0.3])]
        pick = [names[int(len(names) * (1 - rng.random() ** 2)) % len(names)] for _ in range(2)]
        text = forms[rng.integers(len(forms))].format(
            x=pick[0], y=pick[1], c=("2", "-1", "3")[rng.integers(3)], i=rng.integers(2)
        )
        name = f"v{len(names) - 3}"
        line = text if forms is _WRITES else f"{name} = {text}"
        if _works([*lines, line], "" if forms is _WRITES else name, inputs()):
            lines.append(line)
            names += [] if forms is _WRITES else [name]
    shown = [name for name in names[3:] if rng.random() < 0.5] or names[-1:]
    return "\n    ".join(["def f(a, b, c):", *lines, f"return {', '.join(shown)},"]), inputs


def _works(lines: list[str], name: str, inputs: list[Any]) -> bool:
    """Whether eager PyTorch runs the lines, and what they make stays small and finite."""
    import torch

    scope = {"torch": torch, **dict(zip("abc", inputs, strict=True))}
    try:
        exec("\n".join(lines), scope)
    except Exception:  # such as a shape that does not fit
        return False
    made = [value for value in scope.values() if isinstance(value, torch.Tensor)]
    small = all(value.numel() <= 4096 and bool((value.abs() <= _LARGEST).all()) for value in map(_plain, made))
    return small and (not name or scope[name].numel() > 0)


def _plain(value: Any) -> Any:
    import torch

    return value.double() if value.dtype == torch.bool or value.dtype.is_floating_point else value


class _Warned(logging.Handler):
    """Collects what the backend says of parts that PyTorch runs."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def views(seed: int) -> Outcome:
    """A function of a seed; its results, and its inputs as it leaves them, against eager PyTorch."""
    import torch

    text, inputs = function_of(seed)
    scope: dict[str, Any] = {"torch": torch}
    exec(text, scope)
    handler, logger = _Warned(), logging.getLogger("retune.torch_backend")
    logger.addHandler(handler)
    try:
        found = _compiled(scope["f"], inputs(), backend="retune", options={"tune": False})
    except Exception as error:
        why = f"{type(error).__name__}: {str(error)[:500]}\n{text}"
        try:
            _compiled(scope["f"], inputs(), backend="aot_eager")
        except Exception:  # PyTorch itself cannot capture it
            return Outcome(skipped=(why,))
        return Outcome(wrong=(why,))
    finally:
        logger.removeHandler(handler)
    with torch.no_grad():
        wanted = _run(scope["f"], inputs())

        def nudge(number: int) -> Arrays:
            rng = np.random.default_rng([seed, 6, number])
            return _run(scope["f"], [_tensor(nudged(_array(value), rng)).to(value.dtype) for value in inputs()])

        def second() -> Arrays:
            wide = _run(scope["f"], [value.double() if value.is_floating_point() else value for value in inputs()])
            return [array.astype(like.dtype) for array, like in zip(wide, wanted, strict=True)]

        allowed = tolerance([array.dtype for array in (*wanted, *map(_array, inputs()))], text.count("\n"))
        outcome = judged(found, wanted, allowed, second, nudge)
    if outcome.right:
        return Outcome(1, refused=tuple(handler.texts))
    wrong, unstable, reference = (
        tuple(f"{one}\n{text}" for one in texts) for texts in (outcome.wrong, outcome.unstable, outcome.reference)
    )
    return Outcome(wrong=wrong, unstable=unstable, reference=reference)


def _compiled(function: Callable[..., Any], inputs: list[Any], **options: Any) -> Arrays:
    import torch

    torch._dynamo.reset()
    with torch.no_grad():
        return _run(torch.compile(function, **options), inputs)


def _run(function: Callable[..., Any], inputs: list[Any]) -> Arrays:
    made = function(*inputs)
    return [_array(value) for value in (*made, *inputs)]


def _array(value: Any) -> Any:
    import ml_dtypes
    import torch

    if value.dtype == torch.bfloat16:
        return value.detach().float().numpy().astype(ml_dtypes.bfloat16).copy()
    return value.detach().contiguous().numpy().copy()


def _tensor(array: Any) -> Any:
    import torch

    return torch.from_numpy(array.astype(np.float32) if array.dtype.name == "bfloat16" else array)
