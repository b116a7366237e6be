"""An engine on a real model: the simulator's engine, with allocators that name content by token ids."""

from __future__ import annotations

from dataclasses import replace

from backends.torch.executor import TorchExecutor
from backends.torch.kv import ALLOCATORS
from backends.torch.pool import stored_dtype
from sim.build import make_engine
from sim.config import EngineConfig
from sim.engine.engine import Engine


def make_torch_engine(
    config: EngineConfig, executor: TorchExecutor, *, capacity: int, max_len: int, host_tokens: int = 0
) -> Engine:
    """An engine of the parts that `config` names, whose plans `executor` runs.

    Args:
        capacity: tokens of KV on the device.
        max_len: longest sequence in tokens.
        host_tokens: tokens of KV that fit in host memory.

    Raises:
        InputError: an unknown name, or parts that cannot work together.
    """
    allocator = ALLOCATORS.get(config.kv.allocator, config.kv.allocator)
    real = replace(config, kv=replace(config.kv, allocator=allocator))
    engine = make_engine(real, executor, capacity=capacity, max_len=max_len, host_tokens=host_tokens, stretch=False)
    executor.attach(
        engine.state.allocator, config.depth, rows=config.scheduler.max_num_seqs, max_len=max_len,
        stored=stored_dtype(config.kv.dtype, executor.model.dtype),
    )  # fmt: skip
    return engine
