"""The operators as Triton kernels.

What has none is torch's: unquantised linear layers, cosine and sine once a step, the experts' router.
"""

from __future__ import annotations

import torch
from torch import Tensor

from backends.ops.base import Dense, KVScales, PackedBatch, SamplingBatch
from backends.ops.reference import FP8, ReferenceOperators
from backends.quantization.base import QuantizedBank, QuantizedLinear
from backends.triton import elementwise, norm, rope, sampling
from backends.triton.decode import decode_attention
from backends.triton.experts import run_experts
from backends.triton.launch import Launcher, find_target, is_interpreted, rows_last
from backends.triton.plan import AttentionPlan, plan_attention
from backends.triton.prefill import prefill_attention
from backends.triton.quantized.experts import run_packed_experts
from backends.triton.quantized.linear import check_part, packed_linear
from backends.triton.tiles import prefill_tile
from workloads.errors import InputError, Place


class TritonOperators(ReferenceOperators):
    """Implements `backends.ops.base.Operators`; see there for shapes.

    Args:
        launch: how kernels are launched; by default on `device`, in Triton's interpreter if Triton was imported with that on.

    Raises:
        InputError: on pages in fp8 e4m3 where Triton does not know it.
    """

    recordable = True

    def __init__(self, device: torch.device | str = "cuda", *, launch: Launcher | None = None) -> None:
        self._launch = launch or Launcher(find_target(torch.device(device), is_interpreted(norm.rms_norm_kernel)))
        self._planned: tuple[PackedBatch | None, int, int] = (None, 0, 0)
        self._plan: AttentionPlan | None = None
        self._numbers: Tensor | None = None  # 0, 1, 2, … on the device

    def embed(self, table: Tensor, ids: Tensor) -> Tensor:
        return elementwise.gather(self._launch, table, ids)

    def gather(self, x: Tensor, rows: Tensor) -> Tensor:
        return elementwise.gather(self._launch, x, rows)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return norm.rms_norm(self._launch, x, weight, eps)[0]

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return norm.rms_norm(self._launch, x, weight, eps, residual)

    def silu_mul(self, x: Tensor) -> Tensor:
        return elementwise.silu_mul(self._launch, x)

    def rope_and_cache(
        self, q: Tensor, k: Tensor, v: Tensor, rotary: tuple[Tensor, Tensor], k_pages: Tensor, v_pages: Tensor, slots: Tensor,
        *, kv_scales: KVScales = (1.0, 1.0),
    ) -> Tensor:  # fmt: skip
        self._check(k_pages)
        return rope.rope_and_cache(self._launch, q, k, v, rotary, k_pages, v_pages, slots, kv_scales)

    def attention(
        self, q: Tensor, k_pages: Tensor, v_pages: Tensor, batch: PackedBatch, *, scale: float, window: int = 0,
        softcap: float = 0.0, kv_scales: KVScales = (1.0, 1.0),
    ) -> Tensor:  # fmt: skip
        self._check(k_pages)
        q = rows_last(q)
        group = q.shape[1] // k_pages.shape[2]
        how = {
            "scale": scale, "window": window, "softcap": softcap,
            "kv_scales": kv_scales if k_pages.dtype in FP8 else (1.0, 1.0),
            "head_scales": kv_scales if k_pages.dtype == torch.int8 else None,
        }  # fmt: skip
        tile = prefill_tile(self._launch.target, 1 << (q.shape[2] - 1).bit_length(), q.dtype, group, k_pages.dtype)
        plan = self._plan_of(batch, group, tile.rows // group)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        for part in plan.decoding:
            decode_attention(
                self._launch, out, q, k_pages, v_pages, batch, part.sequences, part.queries, part.longest, **how
            )
        prefill_attention(self._launch, out, q, k_pages, v_pages, batch, plan.tiles, tile, **how)
        return out

    def linear(self, x: Tensor, layer: Dense | QuantizedLinear) -> Tensor:
        if isinstance(layer, QuantizedLinear):
            return packed_linear(self._launch, x, layer)
        return super().linear(x, layer)

    def experts(
        self, x: Tensor, router: Dense, gate_up: Tensor | QuantizedBank, down: Tensor | QuantizedBank, top_k: int,
        renormalise: bool,
    ) -> Tensor:  # fmt: skip
        run = run_experts
        if isinstance(down, QuantizedBank):
            for bank in (gate_up, down):
                check_part(bank.weight, self._launch.target)
            run = run_packed_experts
        return run(self._launch, x, self.linear(x, router), gate_up, down, top_k, renormalise)

    def sample(self, logits: Tensor, how: SamplingBatch) -> Tensor:
        return sampling.sample(self._launch, logits, how)

    def _check(self, pages: Tensor) -> None:
        target = self._launch.target
        if pages.dtype == torch.float8_e4m3fn and not target.e4m3 and not target.interpreted:
            raise InputError(
                f"keys and values in fp8 e4m3 cannot be read by Triton on {target.arch}", place=Place(key="engine.kv.dtype"),
                hint="they need compute capability 8.9 (Ada) or later; keep them in 16 bits, or in e5m2 or int8",
            )  # fmt: skip

    def _plan_of(self, batch: PackedBatch, group: int, tile_queries: int) -> AttentionPlan:
        """Every layer of a step asks with the same batch: it is planned once."""
        known, *shape = self._planned
        if known is not batch or shape != [group, tile_queries]:
            count, device = len(batch.queries), batch.query_starts.device
            if self._numbers is None or len(self._numbers) < count or self._numbers.device != device:
                self._numbers = torch.arange(max(512, 2 * count), dtype=torch.int32, device=device)
            self._plan = plan_attention(batch, group, tile_queries, self._numbers)
            self._planned = batch, group, tile_queries
        return self._plan
