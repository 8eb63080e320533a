"""Compiled networks on disk: what comes back, and what is refused."""

import json
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.fuzzing.mutations import archive_of, zip_members, zip_of
from retune.compiler.core.dtype import BFLOAT16
from retune.compiler.core.errors import ArtifactError
from retune.compiler.runtime.artifact import ExternBuffer, ExternCall
from retune.compiler.runtime.executor.network import CompiledNetwork
from retune.compiler.runtime.threads import affinity
from tests.support.doubling_network import doubling_network
from tests.support.ir_kernels import ELEMENTS

Edit = Callable[[dict[str, bytes]], None]


def test_round_trip(tmp_path: Path) -> None:
    network = doubling_network()
    path = network.save(tmp_path / "deep" / "net.retune")
    found = CompiledNetwork.load(path)
    assert found.plan == network.plan
    assert found.kernels == network.kernels
    assert found.coverage == network.coverage
    assert found.metadata == network.metadata
    assert list(found.constants) == [4]
    np.testing.assert_array_equal(found.constants[4], network.constants[4])
    assert [entry.name for entry in path.parent.iterdir()] == ["net.retune"]


def test_the_functions_that_a_kernel_calls_are_kept(tmp_path: Path) -> None:
    network = doubling_network()
    args = (ExternBuffer((4, 2), "float32", False), ExternBuffer((), "int64", True), 3, 0.5, "text")
    first = replace(network.kernels[0], calls=(ExternCall("k.call0", "tests.function", args),))
    network = replace(network, kernels=(first, *network.kernels[1:]))
    found = CompiledNetwork.load(network.save(tmp_path / "net.retune"))
    assert found.kernels == network.kernels


def test_a_constant_of_bfloat16_comes_back(tmp_path: Path) -> None:
    network = doubling_network()
    array = np.array([1.5, -0.0, np.inf, 3e38] * (ELEMENTS // 4), BFLOAT16)
    plan = replace(
        network.plan,
        buffers=tuple(
            replace(buffer, dtype=BFLOAT16) if number == 4 else buffer
            for number, buffer in enumerate(network.plan.buffers)
        ),
    )
    kernel = network.kernels[0]
    specs = tuple(replace(spec, dtype=BFLOAT16) if not spec.is_output else spec for spec in kernel.args)
    halves = replace(kernel, name="halves", args=specs)
    calls = tuple(replace(call, kernel="halves") if 4 in call.buffers else call for call in plan.calls)
    changed = replace(network, plan=replace(plan, calls=calls), kernels=(kernel, halves), constants={4: array})
    found = CompiledNetwork.load(changed.save(tmp_path / "net.retune"))
    assert found.constants[4].dtype == np.dtype(BFLOAT16)
    np.testing.assert_array_equal(found.constants[4].view("uint16"), array.view("uint16"))
    assert found.kernels[1].args == specs


def test_saving_again_replaces_the_file(tmp_path: Path) -> None:
    path = doubling_network().save(tmp_path / "net.retune")
    doubling_network(np.full(ELEMENTS, 3, np.float32)).save(path)
    assert CompiledNetwork.load(path).constants[4][0] == 3


def test_a_failed_save_leaves_the_old_file(tmp_path: Path) -> None:
    path = doubling_network().save(tmp_path / "net.retune")
    before = path.read_bytes()
    with pytest.raises(TypeError, match="JSON"):
        replace(doubling_network(), metadata={"target": object()}).save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_path_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ArtifactError, match="cannot write"):
        doubling_network().save(tmp_path / "file" / "net.retune")


def _edited(path: Path, edit: Edit) -> None:
    """Change members, under their right checksums."""
    members = zip_members(path.read_bytes())
    edit(members)
    path.write_bytes(archive_of(members))


def _drop(name: str) -> Edit:
    def edit(members: dict[str, bytes]) -> None:
        del members[name]

    return edit


def _put(name: str, content: bytes) -> Edit:
    return lambda members: members.update({name: content})


def _replace(name: str, old: bytes, new: bytes) -> Edit:
    def edit(members: dict[str, bytes]) -> None:
        assert old in members[name]
        members[name] = members[name].replace(old, new)

    return edit


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (_drop("plan.json"), "damaged: there is no 'plan.json'; make it again"),
        (_drop("kernels/twofold.o"), "damaged: there is no 'kernels/twofold.o'"),
        (_drop("constants/4.npy"), "the constant c is missing"),
        (_put("plan.json", b"\xff\xfe"), "damaged: its text is not UTF-8"),
        (_put("kernels.json", b"{"), "damaged: its JSON is invalid: Expecting"),
        (_put("kernels.json", b"[]"), "no kernel 'twofold'"),
        (_put("constants/4.npy", b"numbers"), "no array of float32"),
        (_put("constants/four.npy", b""), "damaged: a value has the wrong type"),
        (
            _replace("archive.json", b'"version": 2', b'"version": 9'),
            "a network of version 9; this Retune reads version 2",
        ),
        (_replace("archive.json", b'"archive": 1', b'"archive": 4'), "archive format 4; this Retune reads 1"),
        (_replace("archive.json", b'"network"', b'"model"'), "it holds a model, not a network"),
        (
            _replace("archive.json", b'"network"', b'"executable"'),
            "a network of dynamic shapes, which retune.load, ",
        ),
        (_replace("archive.json", b'"float32"', b'"float99"'), "'float99' is no element type"),
        (_replace("archive.json", b'"float32"', b'"object"'), "no element type of numbers"),
        (_replace("archive.json", b"[1024]", b"[1023]"), r"no array of float32\[1023\]"),
        (_replace("archive.json", b"[1024]", b"[-1024, -1]"), "an array of the shape"),
        (_replace("archive.json", b'"float32"', b'"float16"'), r"no array of float16"),
        (
            _replace("archive.json", b'"dtype": "float32", "shape": [1024]', b'"dtype": "float64", "shape": [512]'),
            "the constant c is float64",
        ),
        (_replace("metadata.json", b'[{"name"', b'[{"title"'), "damaged: a value has the wrong type"),
        (_replace("plan.json", b'"arena_bytes": ', b'"arena_bytes": -'), "is not a place"),
    ],
)
def test_a_malformed_file_is_refused(tmp_path: Path, edit: Edit, message: str) -> None:
    path = doubling_network().save(tmp_path / "net.retune")
    _edited(path, edit)
    with pytest.raises(ArtifactError, match=message) as caught:
        CompiledNetwork.load(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", ["plan.json", "metadata.json", "kernels/twofold.o", "constants/4.npy"])
def test_changed_content_under_an_old_checksum_is_refused(tmp_path: Path, name: str) -> None:
    path = doubling_network().save(tmp_path / "net.retune")
    members = zip_members(path.read_bytes())
    members[name] = members[name][:-1] + b"?"
    path.write_bytes(zip_of(members))
    with pytest.raises(ArtifactError, match=f"the checksum of {name} differs"):
        CompiledNetwork.load(path)


def test_pickled_constants_are_refused(tmp_path: Path) -> None:
    path = doubling_network().save(tmp_path / "net.retune")
    bad = tmp_path / "bad.npy"
    np.save(bad, np.array([object()], dtype=object), allow_pickle=True)
    _edited(path, _put("constants/4.npy", bad.read_bytes()))
    with pytest.raises(ArtifactError, match="no array of float32"):
        CompiledNetwork.load(path)


def test_a_constant_that_ends_early_is_refused(tmp_path: Path) -> None:
    path = doubling_network().save(tmp_path / "net.retune")
    _edited(path, lambda members: members.update({"constants/4.npy": members["constants/4.npy"][:-1]}))
    with pytest.raises(ArtifactError, match="no array of float32"):
        CompiledNetwork.load(path)


@pytest.mark.parametrize("content", [b"", b"PK", b"an ONNX file perhaps", b"PK\x05\x06" + bytes(18)])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "net.retune"
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match="no compiled network"):
        CompiledNetwork.load(path)


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no such file"):
        CompiledNetwork.load(tmp_path / "absent.retune")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return doubling_network().save(tmp_path_factory.mktemp("saved") / "net.retune").read_bytes()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_damaged_file_loads_as_it_was_or_not_at_all(
    saved: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(saved) - 1))
    cut = data.draw(st.booleans())
    path = tmp_path_factory.mktemp("damaged") / "net.retune"
    path.write_bytes(saved[:place] if cut else saved[:place] + bytes([saved[place] ^ 0x55]) + saved[place + 1 :])
    try:
        found = CompiledNetwork.load(path)
    except ArtifactError:
        return
    assert json.dumps(dict(found.metadata)) == json.dumps(dict(doubling_network().metadata))
    assert found.plan == doubling_network().plan


@pytest.mark.parametrize("name", ["plan.json", "constants/1.npy"])
def test_a_file_that_inflates_beyond_the_memory_is_refused_at_once(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = doubling_network().save(tmp_path / "n.retune")
    _edited(path, _put(name, np.random.default_rng(0).integers(0, 16, 8 << 20, np.uint8).tobytes()))
    monkeypatch.setattr(affinity, "free_memory_bytes", lambda _: 4 << 20)
    monkeypatch.setattr(zlib, "decompressobj", lambda *_: pytest.fail("inflated"))
    with pytest.raises(ArtifactError, match=r"n\.retune does not fit into the free memory: .* GiB are free"):
        CompiledNetwork.load(path)


def test_members_of_other_packing_methods_are_refused(tmp_path: Path) -> None:
    path = doubling_network().save(tmp_path / "n.retune")
    with zipfile.ZipFile(path, "a", zipfile.ZIP_LZMA) as archive:
        archive.writestr("more", b"more")
    with pytest.raises(ArtifactError, match="a method that Retune does not write"):
        CompiledNetwork.load(path)
