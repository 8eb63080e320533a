"""Parameters as bytes: what comes back, and what is refused."""

import json
import struct
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from benchmarks.fuzzing.mutations import archive_of, zip_members
from retune.compiler.core.dtype import BFLOAT16
from retune.compiler.core.errors import ArtifactError
from retune.compiler.runtime.archive import MANIFEST, archive_bytes
from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.executor.params import (
    load_param_dict,
    load_param_dict_from_file,
    save_param_dict,
    save_param_dict_to_file,
)

_TYPES = st.sampled_from(["float64", "float32", "float16", "int64", "int8", "uint16", "bool", ">f4", ">i8"])

_ARRAYS = _TYPES.flatmap(lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, min_side=0)))


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text(max_size=8), _ARRAYS, max_size=4))
def test_any_arrays_come_back(params: dict[str, Array]) -> None:
    found = load_param_dict(save_param_dict(params))
    assert list(found) == list(params)
    for name, array in params.items():
        assert found[name].dtype.name == array.dtype.name
        np.testing.assert_array_equal(found[name], array)
        assert found[name].flags.writeable


def test_a_float64_vector_survives_a_parameter_file(tmp_path: Path) -> None:
    x = np.random.default_rng(0).uniform(size=10)
    path = save_param_dict_to_file({"x": x}, tmp_path / "x.params")
    np.testing.assert_array_equal(load_param_dict_from_file(path)["x"], x)


def test_parameters_load_from_a_bytearray_with_one_array_twice() -> None:
    x = np.ones((10, 10), "float32")
    data = save_param_dict({"x": x, "y": x})
    assert isinstance(data, bytearray)
    found = load_param_dict(data)
    assert list(found) == ["x", "y"]
    np.testing.assert_array_equal(found["x"], found["y"])
    found["x"][0, 0] = 7
    assert found["y"][0, 0] == 1


def test_bfloat16_and_strides() -> None:
    x = np.arange(12, dtype=BFLOAT16).reshape(3, 4).T
    found = load_param_dict(save_param_dict({"x": x}))["x"]
    assert found.dtype == np.dtype(BFLOAT16)
    np.testing.assert_array_equal(found.view("uint16"), np.ascontiguousarray(x).view("uint16"))


def test_every_cut_is_noticed_and_no_changed_byte_changes_an_array() -> None:
    params = {"x": np.arange(3, dtype="int8"), "y": np.zeros((2, 2))}
    data = bytes(save_param_dict(params))
    for end in range(len(data)):
        with pytest.raises(ArtifactError):
            load_param_dict(data[:end])
    refused = 0
    for place in range(len(data)):
        broken = bytearray(data)
        broken[place] ^= 0x41
        try:
            found = load_param_dict(broken)
        except ArtifactError:
            refused += 1
            continue
        assert {name: array.tolist() for name, array in found.items()} == {
            name: array.tolist() for name, array in params.items()
        }
    assert refused > len(data) // 2  # the rest is padding, dates and NumPy's own header


def test_another_version_and_other_files(tmp_path: Path) -> None:
    data = archive_bytes("parameters", 9, {})
    with pytest.raises(ArtifactError, match="parameters of version 9; this Retune reads version 2"):
        load_param_dict(data)
    for other in (None, "text", 3, b""):
        with pytest.raises(ArtifactError, match="the data: no saved parameters"):
            load_param_dict(other)  # type: ignore[arg-type]
    (tmp_path / "a").write_bytes(b"hello")
    with pytest.raises(ArtifactError, match=r"a: no saved parameters"):
        load_param_dict_from_file(tmp_path / "a")
    with pytest.raises(ArtifactError, match="cannot read"):
        load_param_dict_from_file(tmp_path / "b")
    with pytest.raises(ArtifactError, match="cannot write"):
        save_param_dict_to_file({}, tmp_path / "none" / "b")


def _tvm_bytes(params: dict[str, Array]) -> bytes:
    """What TVM's `save_param_dict` writes."""
    names = [name.encode() for name in params]
    parts = [struct.pack("<QQQ", 0xF7E58D4F05049CB7, 0, len(names))]
    parts += [struct.pack("<Q", len(name)) + name for name in names]
    parts.append(struct.pack("<Q", len(params)))
    for array in params.values():
        code = {"b": 1, "i": 0, "u": 1, "f": 2, "V": 4}[array.dtype.kind]
        bits = 1 if array.dtype.kind == "b" else array.dtype.itemsize * 8
        parts.append(struct.pack("<QQiiiBBH", 0xDD5E40F096B4A13F, 0, 1, 0, array.ndim, code, bits, 1))
        parts.append(struct.pack(f"<{array.ndim}qq", *array.shape, array.nbytes) + array.tobytes())
    return b"".join(parts)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.text(max_size=8),
        _TYPES.filter(str.isalnum).flatmap(lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, min_side=0))),
        max_size=4,
    )
)
def test_parameters_that_tvm_wrote_are_read(params: dict[str, Array]) -> None:
    found = load_param_dict(_tvm_bytes(params))
    assert list(found) == list(params)
    for name, array in params.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(found[name], array)
        assert found[name].flags.writeable


def test_damaged_parameters_of_tvm_are_one_error(tmp_path: Path) -> None:
    array = np.arange(6, dtype=BFLOAT16).reshape(2, 3)
    data = _tvm_bytes({"x": array, "y": np.zeros(2, "float32")})
    (tmp_path / "x.params").write_bytes(data)
    np.testing.assert_array_equal(load_param_dict_from_file(tmp_path / "x.params")["x"], array)
    for end in range(8, len(data)):
        with pytest.raises(ArtifactError, match="no dictionary of parameters of TVM, or is damaged"):
            load_param_dict(data[:end])
    for place in range(8, len(data)):  # sizes and ranks that cannot be, codes that are none
        for value in (0xFF, 0x80, 0x03):
            broken = bytearray(data)
            broken[place] = value
            with suppress(ArtifactError):
                load_param_dict(broken)
    for place, value in ((16, 9), (24, 255), (42, 7), (50, 7), (74, 9), (78, 9), (79, 9), (80, 9), (82, 9), (98, 9)):
        with pytest.raises(ArtifactError, match="no dictionary of parameters of TVM, or is damaged"):
            load_param_dict(data[:place] + bytes([value]) + data[place + 1 :])


def test_arrays_of_a_file_are_mapped_when_asked_for(tmp_path: Path) -> None:
    path = save_param_dict_to_file({"x": np.arange(4)}, tmp_path / "x.params")
    array = load_param_dict_from_file(path, copy=False)["x"]
    assert array.tolist() == [0, 1, 2, 3]
    assert not array.flags.writeable


@pytest.mark.parametrize(
    "value", [np.array([object()]), np.array(["a"]), np.zeros(2, [("a", "i4")]), np.zeros(2, "M8[s]")]
)
def test_only_numbers_are_saved(value: Array) -> None:
    with pytest.raises(ArtifactError, match="an array of numbers is needed"):
        save_param_dict({"x": value})


@pytest.mark.parametrize(
    ("names", "facts"),
    [
        (["x"], {"dtype": "float32", "shape": ["ab" * 9, 1 << 40]}),
        (["x"], {"dtype": "float32", "shape": [True]}),
        (["x"], {"dtype": "O", "shape": [3]}),
        (["x"], {"dtype": "float64", "shape": [1 << 40]}),
        ([1], {}),
        (["x", "y"], {}),
        (1, {}),
    ],
)
def test_a_table_of_something_else_under_the_right_checksum(names: object, facts: dict[str, object]) -> None:
    members = zip_members(bytes(save_param_dict({"x": np.zeros(3)})))
    manifest = json.loads(members[MANIFEST])
    manifest["members"]["0.npy"] |= facts
    changed = {**members, MANIFEST: json.dumps(manifest).encode(), "params.json": json.dumps(names).encode()}
    with pytest.raises(ArtifactError, match="the data is no dictionary of parameters, or is damaged"):
        load_param_dict(archive_of(changed))
