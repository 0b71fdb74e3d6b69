"""The code-object walker sees every bundle of a file, and refuses what it cannot list."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.common.overlay import overlay_module

co = overlay_module("device.codeobjects")
HOST = "host-x86_64-unknown-linux--"
GPU = "hipv4-amdgcn-amd-amdhsa--"
ELF = b"\x7fELF" + bytes(60)


def bundle(*entries: tuple[str, bytes]) -> bytes:
    """An uncompressed offload bundle, as clang writes it."""
    size = 32 + sum(24 + len(name) for name, _ in entries)
    head, body = co.MAGIC + struct.pack("<Q", len(entries)), b""
    for name, content in entries:
        head += struct.pack("<QQQ", size + len(body), len(content), len(name)) + name.encode()
        body += content
    return head + body


def test_every_bundle_of_a_linked_module_is_seen_not_only_the_first(tmp_path: Path) -> None:
    module = tmp_path / "_rocm_C.abi3.so"
    module.write_bytes(
        b"text" + bundle((HOST, b""), (GPU + "gfx90a", ELF)) + b"pad" * 7 + bundle((HOST, b""), (GPU + "gfx936:sramecc+:xnack-", ELF))
    )
    assert co.code_object_targets(module) == {"gfx90a", "gfx936"}
    assert [(e.bundle, e.target) for e in co.code_objects(module)] == [(0, ""), (0, "gfx90a"), (1, ""), (1, "gfx936:sramecc+:xnack-")]


def test_an_entry_without_code_is_no_target(tmp_path: Path) -> None:
    module = tmp_path / "x.so"
    module.write_bytes(bundle((HOST, b""), (GPU + "gfx936", b"")))
    assert co.code_object_targets(module) == frozenset()


@pytest.mark.parametrize("content", [b"", b"no device code", co.MAGIC, b"a reader's string: " + co.MAGIC + b"\0 and more text"])
def test_a_library_without_device_code_has_no_targets(tmp_path: Path, content: bytes) -> None:
    module = tmp_path / "x.so"
    module.write_bytes(content)
    assert co.code_object_targets(module) == frozenset()


def test_a_compressed_bundle_is_refused_with_the_option_that_made_it(tmp_path: Path) -> None:
    module = tmp_path / "x.so"
    module.write_bytes(b"pad" + b"CCOB" + struct.pack("<HH", 2, 1) + bytes(40))
    with pytest.raises(co.CodeObjectError, match="--offload-compress"):
        co.code_objects(module)


def test_a_compressed_bundle_beside_a_plain_one_is_refused_too(tmp_path: Path) -> None:
    module = tmp_path / "x.so"
    module.write_bytes(bundle((GPU + "gfx936", ELF)) + b"CCOB" + struct.pack("<HH", 3, 0) + bytes(40))
    with pytest.raises(co.CodeObjectError, match="CCOB"):
        co.code_object_targets(module)


@pytest.mark.parametrize("cut", [33, 60, 90, 130])
def test_a_truncated_bundle_is_refused(tmp_path: Path, cut: int) -> None:
    module = tmp_path / "x.so"
    module.write_bytes(bundle((HOST, b""), (GPU + "gfx936", ELF))[:cut])
    with pytest.raises(co.CodeObjectError, match="malformed"):
        co.code_objects(module)


def test_a_code_object_that_is_no_elf_file_is_refused(tmp_path: Path) -> None:
    module = tmp_path / "x.so"
    module.write_bytes(bundle((GPU + "gfx936", b"garbage!")))
    with pytest.raises(co.CodeObjectError, match="not an ELF"):
        co.code_objects(module)


@given(
    st.lists(st.lists(st.sampled_from(["gfx906", "gfx936", "gfx936:xnack-"]), min_size=1, max_size=3), max_size=4), st.binary(max_size=64)
)
def test_whatever_was_bundled_is_listed(tmp_path_factory: pytest.TempPathFactory, bundles: list[list[str]], noise: bytes) -> None:
    noise = noise.replace(b"CCOB", b"").replace(b"_", b"")
    module = tmp_path_factory.mktemp("co") / "x.so"
    module.write_bytes(noise.join([b"", *(bundle(*((GPU + target, ELF) for target in targets)) for targets in bundles), b""]))
    assert [e.target for e in co.code_objects(module)] == [target for targets in bundles for target in targets]


@given(st.binary(max_size=200))
def test_garbage_after_the_magic_is_listed_or_refused_never_a_crash(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    module = tmp_path_factory.mktemp("co") / "x.so"
    module.write_bytes(co.MAGIC + data)
    with contextlib.suppress(co.CodeObjectError):
        co.code_object_targets(module)
