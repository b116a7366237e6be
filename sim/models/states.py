"""Layers whose memory of a sequence does not grow: state-space layers and linear attention.

Every head keeps a matrix of `key_dim × value_dim` values, which each token decays and adds to, and a short convolution keeps
its last inputs. What a sequence takes is therefore fixed, whatever its length.
"""

from __future__ import annotations

from dataclasses import dataclass

KINDS = {
    "gated-delta": "Gated DeltaNet (arXiv 2412.06464)",
    "kda": "Kimi Delta Attention (arXiv 2510.26692)",
    "mamba2": "Mamba-2 (arXiv 2405.21060)",
    "mamba1": "Mamba (arXiv 2312.00752)",
    "lightning": "Lightning Attention (arXiv 2401.04658)",
}
STATE_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}


@dataclass(frozen=True, slots=True)
class StateDims:
    """Recurrent layers of a model. Counts are of values, heads or layers.

    Attributes:
        kind: one of `KINDS`. layers: how many layers have it.
        heads: heads (or channels, for `mamba1`) with a state of their own. groups: key heads, which heads share.
        key_dim, value_dim: sides of a head's state (Mamba: state size, head width).
        conv: width of the short convolution; 0: none.
        rank: width of the low-rank projections (`kda`: of the decay and of the output gate; `mamba1`: of the time step); 0: none.
        dtype: of the recurrent state, where the checkpoint says one; "" leaves it to the engine.
        norm: whether `mamba2` normalises what it gives.
    """

    kind: str
    layers: int
    heads: int
    groups: int
    key_dim: int
    value_dim: int
    conv: int = 4
    rank: int = 0
    dtype: str = ""
    norm: bool = True

    @property
    def inner(self) -> int:
        """Width of the values of a token."""
        return self.heads * self.value_dim

    @property
    def keys(self) -> int:
        """Width of the keys (and of the queries) of a token."""
        return self.groups * self.key_dim

    @property
    def conv_width(self) -> int:
        """Channels that the convolution runs over."""
        if not self.conv:
            return 0
        return self.inner if self.kind == "mamba1" else self.inner + 2 * self.keys

    def local(self, tp: int) -> tuple[int, int]:
        """(heads, groups) on one of `tp` GPUs; groups are repeated where there are fewer than GPUs."""
        return -(-self.heads // tp), max(-(-self.groups // tp), 1)

    def recurrent_values(self, tp: int = 1) -> int:
        """Values of the recurrent state of one sequence in one layer on one GPU."""
        return self.local(tp)[0] * self.key_dim * self.value_dim

    def conv_values(self, tp: int = 1) -> int:
        """Values that the convolution keeps of one sequence in one layer on one GPU."""
        if not self.conv:
            return 0
        heads, groups = self.local(tp)
        width = heads * self.value_dim + (0 if self.kind == "mamba1" else 2 * groups * self.key_dim)
        return (self.conv - 1) * width

    def layer_bytes(self, tp: int = 1, dtype: str = "", model_dtype: str = "bf16") -> int:
        """Bytes of one sequence in one layer on one GPU.

        Args:
            dtype: of the recurrent state where the checkpoint states none; "" = the model's.
        """
        recurrent = STATE_BYTES["fp32" if self.kind == "kda" else self.dtype or dtype or model_dtype]
        return self.recurrent_values(tp) * recurrent + self.conv_values(tp) * STATE_BYTES[model_dtype]

    def small_weights(self) -> int:
        """Weights of one layer outside of its linear layers: convolution, decay, time steps and norms."""
        conv = self.conv_width * self.conv
        if self.kind == "gated-delta":
            return conv + 2 * self.heads + self.value_dim
        if self.kind == "kda":
            return conv + self.heads + self.inner + self.value_dim
        if self.kind == "mamba2":
            return conv + self.conv_width + 3 * self.heads + (self.inner if self.norm else 0)
        if self.kind == "mamba1":  # with the norms of Jamba
            norms = self.rank + 2 * self.key_dim
            return conv + self.conv_width + self.inner * self.key_dim + 2 * self.inner + norms
        return self.inner  # lightning: the norm before the gate
