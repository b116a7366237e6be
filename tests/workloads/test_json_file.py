"""Small JSON files: what cannot be read is said, whatever is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from workloads.errors import InputError
from workloads.json_file import read_object


def test_an_object_with_and_without_a_byte_order_mark(tmp_path: Path) -> None:
    for encoding in ("utf-8", "utf-8-sig"):
        (tmp_path / "x.json").write_text('{"a": [1, "é"]}', encoding)
        assert read_object(tmp_path / "x.json") == {"a": [1, "é"]}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"a": 1,}', "is not JSON"),
        (b"\xff\xfe\x00", "is not a text file"),
        (b"[1]", "expected a JSON object"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": ' + b"7" * 10_000 + b"}", "too many digits"),
    ],
)
def test_what_cannot_be_read(content: bytes, words: str, tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_bytes(content)
    with pytest.raises(InputError, match=words) as caught:
        read_object(file)
    assert caught.value.place.file == str(file)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read it"):
        read_object(tmp_path / "none.json")
