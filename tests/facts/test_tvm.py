"""The table of TVM's facts names tests that exist, and no test is named after a row of a table."""

import re
from pathlib import Path

FACTS = Path(__file__).with_name("tvm.md")
ROOT = Path(__file__).parents[2]
# A letter and a number, or several, as `test_q1_…` or `test_l3_l4_…`; an architecture such as x86 is no row.
_ROW = re.compile(r"^test_(?:[a-t]\d{1,2}_|appendix_[a-z]_)")
_TEST = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)


def _tests(path: Path) -> set[str]:
    return set(_TEST.findall(path.read_text(encoding="utf-8")))


def test_every_test_named_in_the_table_exists() -> None:
    rows = [line for line in FACTS.read_text(encoding="utf-8").splitlines() if "`tests/" in line]
    assert len(rows) > 100
    missing = []
    for row in rows:
        for path, names in re.findall(r"`(tests/[\w/]+\.py)`: ((?:`test_\w+`(?:, )?)+)", row):
            missing += [f"{path}: {name}" for name in re.findall(r"`(\w+)`", names) if name not in _tests(ROOT / path)]
    assert missing == []


def test_no_test_is_named_after_a_row_of_a_table() -> None:
    named = {name for path in (ROOT / "tests").rglob("test_*.py") for name in _tests(path)}
    assert len(named) > 2000
    assert {name for name in named if _ROW.match(name)} == set()
