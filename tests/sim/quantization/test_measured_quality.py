"""The measured quality that comes with the package: what it must say, whatever the figures are."""

from sim.quantization import WEIGHT_MODES
from sim.quantization.quality import measured_file, measured_quality


def test_it_is_of_known_modes_and_says_of_what() -> None:
    found = measured_quality()
    assert measured_file().is_file() and set(found) <= set(WEIGHT_MODES) and len(found) >= 6
    for name, quality in found.items():
        assert quality.mode == name and "SmolLM2" in quality.model and "Python" in quality.text
        assert 0 < quality.divergence_low <= quality.divergence <= quality.divergence_high <= quality.divergence_p99 * 2
        assert 0 < quality.agreement < 1 and quality.perplexity_ratio > 0.9


def test_eight_bits_cost_far_less_than_four() -> None:
    found = measured_quality()
    eight = [each.divergence_high for name, each in found.items() if WEIGHT_MODES[name].bits == 8]
    four = [each.divergence_low for name, each in found.items() if WEIGHT_MODES[name].bits == 4]
    assert eight and four and 2 * max(eight) < min(four)
    assert found["int8-w8a16"].divergence < found["int8-w8a8"].divergence, "activations cost too"
