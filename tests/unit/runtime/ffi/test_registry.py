"""Functions by name."""

import threading

import pytest

from retune.compiler.core.errors import RegistryError
from retune.compiler.runtime.ffi.registry import (
    find_function,
    get_global_func,
    list_global_func_names,
    register_func,
    remove_global_func,
)


def test_a_function_is_registered_in_each_of_the_three_ways() -> None:
    @register_func
    def tests_plain() -> int:
        return 1

    @register_func("tests.named")
    def named() -> int:
        return 2

    assert register_func("tests.given", tests_plain) is tests_plain
    assert get_global_func("tests_plain")() == 1
    assert get_global_func("tests.named")() == 2
    assert find_function("tests.named") is named
    assert {"tests_plain", "tests.named", "tests.given"} <= set(list_global_func_names())
    assert list_global_func_names() == sorted(list_global_func_names())
    for name in ("tests_plain", "tests.named", "tests.given"):
        remove_global_func(name)
    assert get_global_func("tests.named", allow_missing=True) is None


def test_a_taken_name_is_refused_unless_it_is_overridden() -> None:
    register_func("tests.taken", int)
    with pytest.raises(RegistryError, match=r"tests\.taken is registered already"):
        register_func("tests.taken", float)
    assert get_global_func("tests.taken")(2.5) == 2
    register_func("tests.taken", float, override=True)
    assert get_global_func("tests.taken")(2.5) == 2.5
    remove_global_func("tests.taken")


def test_what_is_missing_or_no_function_is_named() -> None:
    with pytest.raises(ValueError, match=r"no function tests\.absent is registered"):
        get_global_func("tests.absent")
    with pytest.raises(RegistryError, match=r"tests\.absent"):
        remove_global_func("tests.absent")
    with pytest.raises(RegistryError, match="takes a name and a function"):
        register_func("tests.number", 3)  # type: ignore[call-overload]


def test_of_many_threads_one_gets_a_name() -> None:
    won: list[int] = []
    start = threading.Barrier(8)

    def claim(number: int) -> None:
        start.wait(timeout=120)
        try:
            register_func("tests.raced", lambda: number)
        except RegistryError:
            return
        won.append(number)

    threads = [threading.Thread(target=claim, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [get_global_func("tests.raced")()]
    remove_global_func("tests.raced")
