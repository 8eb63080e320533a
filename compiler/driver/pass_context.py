"""Pass context: options of compiling networks within a `with` block.

    with ApplyHistoryBest("tuned.json"), PassContext(config={"use_auto_scheduler": False}):
        ...                                       # compiled as if there were no records

Contexts are immutable and nest: the innermost applies as a whole, and each thread has its own.
"""

import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from retune.compiler.core.errors import OptionError, PassOptionError

USE_AUTO_SCHEDULER = "use_auto_scheduler"
"""Whether dispatch contexts are asked for programs; where nothing is said, they are once a context was entered."""

_OPTIONS: Mapping[str, type] = {USE_AUTO_SCHEDULER: bool}
_TVM_PREFIX = "relay.backend."
# TVM's: scripts pass opt_level=3.
_LEVELS = range(4)


class PassContext:
    """How networks are compiled in a block.

    With `opt_level` 0 only those graph passes are applied that kernels need; from 1 to 3 all are. `config` has
    options by name, with or without the "relay.backend." that TVM puts before them.
    Raises: PassOptionError for an option that is unknown or of another type, OptionError for another level.
    """

    def __init__(self, opt_level: int = 3, config: Mapping[str, object] | None = None) -> None:
        if isinstance(opt_level, bool) or opt_level not in _LEVELS:
            raise OptionError(f"opt_level is an integer from 0 to {_LEVELS[-1]}, not {opt_level!r}")
        self.opt_level = opt_level
        self.config: Mapping[str, Any] = {
            _check_name(name): _check_type(name, value) for name, value in dict(config or {}).items()
        }

    @staticmethod
    def current() -> "PassContext":
        """The innermost context of this thread; without any, the defaults."""
        return _ACTIVE.stack[-1] if _ACTIVE.stack else _DEFAULT

    @property
    def use_auto_scheduler(self) -> bool | None:
        """What is said of tuning records; None where nothing is."""
        return self.config.get(USE_AUTO_SCHEDULER)

    def __enter__(self) -> Self:
        _ACTIVE.stack.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not _ACTIVE.stack or _ACTIVE.stack[-1] is not self:
            raise OptionError("pass contexts must be left in the opposite order of entering them")
        _ACTIVE.stack.pop()


def _check_name(name: object) -> str:
    short = name.removeprefix(_TVM_PREFIX) if isinstance(name, str) else ""
    if short not in _OPTIONS:
        raise PassOptionError(f"a pass context has no option {name!r}; it has {', '.join(_OPTIONS)}")
    return short


def _check_type(name: str, value: object) -> object:
    wanted = _OPTIONS[_check_name(name)]
    if not isinstance(value, wanted):
        raise PassOptionError(f"the option {name} is a {wanted.__name__}, not {value!r}")
    return value


# TVM's contexts belong to a thread too.
class _Active(threading.local):
    """The stack of contexts of a thread, the innermost last."""

    def __init__(self) -> None:
        self.stack: list[PassContext] = []


_ACTIVE = _Active()
_DEFAULT = PassContext()
