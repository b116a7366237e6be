"""Few combinations of many settings in which every two values meet (pairwise testing)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

Case = dict[str, str]


def pairs_of(case: Mapping[str, str]) -> set[frozenset]:
    """Every two settings of a case."""
    return {frozenset(pair) for pair in combinations(case.items(), 2)}


def all_pairs(
    factors: Mapping[str, Sequence[str]], senseless: Callable[[Case], bool] = lambda case: False
) -> list[Case]:
    """Cases that contain every pair of values of two factors, but for senseless ones.

    Args:
        senseless: tells of a case, which may be incomplete, that it cannot be; two values at most decide that.
    """
    names = list(factors)
    left = {
        frozenset(((a, x), (b, y)))
        for a, b in combinations(names, 2)
        for x in factors[a]
        for y in factors[b]
        if not senseless({a: x, b: y})
    }
    cases = []
    while left:
        case: Case = dict(min(left, key=sorted))
        for name in names:
            if name not in case:
                fitting = [value for value in factors[name] if not senseless(case | {name: value})]
                case[name] = max(fitting, key=lambda value: len(left & pairs_of(case | {name: value})))
        left -= pairs_of(case)
        cases.append({name: case[name] for name in names})
    return cases
