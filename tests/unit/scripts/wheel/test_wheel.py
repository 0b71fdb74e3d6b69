"""The wheel writer: what it is given is what the wheel holds, in the same bytes every time."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.common import errors
from scripts.wheel.pack import DEFAULT_EPOCH, Entry, WheelName, source_date, wheel_text, write_wheel

NAME = WheelName("vllm", "0.18.1+gfx936.1.cpu", "cp38-abi3-manylinux_2_28_x86_64")
ENTRIES = [
    Entry("vllm/b.py", b"b = 1\n"),
    Entry("vllm/a.so", b"\x7fELF", executable=True),
    Entry("vllm/configs/E=1,N=2.json", b"{}"),
    Entry(f"{NAME.dist_info}/METADATA", b"Name: vllm\n"),
]


def written(path: Path, entries: list[Entry]) -> bytes:
    write_wheel(path, NAME.dist_info, entries, DEFAULT_EPOCH)
    return path.read_bytes()


def test_the_same_entries_give_the_same_bytes_in_any_order(tmp_path: Path) -> None:
    assert written(tmp_path / "one.whl", ENTRIES) == written(tmp_path / "two.whl", ENTRIES[::-1])


def test_one_changed_byte_changes_the_wheel(tmp_path: Path) -> None:
    other = [Entry("vllm/b.py", b"b = 2\n"), *ENTRIES[1:]]
    assert written(tmp_path / "one.whl", ENTRIES) != written(tmp_path / "two.whl", other)


def test_record_names_every_file_with_its_true_hash_and_size(tmp_path: Path) -> None:
    write_wheel(tmp_path / "w.whl", NAME.dist_info, ENTRIES, DEFAULT_EPOCH)
    with zipfile.ZipFile(tmp_path / "w.whl") as archive:
        names = archive.namelist()
        record = list(csv.reader(io.StringIO(archive.read(f"{NAME.dist_info}/RECORD").decode())))
        assert [row[0] for row in record] == names
        for path, digest, size in record[:-1]:
            data = archive.read(path)
            sha = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            assert (digest, size) == (f"sha256={sha}", str(len(data)))
    assert record[-1] == [f"{NAME.dist_info}/RECORD", "", ""]


def test_only_native_code_is_executable_and_all_dates_are_the_given_one(tmp_path: Path) -> None:
    write_wheel(tmp_path / "w.whl", NAME.dist_info, ENTRIES, 1_000_000_000)
    with zipfile.ZipFile(tmp_path / "w.whl") as archive:
        modes = {info.filename: info.external_attr >> 16 for info in archive.infolist()}
        assert modes["vllm/a.so"] == 0o100755
        assert {mode for path, mode in modes.items() if path != "vllm/a.so"} == {0o100644}
        assert {info.date_time for info in archive.infolist()} == {(2001, 9, 9, 1, 46, 40)}


def test_two_entries_of_one_path_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"two entries of the wheel have the path vllm/b\.py"):
        write_wheel(tmp_path / "w.whl", NAME.dist_info, [*ENTRIES, Entry("vllm/b.py", b"")], DEFAULT_EPOCH)


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "vllm/../../x", "", ".", "vllm//x", "vllm\\x", "vllm/"])
def test_a_path_that_is_not_plainly_inside_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="is not a path inside a wheel"):
        Entry(path, b"")


@given(st.integers(min_value=0, max_value=10**12))
def test_any_whole_second_becomes_a_date_that_zip_can_hold(seconds: int) -> None:
    assert 315_532_800 <= source_date({"SOURCE_DATE_EPOCH": str(seconds)}) <= 4_354_819_198


@pytest.mark.parametrize("value", ["", "now", "-1", "1.5", " 1", "\u0661"])
def test_a_source_date_that_is_no_number_is_an_error_that_names_the_variable(value: str) -> None:
    with pytest.raises(errors.UserError, match="SOURCE_DATE_EPOCH="):
        source_date({"SOURCE_DATE_EPOCH": value})


def test_without_the_variable_the_date_is_fixed() -> None:
    assert source_date({}) == DEFAULT_EPOCH


def test_a_compressed_tag_is_spelled_out_in_the_wheel_file() -> None:
    text = wheel_text("py2.py3-none-any", pure=True, generator="g").decode()
    assert "Tag: py2-none-any\nTag: py3-none-any\n" in text
    assert "Root-Is-Purelib: true\n" in text
