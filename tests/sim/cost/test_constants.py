"""Constants files: completeness, borrowing between GPUs, and the user's own."""

from dataclasses import replace

import pytest

from sim.config import EngineConfig
from sim.cost.build import build_cost
from sim.cost.carried import carried
from sim.cost.constants import ENGINES, list_constants, load_constants, own_sections, read_sections
from sim.cost.write import write_constants
from sim.hardware import list_gpus, load_gpu
from sim.models import load_model
from workloads.errors import InputError

H100 = load_gpu("h100")


def test_the_measured_pairs_are_bundled():
    assert set(list_constants()) >= {(g, e) for g in ("h100-sxm",) for e in ENGINES} | {
        ("a100-sxm", "vllm"), ("a100-sxm", "tensorrt-llm"),
    }  # fmt: skip


@pytest.mark.parametrize(("gpu", "engine"), list_constants())
def test_a_file_written_again_has_all_of_its_sections(gpu, engine, tmp_path):
    sections = own_sections(gpu, engine)
    write_constants(tmp_path / "again.toml", gpu, engine, sections)
    assert read_sections(tmp_path / "again.toml") == sections


def test_limits_of_messages_are_those_of_the_architecture():
    """vLLM's symmetric memory: 64 MiB between eight H100 and H200, 128 MiB between eight B200; summed by the switch."""
    at = {
        gpu: load_constants(load_gpu(gpu), "vllm").all_reduce["8"] for gpu in ("h100", "h200", "b200", "a100", "a800")
    }
    assert at["h100"].ring_mb == at["h200"].ring_mb == pytest.approx(64 * 1.048576, rel=0.01)
    assert at["b200"].ring_mb == pytest.approx(128 * 1.048576, rel=0.01)
    assert at["b200"].switch == 1 and at["b200"].ring_switch > 0
    assert at["a100"].ring_switch == at["a800"].switch == 0
    alone = load_constants(load_gpu("rtx-pro-6000"), "vllm").all_reduce["2"]
    assert (alone.one_shot_kb, alone.switch) == (0, 0) and alone.ring_mb < 8.388608


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


def test_the_prologue_of_a_tile_takes_a_time_and_not_a_length():
    """On another GPU it is worth the more of the inner dimension, the faster a multiprocessor's tensor cores."""
    for name, kind in (("h200", "bf16"), ("b200", "bf16"), ("l40s", "fp8-block")):
        ours = load_constants(H100, "vllm").gemm[kind]
        gpu = load_gpu(name)
        theirs = load_constants(gpu, "vllm").gemm[kind]
        reached = carried(gpu)
        a_multiprocessor = (gpu.bf16 / gpu.sms) / (H100.bf16 / H100.sms) * (reached.compute if reached else 1.0)
        assert theirs.extra_k == pytest.approx(ours.extra_k * a_multiprocessor)
        assert theirs.faster == pytest.approx(a_multiprocessor)


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
        (
            '[all_reduce.2]\none_shot_us = 3\none_shot = 0.5\ntwo_shot_us = 9\ntwo_shot = 0.7\nsource = "x"\nring_mb = 8\n',
            "all_reduce.2.ring",
        ),
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
    host = replace(load_constants(H100, "tensorrt-llm").host, exposed_ms={"1": 0.2, "2": 0.5, "4": 0.6, "8": 0.8})
    assert [host.exposed(tp) for tp in (1, 2, 3, 4, 8, 16)] == pytest.approx([2e-4, 5e-4, 5e-4, 6e-4, 8e-4, 8e-4])


def test_ranks_wait_for_each_other_by_degree():
    host = load_constants(H100, "vllm").host
    assert [host.wait(tp) for tp in (2, 3, 4, 8, 16)] == pytest.approx([2e-6, 2e-6, 3.5e-6, 6e-6, 6e-6])
    assert replace(host, wait_us={}).wait(8) == 0.0


def test_host_and_front_end_are_the_engines_before_they_are_the_cards():
    a100, h100 = load_gpu("a100-sxm"), load_gpu("h100-sxm")
    assert load_constants(a100, "tensorrt-llm").host == replace(
        load_constants(h100, "tensorrt-llm").host, source=load_constants(a100, "tensorrt-llm").host.source
    )
    assert load_constants(a100, "sglang").host.kernel_launch_us > load_constants(h100, "sglang").host.kernel_launch_us
    assert load_constants(a100, "vllm").host.kernel_launch_us > load_constants(h100, "vllm").host.kernel_launch_us


def test_a_card_takes_what_was_measured_of_its_architecture():
    """Experts were timed on B200 and L40S; everything else of their families is H100's, with shorter launches."""
    gb200 = load_constants(load_gpu("gb200"), "vllm")
    assert "on b200-sxm for gb200" in gb200.moe["bf16"].source
    assert gb200.moe["bf16"].launch_us == load_constants(load_gpu("b200-sxm"), "vllm").moe["bf16"].launch_us
    assert gb200.gemm["bf16"].launch_us == pytest.approx(0.8 * load_constants(H100, "vllm").gemm["bf16"].launch_us)
    assert "on l40s for l4" in load_constants(load_gpu("l4"), "vllm").moe["fp8"].source
    workstation = load_constants(
        load_gpu("rtx-pro-6000"), "vllm"
    )  # multiprocessors and memory like Ada's, not like B200's
    assert "on l40s for rtx-pro-6000" in workstation.moe["bf16"].source


def test_blocks_of_fp8_have_kernels_of_their_own_on_hopper():
    for engine in ("vllm", "sglang"):
        assert "DeepGEMM on H800" in load_constants(H100, engine).gemm["fp8-block"].source
    own = load_constants(H100, "tensorrt-llm").gemm
    assert own["fp8-block"].compute < own["fp8"].compute and "taken over" in own["fp8-block"].source


def test_the_c_runtime_streams_without_python():
    """TensorRT-LLM's C++ runtime: launches and streams cost it little. That of 1.2 is Python's, overlapped or not."""
    old, serial, new = (
        build_cost(load_model("Llama-3-8B"), H100, EngineConfig(preset=preset, host="tensorrt-llm", depth=depth))
        for preset, depth in (("tensorrt-llm@0.5", 1), ("tensorrt-llm@1.2", 1), ("tensorrt-llm@1.2", 2))
    )
    assert old.front_end.output_work == 0.0 < serial.front_end.output_work == new.front_end.output_work
    assert old.host.launch < new.host.launch / 5 and serial.host.launch == new.host.launch
    assert new.host.overlapped and not serial.host.overlapped
