"""Constants files: completeness, borrowing between GPUs, and the user's own."""

import pytest

from sim.cost.constants import ENGINES, list_constants, load_constants
from sim.hardware import list_gpus, load_gpu
from workloads.errors import InputError

H100 = load_gpu("h100")


def test_the_measured_pairs_are_bundled():
    assert set(list_constants()) >= {(g, e) for g in ("h100-sxm",) for e in ENGINES} | {
        ("a100-sxm", "vllm"), ("a100-sxm", "tensorrt-llm"),
    }  # fmt: skip


@pytest.mark.parametrize("gpu", list_gpus(), ids=lambda g: g.name)
@pytest.mark.parametrize("engine", ENGINES)
def test_every_gpu_has_constants_with_sources(gpu, engine):
    constants = load_constants(gpu, engine)
    assert {"bf16", "fp8", "weight-only"} <= set(constants.gemm)
    assert "bf16" in constants.decode and "bf16" in constants.prefill
    assert set(constants.all_reduce) == {"2", "4", "8"}
    groups = (constants.gemm, constants.decode, constants.prefill, constants.all_reduce, constants.moe)
    sections = [s for group in groups for s in group.values()]
    sections += [
        constants.mla,
        constants.quantize,
        constants.elementwise,
        constants.host,
        constants.front_end,
    ]
    assert all(section.source for section in sections)


def test_own_figures_are_not_marked_as_borrowed_and_others_are():
    assert "taken from" not in load_constants(H100, "vllm").gemm["bf16"].source
    assert "taken from vllm on h100-sxm for h200-sxm" in load_constants(load_gpu("h200"), "vllm").gemm["bf16"].source
    a100 = load_constants(load_gpu("a100"), "vllm")
    assert "taken from" not in a100.gemm["bf16"].source and "h100-sxm" in a100.gemm["fp8"].source
    assert set(a100.decode) == {"bf16", "mha"}  # another device's FP8 cache figures do not describe this one
    assert "a100-sxm" in load_constants(load_gpu("a40"), "sglang").gemm["bf16"].source


def test_a_users_file_is_laid_over(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('[elementwise]\nlaunch_us = 1.0\nbandwidth = 0.5\nsource = "mine"\n')
    constants = load_constants(H100, "vllm", path)
    assert constants.elementwise.source == "mine"
    assert constants.gemm == load_constants(H100, "vllm").gemm


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[gemm.bf16]\ncompute = 0.8\n", "gemm.bf16.bandwidth"),
        ('[elementwise]\nlaunch_us = "3"\nbandwidth = 1\nsource = "x"\n', "elementwise.launch_us"),
        ('[elementwise]\nlaunch_us = 3\nbandwidth = 0\nsource = "x"\n', "elementwise.bandwidth"),
        ('[elementwise]\nlaunch_us = -3\nbandwidth = 1\nsource = "x"\n', "elementwise.launch_us"),
        ('[elementwise]\nlaunch_us = 3\nbandwith = 1\nsource = "x"\n', "elementwise.bandwith"),
        ("[element]\n", "element"),
        ("gemm = 3\n", "gemm"),
        ("[gemm\n", None),
    ],
)
def test_a_wrong_file_is_named_with_its_key(tmp_path, text, key):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load_constants(H100, "vllm", path)
    assert caught.value.place.file == str(path)
    assert caught.value.place.key == key


def test_unknown_engine_and_missing_file(tmp_path):
    with pytest.raises(InputError, match="vllm"):
        load_constants(H100, "vlm")
    with pytest.raises(InputError, match="cannot read"):
        load_constants(H100, "vllm", tmp_path / "none.toml")


def test_exposed_host_time_goes_by_degree():
    host = load_constants(H100, "tensorrt-llm").host
    assert [host.exposed(tp) for tp in (1, 2, 3, 4, 8, 16)] == pytest.approx([2e-4, 5e-4, 5e-4, 6e-4, 8e-4, 8e-4])
