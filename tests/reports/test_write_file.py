"""Files that are there whole or not at all."""

import os
from pathlib import Path

import pytest

from reports.write_file import replace_text


def test_what_was_there_stays_if_the_new_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "page.html"
    replace_text(path, "old")

    def full(self: Path, text: str, *rest: object) -> int:
        with open(self, "w") as file:
            file.write(text[:2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space"):
        replace_text(path, "something new")
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["page.html"]


def test_links_and_devices_stay_what_they_are(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    replace_text(link, "new")
    assert link.is_symlink() and target.read_text() == "new"
    replace_text(Path(os.devnull), "nothing")
    assert not Path(os.devnull).is_file()
