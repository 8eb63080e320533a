"""Options of compiling networks."""

import threading
from typing import Any

import pytest

from retune import compiler
from retune.compiler.core.errors import OptionError, PassOptionError
from retune.compiler.driver.dispatch import ApplyHistoryBest, is_enabled
from retune.compiler.driver.pass_context import PassContext


def test_options_have_defaults_and_are_known_by_name_and_type() -> None:
    assert PassContext.current().opt_level == 3
    assert PassContext.current().use_auto_scheduler is None
    with PassContext(0, {"relay.backend.use_auto_scheduler": True}) as context:
        assert PassContext.current() is context
        assert (context.opt_level, context.use_auto_scheduler) == (0, True)
        with compiler.PassContext(config={"use_auto_scheduler": False}):
            assert PassContext.current().use_auto_scheduler is False
        assert PassContext.current() is context
    assert PassContext.current().use_auto_scheduler is None
    mistakes: tuple[Any, ...] = (
        {"use_auto_schedule": True},
        {"tir.UnrollLoop": {}},
        {"use_auto_scheduler": 1},
        {3: True},
    )
    for wrong in mistakes:
        with pytest.raises(PassOptionError) as caught:
            PassContext(config=wrong)
        assert isinstance(caught.value, AttributeError)
    for level in (-1, 4, True, "3"):
        with pytest.raises(OptionError, match="opt_level"):
            PassContext(level)  # type: ignore[arg-type]


def test_contexts_are_left_in_the_opposite_order() -> None:
    outer, inner = PassContext(), PassContext()
    outer.__enter__()
    with inner, pytest.raises(OptionError, match="opposite order"):
        outer.__exit__(None, None, None)
    outer.__exit__(None, None, None)
    with pytest.raises(OptionError, match="opposite order"):
        outer.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("option", "alone", "inside"), [(None, False, True), (True, True, True), (False, False, False)]
)
def test_whether_records_are_used(option: bool | None, alone: bool, inside: bool) -> None:
    with PassContext(config={} if option is None else {"use_auto_scheduler": option}):
        assert is_enabled() is alone
        with ApplyHistoryBest(None):
            assert is_enabled() is inside


def test_each_thread_has_contexts_of_its_own() -> None:
    seen: list[int] = []
    with PassContext(1):
        thread = threading.Thread(target=lambda: seen.append(PassContext.current().opt_level))
        thread.start()
        thread.join()
    assert seen == [3]
