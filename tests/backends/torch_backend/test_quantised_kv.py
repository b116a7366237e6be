"""Keys and values in fp8 and int8, end to end: what is served is what a model gives whose keys and values made the way there and
back, whoever schedules and wherever pages lie; and the pool holds what the smaller type allows."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

torch = pytest.importorskip("torch", minversion="2.0")
pytest.importorskip("transformers")

from real_engine import Served, busy, engine_config, traffic_of  # noqa: E402

from backends.model.model import Model  # noqa: E402
from backends.ops.reference import ReferenceOperators  # noqa: E402
from backends.torch.memory import check_room, measure_room  # noqa: E402
from backends.torch.pack import bare_batch  # noqa: E402
from backends.torch.pool import KVPool, stored_dtype, token_bytes  # noqa: E402
from backends.weights.load import load_model  # noqa: E402
from backends.weights.tiny import make_tiny  # noqa: E402
from sim.models import load_model as load_spec  # noqa: E402
from sim.quantization import KVMode  # noqa: E402
from workloads.errors import InputError  # noqa: E402

KINDS = ["fp8-e4m3", "fp8-e5m2", "int8"]
CPU = torch.device("cpu")


def there_and_back(x: torch.Tensor, kind: str, scale: float = 1.0) -> torch.Tensor:
    """Heads [..., dim] as they are read back; written here by other means than the operators'."""
    if kind == "int8":
        step = (x.double().abs().amax(-1, keepdim=True) / 127).clamp(min=2.0**-14).half().double()
        return (torch.div(x.double(), step).round().clamp(-127, 127) * step).float()
    dtype = {"fp8-e4m3": torch.float8_e4m3fn, "fp8-e5m2": torch.float8_e5m2}[kind]
    most = torch.finfo(dtype).max
    return (x / scale).clamp(-most, most).to(dtype).float() * scale


class Oracle(ReferenceOperators):
    """Keeps in float32 what a quantised cache would give back."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def rope_and_cache(self, q, k, v, rotary, k_pages, v_pages, slots, *, kv_scales=(1.0, 1.0)):
        q = super().rope_and_cache(q, k, v, rotary, k_pages, v_pages, slots)
        for pages, scale in zip((k_pages, v_pages), kv_scales, strict=True):
            flat = pages.flatten(0, 1)
            flat[slots] = there_and_back(flat[slots], self.kind, scale)
        return q


@cache
def ready(root):
    return load_model(make_tiny("tiny-qwen3", root / "qwen", seed=3))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return ready(tmp_path_factory.mktemp("models"))


@torch.inference_mode()
def oracle_logits(model: Model, kind: str, ids: list[int]) -> torch.Tensor:
    """After each of these tokens, computed at once."""
    pages = -(-len(ids) // 16)
    batch = bare_batch([0], [len(ids)], np.arange(pages)[None], 16, CPU)
    batch = replace(batch, ids=torch.tensor(ids), sample_rows=torch.arange(len(ids)))
    pool = KVPool(model.architecture.spec, pages, 16, torch.float32, CPU)
    return Model(model.architecture, model.parameters, Oracle(kind)).forward(batch, pool.cache)


def check_all(served: Served, model: Model, kind: str, tolerance: float = 2e-3) -> None:
    """Logits are the oracle's, and tokens its choices, unless two are closer than `tolerance`.

    A key next to an edge of rounding may fall to either side of it when sums are taken in another order: a few logits differ by
    what one such step makes, so nearly all must agree closely and all within `tolerance`.
    """
    errors = []
    for (row, sample), answer in served.tokens.items():
        want = oracle_logits(model, kind, served.prompts[row] + answer)
        first = len(served.prompts[row])
        for index, token in enumerate(answer):
            line = want[first + index - 1]
            errors.append(float((served.logits[row, sample, first + index] - line).abs().max()))
            assert line[token] > line.max() - tolerance
    assert max(errors) < tolerance and np.quantile(errors, 0.9) < 1e-4, (max(errors), np.quantile(errors, 0.9))


@pytest.mark.parametrize("allocator", ["paged", "radix", "contiguous"])
@pytest.mark.parametrize("kind", KINDS)
def test_served_tokens_are_those_of_dequantised_keys_and_values(model, kind, allocator) -> None:
    """Prompts in pieces, shared prefixes, samples that split off, swaps or new computing, replayed decode steps."""
    slabs = allocator == "contiguous"
    swap = allocator == "paged"
    rows = [
        {"prompt": 20, "output": 40},
        {"prompt": 20, "output": 40},
        *busy(3, 6, 0.3, prompts=(1, 30), answers=(12, 20)),
    ]
    config = engine_config(
        depth=1 if swap else 2, allocator=allocator, block_size=1 if allocator == "radix" else 16, dtype=kind,
        prefix_caching=not slabs, max_num_seqs=8, max_num_batched_tokens=24, preemption="swap" if swap else "recompute",
    )  # fmt: skip

    def poison(served: Served) -> None:
        pool = served.executor.pool
        (pool.cache if pool.scales is None else pool.scales)[:, :, :-1] = float("nan")

    served = Served(
        model, traffic_of(rows), config, capacity=8 * 96 if slabs else 112, max_len=96, poison=False, before=poison,
        capture=lambda work: work,
    )  # fmt: skip
    assert served.executor.pool.cache.dtype == stored_dtype(kind, torch.float32)
    assert not served.refused and served.mixed and served.executor.graphs.replayed
    assert slabs or served.preemptions
    assert not swap or (served.swaps and served.copies)
    check_all(served, model, kind)


def test_scales_of_the_checkpoint_divide_keys_and_values_in_fp8(model) -> None:
    """Layer by layer; here so unfit that what they do is seen."""
    weights = model.parameters
    layers = (replace(each, kv_scales=(0.003, 3.0)) for each in weights.layers)
    scaled = Model(model.architecture, replace(weights, layers=tuple(layers)), model.operators)
    config = engine_config(dtype="fp8", max_num_seqs=4, max_num_batched_tokens=24)
    found = [Served(each, traffic_of([{"prompt": 30, "output": 8}]), config) for each in (scaled, model)]
    check_all(found[0], scaled, "fp8-e4m3")
    first = [each.logits[0, 0, 30] for each in found]
    assert (first[0] - first[1]).abs().max() > 0.05


def test_the_oracle_of_another_type_says_something_else(model) -> None:
    """What the bounds above are worth."""
    ids = list(range(20, 60))
    found = {kind: oracle_logits(model, kind, ids) for kind in KINDS}
    for kind, other in (("fp8-e4m3", "fp8-e5m2"), ("fp8-e5m2", "int8"), ("int8", "fp8-e4m3")):
        error = (found[kind] - found[other]).abs().amax(-1)[8:]
        assert error.quantile(0.1) > 5e-4, (kind, other, error)


@pytest.mark.parametrize("kind", KINDS)
def test_pages_take_half_and_the_pool_holds_twice(model, kind) -> None:
    spec = model.architecture.spec
    wide, narrow = (token_bytes(spec, dtype) for dtype in (torch.bfloat16, stored_dtype(kind, torch.bfloat16)))
    scales = 2 * 2 * spec.layers * spec.kv_heads if kind == "int8" else 0
    assert narrow == wide // 2 + scales
    assert narrow == spec.kv_bytes_per_token(kind), "the simulator counts as many"
    pool = KVPool(spec, 5, 16, stored_dtype(kind, torch.bfloat16), CPU)
    held = pool.cache.nbytes + (pool.scales.nbytes if pool.scales is not None else 0)
    assert held == 5 * 16 * narrow
    rooms = [measure_room(model, engine_config(dtype=dtype, max_num_seqs=4)) for dtype in ("auto", kind)]
    assert rooms[1].per_token == narrow and rooms[0].per_token == 2 * wide, "the model is in fp32"
    kept = [
        measure_room(model, engine_config(dtype=dtype, max_num_seqs=4, capacity_tokens=160)) for dtype in ("auto", kind)
    ]
    assert kept[1].kv * 4 == kept[0].kv + 4 * 160 * scales and kept[0].tokens == kept[1].tokens == 160


def test_a_pool_that_is_too_small_in_bf16_may_be_large_enough_in_fp8() -> None:
    spec = load_spec("meta-llama/Meta-Llama-3-8B")
    long = replace(spec, max_position=1 << 40)
    for dtype in ("auto", "fp8-e4m3"):
        with pytest.raises(InputError, match="needs") as caught:
            check_room(long, torch.bfloat16, CPU, engine_config(dtype=dtype))
        needs = (2 if dtype == "auto" else 1) * (1 << 40) * spec.kv_bytes_per_token("bf16") / 2 / (1 << 30)
        assert f"needs {needs:.2f} GiB of KV" in str(caught.value)


def test_names_and_what_only_the_simulator_knows() -> None:
    assert stored_dtype("fp8", torch.bfloat16) == torch.float8_e4m3fn
    assert (
        stored_dtype("AUTO", torch.float16) == torch.float16 and stored_dtype("bf16", torch.float32) == torch.bfloat16
    )
    with pytest.raises(InputError, match=r"KV in int2 can only be simulated.*these run: auto, bf16"):
        stored_dtype(KVMode("int2", 2), torch.bfloat16)
    with pytest.raises(InputError, match="unknown KV dtype 'fp9'"):
        stored_dtype("fp9", torch.bfloat16)


@pytest.mark.parametrize("kind", KINDS)
def test_copies_swaps_and_returns_of_small_types(kind) -> None:
    spec = load_spec("meta-llama/Meta-Llama-3-8B")
    pool = KVPool(replace(spec, layers=2), 6, 2, stored_dtype(kind, torch.bfloat16), CPU)
    parts = [pool.cache] if pool.scales is None else [pool.cache, pool.scales]
    for part in parts:
        part.copy_(torch.arange(6)[None, None, :, None, None, *[None] * (part.dim() - 5)].expand_as(part))

    def held() -> list[list[float]]:
        return [part.float().flatten(3).amax(-1)[1, 1].tolist() for part in parts]

    pool.copy([(1, 4), (0, 5)])
    assert held() == [[0, 1, 2, 3, 1, 0]] * len(parts)
    out = pool.take_out([3, 2])
    pool.clear(2)
    pool.clear(3)
    assert held() == [[0, 1, 0, 0, 1, 0]] * len(parts)
    pool.put_back([0, 1], out)
    assert held() == [[3, 2, 0, 0, 1, 0]] * len(parts)
