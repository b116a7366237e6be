"""Static batching: a batch is formed once and runs until its last sequence has finished."""

from __future__ import annotations

from sim.config import SchedulerConfig
from sim.engine.state import EngineState
from sim.engine.step import Step
from sim.kv.base import FOREVER
from sim.schedulers.base import Scheduler


class StaticBatching(Scheduler):
    """Wait for a batch, run it to the end, hand the answers out, begin again (FasterTransformer, Hugging Face generate).

    Nothing joins a running batch and nothing leaves it: finished rows keep their memory and, with `pad`, are computed along
    with the rest, every row as wide as the longest. A batch is whatever waits when the engine falls idle, up to
    `max_num_seqs`; with `batch_wait` an incomplete batch waits that long for more.
    """

    retains_finished = True

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self._width = 0  # of the prompts of the batch

    def plan(self, step: Step) -> None:
        state = step.state
        if state.running:
            if step.decode() and self.config.pad:
                rows = len(state.running) + len(state.retained)
                step.pad_rows(rows, self._width + next(iter(state.cohort.members)).generated)
            return
        step.release_retained()
        waiting = state.waiting
        if not waiting:
            return
        oldest = min(seq.arrival for seq in waiting) if self.config.batch_wait else 0.0
        if len(waiting) < self.config.max_num_seqs and step.now < oldest + self.config.batch_wait:
            step.wake_at = oldest + self.config.batch_wait
            return
        while waiting and step.admit(waiting.head(), whole=True):
            pass
        if self.config.pad and step.chunks:
            self._width = step.pad_prompts()

    def stable_steps(self, state: EngineState) -> int:
        return FOREVER

    def arrival_matters(self, state: EngineState) -> bool:
        return not state.running
