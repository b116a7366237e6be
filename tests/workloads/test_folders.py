"""Folders are complete or absent, and only those of the same kind are replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from workloads.errors import OutputError
from workloads.folders import whole_folder


def written(folder: Path, text: str, **options: bool) -> None:
    with whole_folder(folder, "head.txt", **options) as place:
        (place / "head.txt").write_text(text)


def test_a_folder_comes_whole_and_is_replaced_when_asked(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "out"
    written(folder, "one")
    with pytest.raises(OutputError, match="is there already; --overwrite"):
        written(folder, "two")
    written(folder, "two", overwrite=True)
    assert (folder / "head.txt").read_text() == "two" and [path.name for path in folder.parent.iterdir()] == ["out"]


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    written(tmp_path / "out", "one")
    assert (tmp_path / "out" / "head.txt").is_file()


@pytest.mark.parametrize("error", [RuntimeError("stop"), KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_what_went_wrong_leaves_the_old_folder_and_nothing_else(tmp_path: Path, error: BaseException) -> None:
    folder = tmp_path / "out"
    written(folder, "one")
    expected = OutputError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected), whole_folder(folder, "head.txt", overwrite=True) as place:
        (place / "half.txt").write_text("half")
        raise error
    assert [path.name for path in tmp_path.iterdir()] == ["out"] and (folder / "head.txt").read_text() == "one"


def test_a_folder_of_something_else_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("years")
    with pytest.raises(OutputError, match=r"has no head\.txt"):
        written(tmp_path / "out", "one", overwrite=True)
    (tmp_path / "file").write_text("a file")
    with pytest.raises(OutputError, match=r"has no head\.txt"):
        written(tmp_path / "file", "one", overwrite=True)
    assert (tmp_path / "out" / "thesis.tex").read_text() == "years"


@pytest.mark.parametrize("fails", [False, True])
def test_a_neighbour_is_never_touched(tmp_path: Path, fails: bool) -> None:
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "thesis.tex").write_text("years")
    if fails:
        with pytest.raises(RuntimeError), whole_folder(tmp_path / "out", "head.txt"):
            raise RuntimeError("stop")
    else:
        written(tmp_path / "out", "one")
    assert {path.name for path in tmp_path.iterdir()} == {"out.partial"} | (set() if fails else {"out"})
    assert (tmp_path / "out.partial" / "thesis.tex").read_text() == "years"
