"""The weight files of a model's folder: one `model.safetensors`, or shards with an index. Pickle is never opened."""

from __future__ import annotations

from pathlib import Path

from workloads.errors import InputError, Place
from workloads.json_file import read_object

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint, in order of name.

    Raises:
        InputError: there are none, a shard that the index names is missing, or there is only pickle.
    """
    if not folder.is_dir():
        raise InputError("is not a folder", place=Place(str(folder)))
    index = folder / INDEX
    if index.is_file():
        files = [folder / name for name in sorted(set(_index(index).values()))]
    elif (folder / SINGLE).is_file():
        files = [folder / SINGLE]
    else:
        files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise _nothing(folder)
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise InputError(
            f"{len(missing)} of {len(files)} shards are missing: {', '.join(missing[:3])}{' …' if len(missing) > 3 else ''}",
            place=Place(str(folder)), hint=f"{INDEX} names them; fetch the whole repository",
        )  # fmt: skip
    return files


def _index(file: Path) -> dict[str, str]:
    names = read_object(file).get("weight_map")
    if not isinstance(names, dict) or not all(
        isinstance(name, str) and Path(name).name == name for name in names.values()
    ):
        raise InputError('is not an index of shards: expected {"weight_map": {tensor: file}}', place=Place(str(file)))
    return names


def _nothing(folder: Path) -> InputError:
    pickled = sorted(file.name for pattern in _PICKLED for file in folder.glob(pattern))
    if pickled:
        return InputError(
            f"has weights as pickle only ({pickled[0]}), which can run any code when it is opened", place=Place(str(folder)),
            hint="convert them to safetensors, or fetch a revision that has them",
        )  # fmt: skip
    return InputError(
        "has no *.safetensors", place=Place(str(folder)), hint="--load dummy runs an architecture without its weights"
    )
