"""What a GPU hour costs: what the user says, else the list price of the GPU table, told with its source."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sim.hardware import GPUSpec, load_gpu
from workloads.errors import InputError, Place

PLACE = Place(key="--price")
MOST = 1e6  # dollars of a GPU hour: beyond it somebody slipped
EXAMPLE = "such as --price h100=2.5/h"
_PRICE = re.compile(r"\$?\s*(-?[\d_]*\.?\d+(?:[eE][-+]?\d+)?|nan|inf|-inf)\s*\$?\s*(?:/\s*(h|hr|hour))?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars of a GPU hour and where the figure is from."""

    usd_per_hour: float
    source: str


def parse_prices(texts: Iterable[str]) -> dict[str, Price]:
    """Prices by the GPU's name, from `h100=2.5/h` and the like, several with commas between.

    Raises:
        InputError: malformed, an unknown GPU, not above 0, or one GPU twice.
    """
    found: dict[str, Price] = {}
    for part in (part for text in texts for part in text.split(",")):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not name:
            raise InputError(f"expected GPU=DOLLARS/h, got {part.strip()[:60]!r}", place=PLACE, hint=EXAMPLE)
        try:
            gpu = load_gpu(name).name
        except InputError as error:
            raise error.at(PLACE) from None
        match = _PRICE.fullmatch(value)
        if match is None:
            raise InputError(f"expected dollars an hour for {name[:60]}, got {value[:60]!r}", place=PLACE, hint=EXAMPLE)
        usd = float(match[1].replace("_", ""))
        if not 0 < usd <= MOST:
            raise InputError(
                f"the price of {name[:60]} must be above 0 and at most ${MOST:,.0f} an hour, got {value[:60]}",
                place=PLACE,
            )
        if gpu in found:
            raise InputError(f"the price of {gpu} is given twice", place=PLACE, hint="remove one")
        found[gpu] = Price(usd, "yours")
    return found


def prices_for(gpus: Sequence[GPUSpec], given: dict[str, Price]) -> tuple[dict[str, Price], list[str]]:
    """Prices of these GPUs, as far as they are known, and sentences on what the user should know of them.

    Raises:
        InputError: a price for a GPU that is not looked at.
    """
    names = [gpu.name for gpu in gpus]
    for name in given:
        if name not in names:
            raise InputError(
                f"{name} has a price but is not among the GPUs", place=PLACE, hint=f"--gpus {','.join([*names, name])}"
            )
    prices, notes = {}, []
    for gpu in gpus:
        if gpu.name in given:
            prices[gpu.name] = given[gpu.name]
        elif gpu.usd_per_hour > 0:
            prices[gpu.name] = Price(gpu.usd_per_hour, f"list price: {gpu.price_source}")
    listed = [name for name in names if name in prices and name not in given]
    if listed:
        said = ", ".join(f"{name} ${prices[name].usd_per_hour:g}/h" for name in listed)
        notes.append(f"list prices, which differ severalfold between sellers: {said}; --price GPU=DOLLARS/h sets yours")
    missing = [name for name in names if name not in prices]
    if missing and len(missing) < len(names):
        notes.append(
            f"no price is known for {', '.join(missing)}: not ranked among the others; --price {missing[0]}=…/h"
        )
    if missing and len(missing) == len(names):
        notes.append("no prices are known: the fewest GPUs count as cheapest")
    return prices, notes


def dollars(amount: float) -> str:
    """An amount as people read it: $12.50, and three digits of cents and less."""
    return f"${amount:,.2f}" if amount >= 0.1 else f"${amount:.3g}"
