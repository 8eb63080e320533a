"""Retune tunes the tensor programs of neural networks for the machine they run on.

    import retune

    fast = retune.compile(model, x)          # the best known programs; measures nothing
    fast = retune.tune(model, x, minutes=2)  # searches for better programs; the records stay in ./.retune
    y = fast(x)
    fast.save("model.retune")
    fast = retune.load("model.retune")
    fast.export("model.onnx")                # for ONNX Runtime, with a library beside it
    print(fast.report())
    print(retune.explain(fast, "conv2d_3x3"))  # its schedule, code and limit

The parts are packages of their own: `retune.compiler`, `retune.storage`, `retune.tasks` and `retune.flows`, whose
folders are at the top of the repository. Importing this module loads none of them.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from retune.api import compile, explain, export, profile, tune
    from retune.compiler.core.errors import RetuneError
    from retune.compiler.core.version import __version__
    from retune.compiler.tune.explain import Explanation
    from retune.network import Network, load
    from retune.network_report import NetworkReport

_HOMES = {
    "compile": "retune.api",
    "explain": "retune.api",
    "export": "retune.api",
    "load": "retune.network",
    "profile": "retune.api",
    "tune": "retune.api",
    "Explanation": "retune.compiler.tune.explain",
    "Network": "retune.network",
    "NetworkReport": "retune.network_report",
    "RetuneError": "retune.compiler.core.errors",
    "__version__": "retune.compiler.core.version",
}
"""Where each public name is defined."""

__all__ = [
    "Explanation", "Network", "NetworkReport", "RetuneError", "__version__",
    "compile", "explain", "export", "load", "profile", "tune",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """Load a public name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'retune' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_module(_HOMES[name]), name)
    # PEP 562 asks only for names that are not there: the next use finds this name without a call.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


# IPython is in memory before a notebook's first cell runs; where it is not, nothing is to be registered.
if "IPython" in sys.modules:
    import_module("retune.notebook").register_tables()
