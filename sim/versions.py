"""Engines' versions: which one a configuration means, and how far it is from what its preset is of.

Kernels and host times are those of engines of 2025 and 2026. What an older release does otherwise is known of its policies, which
presets hold, and seldom of its kernels: the older, the less.
"""

from __future__ import annotations

import re

from sim.config import EngineConfig

Version = tuple[int, ...]

RELEASED: dict[str, tuple[tuple[Version, float], ...]] = {
    "vllm": (((0, 1), 2023.46), ((0, 2), 2023.73), ((0, 3), 2024.08), ((0, 4), 2024.25), ((0, 5), 2024.44), ((0, 6), 2024.68),
             ((0, 7), 2025.07), ((0, 8), 2025.21)),
    "sglang": (((0, 4), 2024.93), ((0, 4, 6), 2025.31), ((0, 5), 2025.68)),
}  # fmt: skip
"""Engine → (version, date of its release as a year), in order, up to the first whose kernels are priced as they are. From the
release pages of vllm-project/vllm and sgl-project/sglang."""
_OLD = 0.2
_YEAR = 0.2
"""Standard deviation of the logarithm of a step's time on the kernels of an older release: what the newest of them adds, and each
year before it. Estimates, by vLLM 0.5 and SGLang 0.4 in public reports: dense models take 1.3 to 1.5 times as long as here."""
_YOUNG = 3.5
"""By how much more experts and latent attention are unsure: they were young then, and took 2 to 4 times as long."""
_FIRST_FP4 = 0.65
"""The same of MXFP4 models on vLLM's first releases that had them: gpt-oss-20b and 120b take 1.4 times as long as here on H200
and 2.1 to 2.7 times on B200 (vLLM 0.10, github.com/sariekr/gpu_conc and vllm-project/vllm#23696), which is not explained."""
_SIXTH = (0, 6)  # the v0 engine whose host times are bundled


def numbers(text: str) -> Version:
    """`0.12.0` as (0, 12, 0), `v0.4.6.post1` as (0, 4, 6); () where there is no version in it."""
    found = re.match(r"v?(\d+(?:\.\d+)*)", text)
    return tuple(map(int, found[1].split("."))) if found else ()


def version_of(config: EngineConfig) -> Version:
    """The version that a configuration means; () for what is of none."""
    return numbers(config.version or config.preset.partition("@")[2])


def family_of(config: EngineConfig) -> str:
    """`vllm`, `sglang`, …, whose releases are meant."""
    name = config.preset.partition("@")[0]
    return "vllm" if name == "vllm-v0" else name


def behind(config: EngineConfig, experts: str = "") -> tuple[float, float]:
    """Deviations of the logarithm of a step's time, and more of experts and latent attention, that come of an engine being older
    than the kernels it is priced with; (0, 0) where it is not.

    Args:
        experts: mode of the experts' weights, if there are any.
    """
    if experts == "mxfp4" and unpacks_fp4(config):
        return _FIRST_FP4, 0.0
    releases = RELEASED.get(family_of(config), ())
    asked = version_of(config)
    if config.preset == "vllm-v0":
        asked = asked or _SIXTH
    if not releases or not asked or asked >= releases[-1][0]:
        return 0.0, 0.0
    released = max((date for version, date in releases if version <= asked), default=releases[0][1])
    near = max(date for version, date in releases[:-1])
    step = _OLD + _YEAR * (near - released)
    return step, _YOUNG * step


def unpacks_fp4(config: EngineConfig) -> bool:
    """Whether MXFP4 experts are unpacked to 16 bit on any device: so in vLLM up to 0.10, where FlashInfer's kernels for Blackwell
    were behind variables of the environment until vllm-project/vllm#23008."""
    return family_of(config) == "vllm" and () < version_of(config) < (0, 11)


_FLASH_3 = {"vllm": (0, 7), "sglang": (0, 4, 6)}


def before_flash_3(config: EngineConfig) -> bool:
    """Whether attention on Hopper is not yet FlashAttention 3's: in vLLM before 0.7 (vllm-project/vllm#12093), in SGLang before
    0.4.6 (sgl-project/sglang#5064), whose FlashInfer ran FlashAttention 2's kernels there."""
    asked = version_of(config) or (_SIXTH if config.preset == "vllm-v0" else ())
    return () < asked < _FLASH_3.get(family_of(config), ())
