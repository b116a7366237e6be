"""Time that is not the device's: planning and launching steps, and the front end before and after the engine.

Planning a step costs `schedule + row × sequences`. An engine that plans ahead hides it behind the device and pays only
what sticks out; one that does not pays all of it. A part (`exposed`) is never hidden.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sim.config import EngineConfig
from sim.cost.constants import Constants, FrontEndConstants, HostConstants


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """Time outside the engine loop: HTTP, tokenising and detokenising. It delays, but does not occupy, the engine.

    Two parts of it do one thing after another, so that bursts queue for them: preparing requests (`request_work` and
    `input_token` a prompt token), and handing out tokens (`output_work` each).

    Attributes:
        base: seconds that pass for every request whatever the load. request_work: seconds that it occupies the server for.
        input_token: seconds for every prompt token; they occupy the tokeniser.
        token_seconds: from the end of a step to the token at the client, without a queue.
        output_work: seconds for which one streamed token occupies the server.
        source: where the figures are from. error: median error of TTFT that a served run left, 0 where there was none.
    """

    base: float
    input_token: float
    token_seconds: float
    source: str
    error: float = 0.0
    request_work: float = 0.0
    output_work: float = 0.0

    @classmethod
    def of(cls, constants: FrontEndConstants) -> FrontEnd:
        """From a constants section."""
        return cls(
            constants.request_ms * 1e-3,
            constants.input_token_us * 1e-6,
            constants.output_token_ms * 1e-3,
            constants.source,
            constants.error,
            constants.request_work_ms * 1e-3,
            constants.output_work_us * 1e-6,
        )

    def scaled(self, factor: float) -> FrontEnd:
        """Everything takes `factor` times as long."""
        times = ("base", "input_token", "token_seconds", "request_work", "output_work")
        return replace(self, **{name: getattr(self, name) * factor for name in times})

    def request_seconds(self, input_tokens: int) -> float:
        """From the request's arrival to its place in the engine's queue, if nothing else is in the way."""
        return self.base + self.request_work + self.input_token * input_tokens


@dataclass(frozen=True, slots=True)
class Host:
    """CPU time of a step, seconds.

    Attributes:
        exposed, exposed_row: paid by every step, and for each of its sequences.
        schedule, row: planning, of a step and of each of its sequences.
        launch: of one kernel outside a CUDA graph. overlapped: planning hides behind the device.
        source: where the figures are from. error: median error of steps that a served run left, 0 where there was none.
    """

    exposed: float
    schedule: float
    row: float
    launch: float
    overlapped: bool
    source: str
    exposed_row: float = 0.0
    error: float = 0.0

    @classmethod
    def of(cls, constants: HostConstants, tp: int, overlapped: bool) -> Host:
        """From a constants section."""
        row = constants.row_us + (0.0 if overlapped else constants.serial_row_us)
        return cls(
            constants.exposed(tp), constants.schedule_ms * 1e-3, row * 1e-6,
            constants.kernel_launch_us * 1e-6, overlapped, constants.source, constants.exposed_row_us * 1e-6,
            constants.error,
        )  # fmt: skip

    @classmethod
    def none(cls) -> Host:
        """A host that takes no time."""
        return cls(0.0, 0.0, 0.0, 0.0, True, "host time switched off")

    def visible(self, gpu: float, sequences: int) -> float:
        """What the host adds to a step in which the device takes `gpu` seconds."""
        work = self.schedule + self.row * sequences
        if self.overlapped:
            work = work - gpu if work > gpu else 0.0
        return self.exposed + self.exposed_row * sequences + work


def host_section(config: EngineConfig, engine: str, constants: Constants) -> str:
    """The section of constants with the host's time: older generations have one of their own.

    TensorRT-LLM's is its C++ runtime.
    """
    old = config.preset.startswith("vllm-v0") if engine == "vllm" else engine == "tensorrt-llm" and config.built_ahead
    return "host_v0" if old and constants.host_v0 is not None else "host"
