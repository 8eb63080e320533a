"""What a run extracts of a network, and what is checked before it."""

from pathlib import Path

import pytest

from retune.compiler.driver.extract import begin_extraction, check_network, extract_network
from retune.compiler.driver.operators import Operator, extract
from retune.compiler.errors import ModelFormatError, OptionError, TargetError, UnsupportedOperatorError
from tests.support.flows.networks import write_mlp, write_unsupported


def test_the_check_of_a_network_imports_what_is_no_part_of_the_zoo(tmp_path: Path) -> None:
    check_network("bert_base")
    check_network(str(write_mlp(tmp_path / "dynamic.onnx", batch="many")), ["x=2,16"])
    with pytest.raises(UnsupportedOperatorError):
        check_network(str(write_unsupported(tmp_path / "unsupported.onnx")))
    with pytest.raises(ModelFormatError):
        check_network("no_such_network")
    with pytest.raises(TargetError, match="abacus"):
        check_network("mlp", target="llvm -mcpu=abacus")
    with pytest.raises(OptionError, match="NAME=1,3,224,224"):
        check_network("mlp", ["x"])


def test_every_extraction_is_made_again(tmp_path: Path) -> None:
    path = write_mlp(tmp_path / "changed.onnx")
    first = extract_network(str(path), "llvm", 1)
    write_mlp(path, widths=(16, 64, 8))
    second = extract_network(str(path), "llvm", 1)
    assert first.task_keys != second.task_keys
    assert (second.name, second.constant_bytes) == ("changed", 4 * (16 * 64 + 64 * 8))


def test_an_extraction_that_was_begun_serves_the_next_request_alone(tmp_path: Path) -> None:
    path = write_mlp(tmp_path / "one.onnx")
    begin_extraction(str(path), "llvm", 1, (), True)
    other = extract_network(str(path), "llvm", 1, (), False)
    first, second = (extract_network(str(path), "llvm", 1) for _ in range(2))
    assert len({id(one) for one in (other, first, second)}) == 3
    assert first.task_keys == second.task_keys
    begin_extraction("no_such_network", "llvm", 1, (), True)
    with pytest.raises(ModelFormatError):
        extract_network("no_such_network", "llvm", 1)


def test_an_operator_is_extracted_as_a_network_with_one_task() -> None:
    found = extract(str(Operator.asked("matmul", (8, 8, 8))), "llvm", 1)
    assert (len(found.tasks), found.weights, found.layers) == (1, (1,), (0,))
