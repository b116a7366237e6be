"""The `cost:` section: what prices the steps of a simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationInfo

from experiments.schema.base import Section, Text, Wrong
from workloads.errors import InputError


def cost_file(name: str, folder: Path) -> Path:
    """A file that the section names: relative to the workload file's folder."""
    return folder / Path(name).expanduser()


def _existing(name: str, info: ValidationInfo) -> str:
    path = cost_file(name, (info.context or {}).get("folder", Path()))
    if not path.is_file():
        raise Wrong(f"no file at {path}", "paths start from the workload file's folder")
    return name


def _tables(names: list[str], info: ValidationInfo) -> list[str]:
    for name in names:
        _existing(name, info)
    return names


def _model(name: str) -> str:
    from sim.cost.build import COST_MODELS
    from workloads.registry import resolve

    try:
        resolve("cost model", name, COST_MODELS, "twinserve.cost_models")
    except InputError as error:
        raise Wrong(error.message, error.hint) from None
    return name


class CostSection(Section):
    """`cost`: what a step costs.

    Attributes:
        model: `analytic`, an entry point of `twinserve.cost_models`, or `module:factory` of your own.
        tables: files of measured kernel times, used where they have an operator (see `sim.cost.timings` for the columns).
        calibration: a file of constants laid over the bundled ones, as `bench calibrate` writes it.
        routing_skew: exponent of the power law by which tokens choose experts; 0 = all are equally likely.
    """

    model: Annotated[Text, AfterValidator(_model)] | None = None
    tables: Annotated[list[Text], Field(min_length=1), AfterValidator(_tables)] | None = None
    calibration: Annotated[Text, AfterValidator(_existing)] | None = None
    routing_skew: Annotated[float, Field(ge=0, le=3)] | None = None

    def build_arguments(self, folder: Path) -> dict:
        """Keyword arguments of `sim.cost.build_cost` that the section stands for."""
        given: dict = {}
        if self.model is not None:
            given["name"] = self.model
        if self.tables is not None:
            given["table"] = [cost_file(name, folder) for name in self.tables]
        if self.calibration is not None:
            given["constants"] = cost_file(self.calibration, folder)
        if self.routing_skew is not None:
            given["skew"] = self.routing_skew
        return given
