"""What each quantization mode costs a model in quality, on the real engine: `bench quality`."""

from __future__ import annotations

import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.quality_text import Text, Window, sequences, windows
from reports.quality import Quality, QualityRow, summarise
from workloads.errors import InputError, Place

if TYPE_CHECKING:
    import torch

    from backends.model.model import Model
    from backends.quantization.score import Scorer, Scores

Progress = Callable[[float, float, str], None]
DEFAULT_MODES = (
    "int8", "int8-w8a16", "rtn-int4", "gptq-int4", "awq-int4", "squeezellm-4bit", "fp8", "fp8-channel", "nvfp4", "kv-fp8-e4m3",
    "kv-int8",
)  # fmt: skip
_CACHE = 2 << 30
"""Bytes of the reference's predictions that are kept rather than computed again for every mode."""
_DECODE_PAST = 128


@dataclass(frozen=True, slots=True)
class Wanted:
    """One row: `name` as asked for; weights by a mode of `bench quantize` or a folder ("": the model's own), and the KV dtype."""

    name: str
    mode: str = ""
    folder: Path | None = None
    kv: str = "auto"


@dataclass(frozen=True, slots=True)
class Settings:
    """How to measure. `window`, `stride`, `tokens`: of the sliding window. `samples`, `length`: of calibration."""

    window: int = 512
    stride: int = 256
    tokens: int = 4096
    samples: int = 32
    length: int = 512
    group: int = 0
    device: str = "auto"
    dtype: str = "auto"
    backend: str = "torch"
    seed: int = 0


def parse_modes(names: Sequence[str]) -> list[Wanted]:
    """Modes by name: one of `bench quantize`, a quantized checkpoint's folder, `kv-` and a KV dtype, or weights`+kv-`dtype.

    Raises:
        InputError: an unknown name, or none, or one twice.
    """
    from backends.quantization.make.recipes import find_mode
    from backends.torch.pool import STORED
    from sim.quantization.kv import load_kv_mode

    place = Place(key="--modes")
    found: list[Wanted] = []
    for name in (each.strip() for text in names for each in text.split(",")):
        if not name:
            continue
        weights, _, kv = name.rpartition("kv-") if "kv-" in name else (name, "", "auto")
        weights = weights.removesuffix("+")
        if kv != "auto":
            kv = load_kv_mode(kv).name
            if kv not in STORED:
                raise InputError(
                    f"KV in {kv} can only be simulated", place=place, hint=f"these run: {', '.join(STORED)}"
                )
        path = Path(weights).expanduser()
        if weights and (path / "config.json").is_file():
            found.append(Wanted(name, folder=path, kv=kv))
        else:
            found.append(Wanted(name, find_mode(weights) if weights else "", kv=kv))
    if not found:
        raise InputError("names no mode", place=place, hint=f"such as {','.join(DEFAULT_MODES[:3])}")
    twice = [wanted.name for number, wanted in enumerate(found) if wanted.name in [w.name for w in found[:number]]]
    if twice:
        raise InputError(f"names {twice[0]} twice", place=place)
    return found


def measure_quality(
    model: Path, wanted: Sequence[Wanted], data: Text, calibration: Text, settings: Settings, *, keep: Path | None = None,
    progress: Progress | None = None,
) -> Quality:  # fmt: skip
    """Quantise a model in each way and hold its predictions against the model's own.

    Args:
        keep: a folder for the checkpoints that are made; they go with the run otherwise.

    Raises:
        InputError: a model, text or setting that cannot be used.
    """
    return _Run(model, wanted, data, calibration, settings, keep, progress).run()


class _Run:
    """One measurement."""

    def __init__(
        self, model: Path, wanted: Sequence[Wanted], data: Text, calibration: Text, settings: Settings, keep: Path | None,
        progress: Progress | None,
    ) -> None:  # fmt: skip
        from backends.weights.device import pick_device
        from backends.weights.tokenizer import Tokenizer

        self.source, self.wanted, self.settings, self.keep, self._progress = model, wanted, settings, keep, progress
        self._data, self._calibration = data, calibration
        self._device = pick_device(settings.device)
        self._tokenizer = Tokenizer(model)
        self._windows = windows(self._tokenizer.plain(data.content), settings.window, settings.stride, settings.tokens)
        self._scored = sum(len(each.ids) - each.first for each in self._windows)
        self._ids: Any = None
        self._steps = len(wanted) + 1
        self._cache: list[Any] = []
        self.notices: list[str] = []
        if data.sha256 == calibration.sha256:
            self.notices.append("calibrated on the text that is measured: calibrated modes look better than they are")

    def run(self) -> Quality:
        """Everything, row by row."""
        scorer = self._scorer(self._load(self.source), "auto")
        spec = scorer.model.architecture.spec
        self._reference = scorer
        self._keeps = self._scored * spec.vocab * 4 <= _CACHE
        rows = [self._row(Wanted("reference"), scorer, 0)]
        with ExitStack() as stack:
            place = self.keep
            if place is None:
                place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="quality-")))
            for number, wanted in enumerate(self.wanted, 1):
                rows.append(self._one(wanted, number, place))
        calibrated = None if self._ids is None else self._told(self._calibration) | {
            "sequences": self._ids.shape[0], "length": self._ids.shape[1],
        }  # fmt: skip
        return Quality(
            spec.name, self._told(self._data), calibrated, self.settings.window, self.settings.stride, self._scored,
            self._machine(scorer.model), rows, self.notices,
        )  # fmt: skip

    def _one(self, wanted: Wanted, number: int, place: Path) -> QualityRow:
        gain = group = None
        if wanted.folder is not None:
            model = self._load(wanted.folder)
        elif wanted.mode:
            made, folder = self._quantise(wanted, number, place)
            gain, group = made.gain, made.recipe.group if made.recipe.grouped else None
            model = self._load(folder)
        else:
            model = self._reference.model
        if model.architecture.spec.vocab != self._reference.model.architecture.spec.vocab:
            raise InputError(f"{wanted.name} has another vocabulary than the model", place=Place(key="--modes"))
        return self._row(wanted, self._scorer(model, wanted.kv), number, gain, group)

    def _quantise(self, wanted: Wanted, number: int, place: Path) -> tuple[Any, Path]:
        from backends.quantization.make.checkpoint import quantize_checkpoint
        from backends.quantization.make.recipes import CALIBRATED, Recipe

        folder = place / wanted.mode
        ids = self._calibration_ids() if wanted.mode in CALIBRATED else None
        tell = None
        if self._progress is not None:

            def tell(done: float, total: float, detail: str) -> None:
                self._tell(number + 0.7 * done / total, f"{wanted.name}: quantizing, {detail}")

        recipe = Recipe(wanted.mode, self.settings.group)
        made = quantize_checkpoint(self.source, folder, recipe, ids, overwrite=True, progress=tell)
        self.notices += [f"{wanted.name}: {note}" for note in made.notes]
        return made, folder

    def _calibration_ids(self) -> torch.Tensor:
        import torch

        if self._ids is None:
            settings = self.settings
            found = sequences(self._tokenizer, self._calibration, settings.samples, settings.length)
            self._ids = torch.tensor(found)
        return self._ids

    def _load(self, folder: Path) -> Model:
        from backends.torch.operators import make_operators
        from backends.weights.load import load_model

        settings = self.settings
        operators = make_operators(settings.backend, self._device)
        return load_model(folder, device=self._device, dtype=settings.dtype, operators=operators)

    def _scorer(self, model: Model, kv: str) -> Scorer:
        from backends.quantization.score import Scorer

        longest = max(self.settings.window, _DECODE_PAST + 1)
        limit = model.architecture.spec.max_position
        if self.settings.window > limit:
            raise InputError(
                f"--window {self.settings.window} is longer than the model's {limit}", place=Place(key="--window")
            )
        return Scorer(model, kv, longest)

    def _row(
        self, wanted: Wanted, scorer: Scorer, number: int, gain: float | None = None, group: int | None = None
    ) -> QualityRow:
        from backends.quantization.score import weights_in_memory
        from backends.torch.pool import stored_dtype, stored_name, token_bytes

        found, seconds = self._scores(wanted, scorer, number)
        reference = [each.loss for each in found] if number == 0 else self._losses
        if number == 0:
            self._losses = reference
        told = summarise(
            reference, [each.loss for each in found], [each.divergence for each in found],
            [each.agrees for each in found], self.settings.seed,
        )  # fmt: skip
        model = scorer.model
        everything, packed, count = weights_in_memory(model)
        kv = stored_dtype(wanted.kv, model.dtype)
        return QualityRow(
            wanted.name, _weights(model), stored_name(kv), 8 * packed / count, everything,
            token_bytes(model.architecture.spec, kv), told["perplexity"], told["ratio"], told["divergence"],
            told["divergence_p99"], told["agreement"], 1 / scorer.decode_seconds(_DECODE_PAST),
            sum(len(each.ids) for each in self._windows) / seconds, gain, group,
        )  # fmt: skip

    def _scores(self, wanted: Wanted, scorer: Scorer, number: int) -> tuple[list[Scores], float]:
        """Scores of every window, and the seconds that the model took for them."""
        from backends.quantization.score import score

        found, spent = [], 0.0
        for index, window in enumerate(self._windows):
            began = time.perf_counter()
            logits = scorer.logits(window.ids, window.first - 1)[:-1]
            spent += time.perf_counter() - began
            theirs = logits if number == 0 else self._theirs(index, window)
            if number == 0 and self._keeps:
                self._cache.append(logits.cpu())
            found.append(score(theirs, logits, window.ids[window.first :]))
            self._check(found[-1], wanted)
            self._tell(number + 0.7 + 0.3 * (index + 1) / len(self._windows), f"{wanted.name}: predicting")
        return found, spent

    def _theirs(self, index: int, window: Window) -> torch.Tensor:
        if self._cache:
            return self._cache[index]
        return self._reference.logits(window.ids, window.first - 1)[:-1]

    def _check(self, scores: Scores, wanted: Wanted) -> None:
        if not (np.isfinite(scores.loss).all() and np.isfinite(scores.divergence).all()):
            raise InputError(
                f"{wanted.name} predicts numbers that are not finite", place=Place(str(wanted.folder or self.source)),
                hint="--dtype fp32 or bf16 has more range than fp16",
            )  # fmt: skip

    def _told(self, text: Text) -> dict[str, Any]:
        return {"name": text.about, "sha256": text.sha256, "characters": len(text.content)}

    def _machine(self, model: Model) -> dict[str, Any]:
        import torch

        from backends.weights.device import device_name

        told = {
            "device": device_name(model.device), "backend": self.settings.backend, "dtype": str(model.dtype)[6:],
            "torch": torch.__version__, "python": platform.python_version(),
        }  # fmt: skip
        return told | ({"threads": torch.get_num_threads()} if model.device.type == "cpu" else {})

    def _tell(self, done: float, detail: str) -> None:
        if self._progress is not None:
            self._progress(done, self._steps, detail)


def _weights(model: Model) -> str:
    """The mode of a model's weights by its name in the registry."""
    native = model.architecture.spec.native_quantization
    return native or {2: str(model.dtype)[6:].replace("bfloat16", "bf16").replace("float16", "fp16"), 4: "fp32"}[
        model.dtype.itemsize
    ]  # fmt: skip
