"""A plug-in scheduler that chooses at random among what a step allows; seeded by `prefill_wait_steps`."""

from __future__ import annotations

import random

from sim.config import SchedulerConfig
from sim.engine.step import Step
from sim.schedulers.base import Scheduler

NAME = "random_scheduler:RandomScheduler"


class RandomScheduler(Scheduler):
    """Decodes or pauses, goes on with some prompts, admits whom it likes, preempts whom it likes, sleeps at times.

    Like every scheduler it decodes before it plans prompts, and goes on with prompts before it admits.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self._random = random.Random(config.prefill_wait_steps)

    def plan(self, step: Step) -> None:
        chance, state = self._random, step.state
        idle = not (state.running or state.waiting or state.swapped)
        if idle or chance.random() < 0.02:
            step.wake_at = None if idle else step.now + 0.003
            return
        if chance.random() < 0.03 and len(state.cohort.members) > 1 and state.config.victim != "none":
            step.preempt(chance.choice(list(state.cohort.members)))
        decoded = chance.random() < 0.85 and step.decode()
        if chance.random() < 0.9:
            self._prompts(step)
        if state.swapped and not step.preempted and chance.random() < 0.7 and (decoded or not state.cohort.size):
            step.swap_in(chance.choice(list(state.swapped)))
        if chance.random() < 0.8:
            self._admissions(step)
        if not (decoded or step.touched):
            self._something(step)

    def _prompts(self, step: Step) -> None:
        some = [seq for seq in step.prefilling if self._random.random() < 0.8]
        self._random.shuffle(some)
        for seq in some:
            if seq.place == "device":
                step.extend(seq, self._random.randint(1, 80))

    def _admissions(self, step: Step) -> None:
        for seq in list(step.waiting)[:6]:
            if self._random.random() < 0.6:
                step.admit(seq, most=self._random.randint(1, 100), whole=self._random.random() < 0.3)

    def _something(self, step: Step) -> None:
        """Rather than nothing."""
        if step.decode() or step.touched:
            return
        for seq in step.prefilling:
            if seq.place == "device" and step.extend(seq, 1 << 30):
                return
        for seq in [*step.state.swapped]:
            if step.swap_in(seq):
                return
        for seq in list(step.waiting):
            if step.admit(seq, whole=True):
                return
