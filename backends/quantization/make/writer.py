"""A checkpoint's files, written as tensors come: no more than a file's worth of them is held in memory."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from backends.weights.files import INDEX, SINGLE
from sim.quantization.checkpoint import KEY
from workloads.errors import OutputError
from workloads.json_file import read_object

_FILE_BYTES = 1 << 30
_COPIED = ("*.json", "*.jinja", "*.model", "*.txt", "LICENSE*", "NOTICE*")
_NEVER = (INDEX, "config.json", "quantize_config.json", "quant_config.json", "hf_quant_config.json")


class CheckpointWriter:
    """Writes `model.safetensors`, or shards with an index once there is more than a gibibyte.

    Raises:
        OutputError: a file cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[str, Tensor] = {}
        self._files: list[list[str]] = []
        self.bytes = 0

    def add(self, name: str, tensor: Tensor) -> None:
        """Take a tensor; its memory is free again once the file is full."""
        self._held[name] = tensor.contiguous()
        self.bytes += tensor.nbytes
        if sum(each.nbytes for each in self._held.values()) >= _FILE_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._held:
            file = self._folder / f"part-{len(self._files)}.safetensors"
            try:
                save_file(self._held, file, metadata={"format": "pt"})
            except SafetensorError as error:  # what the system says is in its words alone
                raise OutputError(f"cannot write {self._folder}: {error}") from None
            self._files.append(list(self._held))
            self._held = {}

    def finish(self) -> None:
        """Write what is held, and give the files their names."""
        self._flush()
        count, where = len(self._files), {}
        for number, names in enumerate(self._files):
            file = SINGLE if count == 1 else f"model-{number + 1:05}-of-{count:05}.safetensors"
            (self._folder / f"part-{number}.safetensors").rename(self._folder / file)
            where |= dict.fromkeys(names, file)
        if count > 1:
            index = {"metadata": {"total_size": self.bytes}, "weight_map": where}
            (self._folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", "utf-8")


def copy_small_files(source: Path, folder: Path, section: dict | None, side: dict[str, dict]) -> None:
    """The tokenizer and whatever else is small, and `config.json` with its new section.

    Args:
        section: of `quantization_config`; None: none. side: further files by name.
    """
    found = {file for pattern in _COPIED for file in source.glob(pattern) if file.is_file()}
    for file in sorted(found):
        if file.name not in _NEVER:
            shutil.copyfile(file, folder / file.name)
    config = read_object(source / "config.json")
    config.pop(KEY, None)
    if section is not None:
        config[KEY] = section
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    for name, values in side.items():
        (folder / name).write_text(json.dumps(values, indent=2) + "\n", "utf-8")
