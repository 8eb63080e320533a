"""The page about functions, arrays and modules: its examples run, one after the other."""

import re
from pathlib import Path
from typing import Any

import pytest

import compiler

PAGE = Path(__file__).parent.parent.parent.parent / "docs" / "runtime.md"


def test_the_examples_of_the_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    examples = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(examples) >= 5
    names: dict[str, Any] = {}
    for example in examples:
        exec(compile(example, str(PAGE), "exec"), names)
    compiler.remove_global_func("demo.scale")
    assert capsys.readouterr().out.startswith("def main(X: float32[137, 137], Y: float32[137, 137], Z: ")
