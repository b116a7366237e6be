"""Generating text from Python, with vLLM's names: `LLM(model).generate(prompts, SamplingParams(max_tokens=64))`."""

from __future__ import annotations

import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from backends.extra import need_torch
from backends.torch.beams import BeamSearchParams, BeamSearchSequence, search
from backends.torch.sampling import SamplingParams
from sim.presets import preset_config
from workloads.errors import InputError, Place
from workloads.traffic import Request, Span, private_content

if TYPE_CHECKING:
    from backends.torch.tokens import Tokens
    from backends.weights.tokenizer import Message, Tokenizer
    from sim.config import EngineConfig
    from sim.engine.sequence import Sequence

Prompt = str | Seq[int] | dict
"""A text, token ids, or {"prompt": text} or {"prompt_token_ids": ids} as vLLM has them."""

_NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Logprob:
    """The log-probability of a token, before temperature and filters, and its text."""

    logprob: float
    decoded_token: str | None = None


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One answer.

    Attributes:
        index: of the sample. token_ids: all generated, those that ended it included. text: without what ended it; empty where
            the model has no tokenizer.
        finish_reason: `stop` (end of text, a stop), `length`, or `abort` where generation was interrupted.
        logprobs: of each token: token id → `Logprob`, where they were asked for.
        cumulative_logprob: of the answer, where they were asked for.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str
    logprobs: list[dict[int, Logprob]] | None = None
    cumulative_logprob: float | None = None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A prompt and its answers, in the order of their index. `num_cached_tokens`: of the prompt, found in the cache."""

    request_id: int
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    num_cached_tokens: int
    finished: bool = True


class LLM:
    """A model with an engine, for use from Python. Answers of one call are computed together; prefixes stay cached between calls.

    Args:
        model: a local Hugging Face folder, or a hub id.
        load: `dummy` makes weights up. dtype, device: `auto` is the checkpoint's own, and a GPU where there is one.
        backend: `torch` or `triton` (needs a GPU).
        seed: of made-up weights and of draws that have none of their own.
        preset: whose scheduling rules (`bench list presets`).
        max_model_len: longest prompt plus answer; 0 = the model's own limit.
        kv_tokens: tokens of KV; 0 = what the memory holds.
        max_num_seqs, max_num_batched_tokens: of a step; 0 = the preset's.
        kv_cache_dtype: of keys and values: `auto` is the model's, or `fp8`, `fp8-e5m2`, `int8`, ….

    Raises:
        InputError: no such model, packages that are missing, or too little memory.
    """

    def __init__(
        self, model: str | Path, *, load: str = "auto", dtype: str = "auto", device: str = "auto", backend: str = "torch",
        seed: int = 0, preset: str = "vllm", max_model_len: int = 0, kv_tokens: int = 0, max_num_seqs: int = 0,
        max_num_batched_tokens: int = 0, enable_prefix_caching: bool = True, kv_cache_dtype: str = "auto",
    ) -> None:  # fmt: skip
        need_torch("LLM")
        from backends.torch.build import make_torch_engine
        from backends.torch.executor import TorchExecutor
        from backends.torch.memory import describe, measure_room
        from backends.torch.operators import make_operators
        from backends.weights.device import pick_device
        from backends.weights.load import load_model
        from backends.weights.source import find_source
        from sim.memory import context_limit

        where = pick_device(device)
        operators = make_operators(backend, where)
        source = find_source(str(model), load)
        self._model = load_model(source, device=where, dtype=dtype, load=load, seed=seed, operators=operators)
        spec = self._model.architecture.spec
        base = preset_config(
            preset, device_memory=describe(where).memory_bytes, max_model_len=max_model_len or spec.max_position
        )
        scheduler = replace(
            base.scheduler, max_num_seqs=max_num_seqs or base.scheduler.max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens or base.scheduler.max_num_batched_tokens,
        )  # fmt: skip
        caching = base.kv.prefix_caching and enable_prefix_caching
        kv = replace(base.kv, capacity_tokens=kv_tokens, prefix_caching=caching, dtype=kv_cache_dtype)
        depth = base.depth if where.type == "cuda" else 1  # a CPU computes nothing beside itself
        config: EngineConfig = replace(base, scheduler=scheduler, kv=kv, depth=depth, max_model_len=max_model_len)
        room = measure_room(self._model, config)
        self.tokenizer: Tokenizer | None = _tokenizer(source)
        decode = self.tokenizer.decode if self.tokenizer is not None else None
        self._executor = TorchExecutor(self._model, seed=seed, decode=decode)
        self._executor.on_end = self._ended
        self._engine = make_torch_engine(
            config, self._executor, capacity=room.tokens, max_len=context_limit(spec, config),
            host_tokens=int(config.kv.swap_gib * (1 << 30) // room.per_token),
        )  # fmt: skip
        self._rows = 0
        self._answers: dict[int, dict[int, CompletionOutput]] = {}
        self._cached: dict[int, int] = {}

    def generate(
        self, prompts: Prompt | Seq[Prompt], sampling_params: SamplingParams | Seq[SamplingParams] | None = None
    ) -> list[RequestOutput]:
        """Answer prompts.

        Args:
            prompts: one or several, each a text or token ids.
            sampling_params: for all of them, or one for each.

        Raises:
            InputError: a prompt that is empty or does not fit, or text without a tokenizer. Nothing is generated then.
        """
        listed = _listed(prompts)
        written = [self._written(prompt) for prompt in listed]
        if sampling_params is None or isinstance(sampling_params, SamplingParams):
            wishes = [sampling_params or SamplingParams()] * len(written)
        else:
            wishes = list(sampling_params)
        if len(wishes) != len(written):
            raise InputError(
                f"{len(written)} prompts, but {len(wishes)} sampling_params", place=Place(key="sampling_params")
            )
        rows = range(self._rows, self._rows + len(written))
        self._rows += len(written)
        try:
            for row, (_, ids), wish in zip(rows, written, wishes, strict=True):
                self._submit(row, ids, wish)
            self._run()
            return [self._output(row, *prompt) for row, prompt in zip(rows, written, strict=True)]
        finally:  # interrupted, or one of them was refused: nothing of it stays in memory
            for row in rows:
                self._engine.cancel(row, self._executor.clock())
                self._answers.pop(row, None)
                self._cached.pop(row, None)

    def chat(
        self,
        messages: Seq[Message] | Seq[Seq[Message]],
        sampling_params: SamplingParams | Seq[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Continue conversations, each a list of {"role": …, "content": …}, by the model's chat template."""
        if self.tokenizer is None:
            raise InputError("chat needs the model's tokenizer, and it has none", place=Place(key="messages"))
        several = messages if messages and not isinstance(messages[0], dict) else [messages]
        return self.generate([self.tokenizer.chat(list(each)) for each in several], sampling_params)

    def beam_search(self, prompts: Prompt | Seq[Prompt], params: BeamSearchParams) -> list[list[BeamSearchSequence]]:
        """The likeliest answers to prompts, `params.beam_width` for each, best first.

        Raises:
            InputError: as `generate`.
        """
        written = [self._written(prompt)[1] for prompt in _listed(prompts)]
        ends = frozenset(self._model.architecture.stop_ids)

        def best(asked: list[list[int]], count: int) -> list[dict[int, float]]:
            outputs = self.generate(asked, SamplingParams(max_tokens=1, logprobs=count, ignore_eos=True))
            return [{token: each.logprob for token, each in out.outputs[0].logprobs[0].items()} for out in outputs]

        found = search(written, params, ends, best)
        if self.tokenizer is None:
            return found
        return [[replace(beam, text=self.tokenizer.decode(beam.tokens)) for beam in beams] for beams in found]

    # --- the engine

    def _submit(self, row: int, ids: list[int], wish: SamplingParams) -> None:
        self._executor.give(row, ids, wish)
        prompt = (Span(private_content(row), 0, len(ids)),)
        now = self._executor.clock()
        request = Request(row, now, len(ids), wish.max_tokens, wish.max_tokens, prompt, 0, wish.n)
        if reason := self._engine.submit(request, now):
            raise InputError(f"prompt of {len(ids)} tokens: {reason}", place=Place(key="prompts"))

    def _run(self) -> None:
        engine, clock = self._engine, self._executor.clock
        while not engine.idle:
            while engine.launch(clock(), _NEVER):
                pass
            if engine.in_flight:
                engine.land(engine.collect())
            elif engine.wake_at is not None:
                time.sleep(max(0.0, engine.wake_at - clock()))
            elif (stuck := engine.refuse_stuck()) is not None:
                raise InputError(stuck[1], place=Place(key="prompts"))

    def _ended(self, seq: Sequence, tokens: Tokens) -> None:
        """Keep what a sequence said."""
        ids = tokens.answer.tolist()
        reason = tokens.reason or "abort"
        text = "" if self.tokenizer is None else self.tokenizer.decode(ids)
        found = [text.find(stop) for stop in tokens.sampling.stop if stop in text]
        text = text[: min(found)] if found else text
        logprobs, total = self._logprobs(tokens, ids)
        answers = self._answers.setdefault(seq.row, {})
        answers[seq.sample] = CompletionOutput(seq.sample, text, ids, reason, logprobs, total)
        if not seq.sample:
            self._cached[seq.row] = seq.cached_tokens

    def _logprobs(self, tokens: Tokens, ids: list[int]) -> tuple[list[dict[int, Logprob]] | None, float | None]:
        if tokens.sampling.logprobs is None:
            return None, None
        found = [tokens.logprobs[tokens.prompt + index] for index in range(len(ids))]
        text = (lambda token: None) if self.tokenizer is None else (lambda token: self.tokenizer.decode([token]))
        total = sum(each[token] for each, token in zip(found, ids, strict=True))
        return [{token: Logprob(value, text(token)) for token, value in each.items()} for each in found], total

    # --- prompts

    def _written(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        """A prompt as text, if it is one, and as token ids."""
        if isinstance(prompt, dict):
            prompt = prompt["prompt_token_ids"] if "prompt_token_ids" in prompt else prompt["prompt"]
        if not isinstance(prompt, str):
            ids = [int(token) for token in prompt]
            text = None
        elif self.tokenizer is None:
            raise InputError(
                "a prompt of text needs the model's tokenizer, and it has none", place=Place(key="prompts"),
                hint="give token ids",
            )  # fmt: skip
        else:
            text, ids = prompt, self.tokenizer.encode(prompt)
        if not ids:
            raise InputError("a prompt is empty", place=Place(key="prompts"))
        return text, ids

    def _output(self, row: int, text: str | None, ids: list[int]) -> RequestOutput:
        answers = self._answers[row]
        return RequestOutput(row, text, ids, [answers[index] for index in sorted(answers)], self._cached[row])


def _listed(prompts: Prompt | Seq[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str | dict):
        return [prompts]
    listed = list(prompts)
    return [listed] if listed and isinstance(listed[0], int) else listed


def _tokenizer(source: object) -> Tokenizer | None:
    """The tokenizer of a folder, if it has one."""
    from backends.weights.tokenizer import Tokenizer, has_tokenizer

    return Tokenizer(source) if isinstance(source, Path) and has_tokenizer(source) else None
