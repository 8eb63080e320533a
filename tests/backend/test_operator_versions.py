"""Every version of every standard operator, with every element type, is right or refused as the documents say.

`docs/reference/onnx.md` has a table of what is refused. The slow test runs all cases: pytest -m slow on this file.
"""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from retune.compiler.core.errors import RetuneError
from tests.support.operator_versions import Case, cases, computed, disagreement

_DOCUMENT = Path(__file__).parents[2] / "docs/reference/onnx.md"
_TABLE = re.compile(r"^\| ([A-Z][A-Za-z, ]+) \| ([^|]+) \|$", re.MULTILINE)
_DISPUTED = {
    "GridSample": "the reference rounds the grid to the integers of the image, and ONNX Runtime takes floats alone",
}
"""Operators whose results with integers no other program here gives."""
_SAMPLE = ("GroupNormalization", "Hardmax", "ReduceLogSum", "Shrink", "Sign", "MeanVarianceNormalization")


def _refused() -> dict[str, str]:
    """What the document says of operators that are refused, all of them or in some forms."""
    text = _DOCUMENT.read_text()
    rows = {name.strip(): why for names, why in _TABLE.findall(text) for name in names.split(",")}
    (missing,) = re.findall(r"up to operator set \d+, except ([^.]*)\.", text)
    return rows | {name.strip(): "missing" for name in missing.split(",")}


def _problems(some: Iterable[Case], store: Path) -> tuple[list[str], set[str]]:
    """The cases that are wrong, or refused without a word in the document; and the operators refused."""
    known, problems, refused = _refused(), [], set()
    for case in some:
        try:
            _, found = computed(case, store)
        except RetuneError as error:
            refused.add(case.op)
            if case.op not in known:
                problems.append(f"{case.label}: {type(error).__name__}: {error}")
            continue
        wrong = disagreement(case, found)
        if wrong and case.op not in _DISPUTED:
            problems.append(f"{case.label}: {wrong}")
    return problems, refused


def test_a_sample_of_versions_and_types_compiles_and_is_right(tmp_path: Path) -> None:
    problems, refused = _problems(list(cases(1, _SAMPLE))[::16], tmp_path)
    assert not problems
    assert not refused


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_version_and_type_compiles_and_is_right_or_is_documented(tmp_path: Path) -> None:
    problems, refused = _problems(cases(1), tmp_path)
    assert not problems, "\n".join(problems)
    forms = {name for name, why in _refused().items() if why != "missing"}
    assert forms <= refused, "the document names operators that are taken"
