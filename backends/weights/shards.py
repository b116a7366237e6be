"""The tensors of a checkpoint's files by name, read when they are asked for; what nobody asked for is told."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from workloads.errors import InputError, Place


class Shards:
    """Open safetensors files. A context manager.

    Raises:
        InputError: a damaged file, or a tensor in two files.
    """

    def __init__(self, files: list[Path]) -> None:
        self._stack = ExitStack()
        self._where: dict[str, tuple[Any, Path]] = {}
        self._asked: set[str] = set()
        self._modules: dict[str, list[str]] = {}
        for file in files:
            try:
                shard = self._stack.enter_context(safe_open(file, framework="pt"))
                names = list(shard.keys())
            except (SafetensorError, OSError) as error:
                self._stack.close()
                raise InputError(f"is damaged: {error}", place=Place(str(file))) from None
            for name in names:
                if name in self._where:
                    self._stack.close()
                    raise InputError(
                        f"tensor {name} is in {self._where[name][1].name} too", place=Place(str(file)),
                        hint="keep the files of one checkpoint in a folder",
                    )  # fmt: skip
                self._where[name] = (shard, file)
                self._modules.setdefault(name.rpartition(".")[0], []).append(name)

    def __enter__(self) -> Shards:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    def __contains__(self, name: str) -> bool:
        return name in self._where

    def __len__(self) -> int:
        return len(self._where)

    def names(self) -> list[str]:
        """All names."""
        return list(self._where)

    def file(self, name: str) -> Path:
        """The file that a tensor is in."""
        return self._where[name][1]

    def get(self, name: str) -> Tensor:
        """A tensor, whose memory may be the file's.

        Raises:
            InputError: there is none of that name, or it is damaged.
        """
        if name not in self._where:
            folder = next((file.parent for _, file in self._where.values()), Path())
            raise InputError(
                f"tensor {name} is missing", place=Place(str(folder)),
                hint="config.json and the weights must come from the same checkpoint",
            )  # fmt: skip
        self._asked.add(name)
        shard, file = self._where[name]
        try:
            return shard.get_tensor(name)
        except SafetensorError as error:
            raise InputError(f"is damaged: {error}", place=Place(str(file))) from None

    def beneath(self, module: str) -> dict[str, Tensor]:
        """The tensors of one module by what follows its name and a dot; those of modules inside it are not."""
        names = self._modules.get(module, ())
        return {name[len(module) + 1 :]: self.get(name) for name in names}

    def ask(self, name: str) -> None:
        """Mark a tensor as known, without reading it."""
        self._asked.add(name)

    def unasked(self) -> list[str]:
        """Names that nobody has asked for, in order."""
        return sorted(set(self._where) - self._asked)
