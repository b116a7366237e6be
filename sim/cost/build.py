"""Making a cost model: by name, entry point or dotted path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from sim.config import EngineConfig
from sim.cost.analytic import AnalyticCost, FrontEnd, Host
from sim.cost.assemble import Assembler
from sim.cost.base import CostModel
from sim.cost.carried import in_service
from sim.cost.constants import ENGINES, Constants, load_constants
from sim.cost.graphs import graph_sizes, verify_sizes
from sim.cost.host import host_section
from sim.cost.tables import MeasuredTable
from sim.hardware.gpu import GPUSpec
from sim.models.spec import ModelSpec
from workloads.errors import InputError, Place
from workloads.registry import resolve as find

CostFactory = Callable[..., CostModel]
USUAL_SKEW = 0.65
"""Exponent by which tokens choose experts where nothing is said. Steps of 16 to 128 sequences (gpt-oss-120b on H100, H200 and
B200, DeepSeek-R1 on B200, three engines) are quicker than equally likely experts would have them: fewer are touched.
NVIDIA's aiconfigurator takes 1.01 to 1.2."""


def check_engine(config: EngineConfig) -> str:
    """The engine whose kernels and graphs are meant: `host`, or the preset's where host time is switched off.

    Raises:
        InputError: no constants under that name.
    """
    if config.host in ENGINES:
        return config.host
    if config.host != "none":
        raise InputError(
            f"no host-time constants for {config.host!r}", hint=f"host may be {', '.join(ENGINES)} or none"
        )
    preset = config.preset.split("@", 1)[0]
    return next((engine for engine in ENGINES if preset.startswith(engine)), "vllm")


def analytic_cost(
    model: ModelSpec,
    gpu: GPUSpec,
    config: EngineConfig,
    constants: Constants | str | Path | None = None,
    table: MeasuredTable | str | Path | Sequence[str | Path] | None = None,
    skew: float | None = None,
) -> AnalyticCost:
    """The analytic cost model, with measured tables in the place of its forms where a table has the shape.

    Args:
        constants: a TOML file laid over the bundled constants, or constants already loaded.
        table: files of kernel timings (see `sim.cost.tables`), or a table already read.
        skew: exponent of the power law by which tokens choose experts; 0 = evenly, None = `USUAL_SKEW`.

    Raises:
        InputError: shapes that do not divide, unknown names, malformed files.
    """
    engine = check_engine(config)
    if not isinstance(constants, Constants):
        constants = load_constants(gpu, engine, constants)
    constants = in_service(constants, gpu)
    if table is not None and not isinstance(table, MeasuredTable):
        table = MeasuredTable.read(table, gpu, engine)
    skew = USUAL_SKEW if skew is None else skew
    operators = Assembler(model, gpu, config, constants, table, skew).build()
    if config.host == "none":
        host, graphs = Host.none(), []
    else:
        host = Host.of(
            getattr(constants, host_section(config, engine, constants)),
            config.parallel.tensor,
            overlapped=config.depth > 1,
        )
        graphs = graph_sizes(engine, gpu, config)
    front_end = FrontEnd.of(getattr(constants, front_end_section(config, engine, constants)))
    cost = AnalyticCost(
        operators, host, front_end, graphs, stages=config.parallel.pipeline, piecewise=engine == "vllm",
        padding=config.cuda_graph_padding or engine == "vllm",
    )  # fmt: skip
    if config.speculation.active:
        from sim.cost.drafting import drafting

        sizes = verify_sizes(engine, gpu, config) if graphs else []
        cost.drafting = drafting(model, gpu, config, constants, table, skew, cost, sizes)
    return cost


def front_end_section(config: EngineConfig, engine: str, constants: Constants) -> str:
    """The section of constants with the front end, as `host_section`."""
    old = host_section(config, engine, constants) == "host_v0" and constants.front_end_v0 is not None
    return "front_end_v0" if old else "front_end"


COST_MODELS: dict[str, CostFactory] = {"analytic": analytic_cost}


def build_cost(
    model: ModelSpec,
    gpu: GPUSpec,
    config: EngineConfig,
    constants: Constants | str | Path | None = None,
    *,
    name: str = "analytic",
    table: MeasuredTable | str | Path | Sequence[str | Path] | None = None,
    skew: float | None = None,
) -> CostModel:
    """The cost model called `name` for this model, GPU and configuration.

    Args:
        constants, table, skew: for the analytic model: the user's own constants and kernel timings, and the skew of the
            routing to experts.
        name: `analytic`, an entry point of `twinserve.cost_models`, or `module:factory`; a factory is called with
            (model, gpu, config).

    Raises:
        InputError: no such cost model, or the factory refuses.
    """
    if name in COST_MODELS:
        return COST_MODELS[name](model, gpu, config, constants, table, skew)
    if constants is not None or table is not None or skew is not None:
        raise InputError(
            f"tables, calibration and routing skew belong to the analytic cost model, not to {name!r}",
            place=Place(key="cost.model"), hint="remove them, or the model",
        )  # fmt: skip
    return find("cost model", name, COST_MODELS, "twinserve.cost_models")(model, gpu, config)
