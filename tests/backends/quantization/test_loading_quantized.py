"""Quantized checkpoints as they are: recognised, loaded packed, run; and what is said when they are not what they say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", minversion="2.0")
pytest.importorskip("safetensors.torch")

from patterned import calibration, edit_config, logits, prompt, rewrite  # noqa: E402

from backends.quantization.base import QuantizedLinear  # noqa: E402
from backends.quantization.make.checkpoint import quantize_checkpoint  # noqa: E402
from backends.quantization.make.recipes import CALIBRATED, MODES, Recipe  # noqa: E402
from backends.quantization.scheme import read_scheme  # noqa: E402
from backends.weights.load import load_model  # noqa: E402
from backends.weights.tiny import make_tiny  # noqa: E402
from sim.models.hf_config import read_config  # noqa: E402
from sim.quantization.checkpoint import Section  # noqa: E402
from workloads.errors import InputError  # noqa: E402

UNCALIBRATED = ("int8", "int8-w8a16", "rtn-int4", "fp8-dynamic", "fp8-channel", "fp8-block", "nvfp4-a16", "mxfp4")


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Path:
    return make_tiny("tiny-qwen2", tmp_path_factory.mktemp("plain") / "model", seed=3)


@pytest.fixture
def packed(plain, tmp_path):
    """Makes a quantized copy of the plain model."""

    def make(mode: str, **recipe) -> Path:
        folder = tmp_path / mode
        quantize_checkpoint(plain, folder, Recipe(mode, **recipe), calibration())
        return folder

    return make


def divergence(a: torch.Tensor, b: torch.Tensor) -> float:
    p, q = a.log_softmax(-1), b.log_softmax(-1)
    return float((p.exp() * (p - q)).sum(-1).mean())


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_is_made_recognised_loaded_and_close_to_the_model(mode, plain, packed) -> None:
    folder = packed(mode)
    model = load_model(folder)
    assert isinstance(model.parameters.layers[0].qkv, QuantizedLinear)
    assert model.architecture.spec.native_quantization == read_config(folder / "config.json").native_quantization
    error = divergence(logits(load_model(plain), prompt()), logits(model, prompt()))
    bits = Recipe(mode).bits
    assert 0 < error < {3: 0.6, 4: 0.3, 8: 0.03}[bits]


@pytest.mark.parametrize("kind", ["tiny-mixtral", "tiny-qwen3-moe"])
@pytest.mark.parametrize("mode", ["int8-w8a16", "fp8-channel", "rtn-int4"])
def test_experts_are_quantized_one_by_one_and_routers_are_not(kind, mode, tmp_path) -> None:
    source = make_tiny(kind, tmp_path / "plain")
    made = quantize_checkpoint(source, tmp_path / "packed", Recipe(mode, 16 if mode == "rtn-int4" else 0))
    model, whole = load_model(tmp_path / "packed"), load_model(source)
    assert isinstance(model.parameters.layers[0].mlp.down[0], QuantizedLinear)
    assert torch.equal(model.parameters.layers[0].mlp.router.weight, whole.parameters.layers[0].mlp.router.weight)
    assert divergence(logits(whole, prompt()), logits(model, prompt())) < 0.15
    assert made.layers == 2 * (4 + 3 * model.architecture.spec.experts)


SHAPES_OF_32 = ("gptq-int3", "squeezellm-3bit", "squeezellm-4bit")
"""Modes whose layouts the 48 columns of tiny-qwen3-moe's experts do not fit."""


@pytest.mark.parametrize(("kind", "mode"), [
    *(("tiny-mixtral", mode) for mode in CALIBRATED),
    *(("tiny-qwen3-moe", mode) for mode in CALIBRATED if mode not in SHAPES_OF_32),
])  # fmt: skip
def test_experts_learn_from_the_tokens_that_visit_them(kind, mode, tmp_path) -> None:
    source = make_tiny(kind, tmp_path / "plain")
    recipe = Recipe(mode, 16 if mode.startswith(("gptq", "awq")) else 0)
    made = quantize_checkpoint(source, tmp_path / "packed", recipe, calibration())
    whole, model = load_model(source), load_model(tmp_path / "packed")
    assert isinstance(model.parameters.layers[1].mlp.down[0], QuantizedLinear) and not made.notes
    error = divergence(logits(whole, prompt()), logits(model, prompt()))
    assert 0 < error < {3: 0.6, 4: 0.3, 8: 0.03}[recipe.bits]
    if made.gain is not None:
        assert made.worst <= 1.001 and made.gain < 0.99


@pytest.mark.parametrize("mode", CALIBRATED)
def test_experts_whom_no_token_visits_still_work(mode, tmp_path) -> None:
    """One sequence of one token visits two of four experts of a layer; the text that is scored visits all."""
    source = make_tiny("tiny-mixtral", tmp_path / "plain")
    ids = calibration(1, 2) if mode.startswith("squeezellm") else calibration(1, 1)
    recipe = Recipe(mode, 16 if mode.startswith(("gptq", "awq")) else 0)
    made = quantize_checkpoint(source, tmp_path / "packed", recipe, ids)
    assert "saw no token" in made.notes[0] and int(made.notes[0].split()[0]) in range(1, 5)
    error = divergence(logits(load_model(source), prompt()), logits(load_model(tmp_path / "packed"), prompt()))
    assert error < {3: 3.0, 4: 0.6, 8: 0.2}[recipe.bits]


def test_gptq_with_act_order_without_symmetry_and_in_version_2(packed) -> None:
    folder = packed("gptq-int4", symmetric=False, act_order=True)
    before = logits(load_model(folder), prompt())
    assert load_model(folder).parameters.layers[0].mlp.down.parts[0].order is not None

    def one_more(tensors) -> None:
        for name, tensor in tensors.items():
            if name.endswith("qzeros"):  # what version 2 stores: each nibble one more
                codes = torch.stack([(tensor >> (4 * i)) & 15 for i in range(8)], -1)
                wide = ((codes + 1) & 15).to(torch.int64)
                words = sum(wide[..., i] << (4 * i) for i in range(8))
                tensors[name] = (words - ((words >> 31) << 32)).to(torch.int32)

    rewrite(folder, one_more)
    section = json.loads((folder / "config.json").read_text())["quantization_config"]
    edit_config(folder, quantization_config=section | {"checkpoint_format": "gptq_v2"})
    assert torch.equal(logits(load_model(folder), prompt()), before)


def test_a_files_own_tools_may_say_it_beside_config_json(packed) -> None:
    for mode, name, other in (
        ("gptq-int4", "quantize_config.json", {"bits": 4, "group_size": 32, "desc_act": False, "sym": True}),
        ("awq-int4", "quant_config.json", {"zero_point": True, "q_group_size": 32, "w_bit": 4, "version": "GEMM"}),
    ):
        folder = packed(mode)
        before = logits(load_model(folder), prompt())
        edit_config(folder, quantization_config=None)
        with pytest.raises(InputError, match="no place"):  # now nothing says how it is packed
            load_model(folder)
        (folder / name).write_text(json.dumps(other))
        assert torch.equal(logits(load_model(folder), prompt()), before)


def test_modelopt_says_it_in_a_file_of_its_own(packed) -> None:
    folder = packed("nvfp4")
    before = logits(load_model(folder), prompt())

    def rename(tensors) -> None:
        for name in list(tensors):
            module, _, suffix = name.rpartition(".")
            if suffix == "weight_packed":
                tensors[f"{module}.weight"] = tensors.pop(name)
            elif suffix in ("weight_global_scale", "input_global_scale"):
                new = {"weight_global_scale": "weight_scale_2", "input_global_scale": "input_scale"}[suffix]
                tensors[f"{module}.{new}"] = (1 / tensors.pop(name)).reshape(())

    rewrite(folder, rename)
    edit_config(folder, quantization_config=None)
    algorithm = {"quant_algo": "NVFP4", "group_size": 16, "kv_cache_quant_algo": None, "exclude_modules": ["lm_head"]}
    (folder / "hf_quant_config.json").write_text(
        json.dumps({"producer": {"name": "modelopt"}, "quantization": algorithm})
    )
    model = load_model(folder)
    assert model.architecture.spec.native_quantization == "nvfp4"
    assert torch.allclose(logits(model, prompt()), before, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("static", [True, False])
def test_fp8_as_autofp8_and_fbgemm_write_it(packed, static) -> None:
    """The same tensors under another section of config.json are the same model."""
    folder = packed("fp8" if static else "fp8-channel")
    before = logits(load_model(folder), prompt())
    other = (
        {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}
        if static
        else {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": ["lm_head"]}
    )
    edit_config(folder, quantization_config=other)
    assert torch.equal(logits(load_model(folder), prompt()), before)


def test_layers_that_are_left_out_run_as_they_are(plain, packed) -> None:
    from safetensors.torch import load_file

    folder, name = packed("fp8-channel"), "model.layers.1.mlp.up_proj"
    whole = load_file(plain / "model.safetensors")

    def put_back(tensors) -> None:
        tensors[f"{name}.weight"] = whole[f"{name}.weight"]
        del tensors[f"{name}.weight_scale"]

    rewrite(folder, put_back)
    section = json.loads((folder / "config.json").read_text())["quantization_config"]
    edit_config(folder, quantization_config=section | {"ignore": ["lm_head", "re:.*layers.1.mlp.up_proj"]})
    model = load_model(folder)
    assert len(model.parameters.layers[1].mlp.gate_up.parts) == 2
    assert divergence(logits(load_model(plain), prompt()), logits(model, prompt())) < 0.03


@pytest.mark.parametrize(
    "style", ["self_attn.{}_scale", "self_attn.{0}_proj.{0}_scale", "self_attn.{}_proj.output_scale"]
)
def test_scales_of_keys_and_values_are_read_wherever_tools_keep_them(style, packed) -> None:
    folder = packed("fp8-channel")

    def add(tensors) -> None:
        for part, value in (("k", 0.25), ("v", 0.5)):
            tensors[f"model.layers.1.{style.format(part)}"] = torch.tensor([value])

    rewrite(folder, add)
    layers = load_model(folder).parameters.layers
    assert layers[0].kv_scales == (1.0, 1.0) and layers[1].kv_scales == (0.25, 0.5)
    rewrite(folder, lambda tensors: tensors.update({f"model.layers.1.{style.format('k')}": torch.tensor([-1.0])}))
    assert "is not one number above 0" in complaint(folder)


SECTIONS = [
    ({"quant_method": "bitsandbytes"}, "quant_method", "bitsandbytes"),
    ({"quant_method": "aqlm"}, "quant_method", "aqlm"),
    ({"quant_method": "gptq", "bits": 2}, "bits", "2"),
    ({"quant_method": "gptq", "bits": "4"}, "bits", "'4'"),
    ({"quant_method": "gptq", "group_size": 0}, "group_size", "above 0"),
    ({"quant_method": "gptq", "dynamic": {"-:.*down": {}}}, "dynamic", "mixed precision"),
    ({"quant_method": "gptq", "checkpoint_format": "marlin"}, "checkpoint_format", "marlin"),
    ({"quant_method": "awq", "version": "gemv"}, "version", "gemv"),
    ({"quant_method": "awq", "bits": 8}, "bits", "8"),
    ({"quant_method": "squeezellm", "wbits": 2}, "wbits", "2"),
    ({"quant_method": "fp8", "activation_scheme": "lazy"}, "activation_scheme", "lazy"),
    ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size", "two whole numbers"),
    ({"quant_method": "fp8", "fmt": "e5m2"}, "fmt", "e5m2"),
    ({"quant_method": "fbgemm_fp8", "activation_scale_ub": -1}, "activation_scale_ub", "above 0"),
    ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "quant_algo", "W4A8_AWQ"),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": "lm_head"}, "exclude_modules", "list of names"),
    ({"quant_method": "compressed-tensors", "config_groups": {}}, "config_groups", "object of groups"),
    ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": None}}, "format": "dense"}, "config_groups",
     "weights"),
]  # fmt: skip


@pytest.mark.parametrize(("section", "key", "words"), SECTIONS)
def test_what_cannot_be_run_is_refused_by_name(section, key, words) -> None:
    with pytest.raises(InputError) as caught:
        read_scheme(Section(section, "config.json", "quantization_config"))
    assert key in str(caught.value.place) and words in str(caught.value)


def group(kind: str, bits: int, form: str, strategy: str = "channel", inputs: dict | None = None, **more) -> dict:
    weights = {"num_bits": bits, "type": kind, "strategy": strategy, "symmetric": True} | more
    return {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "format": form}


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ([group("int", 4, "pack-quantized"), group("int", 8, "pack-quantized")], "different formats (mixed)"),
        ([group("int", 4, "marlin-24")], "'marlin-24' cannot be run"),
        ([group("int", 4, "pack-quantized", inputs={"num_bits": 8, "type": "int"})], "W4A8"),
        ([group("int", 5, "pack-quantized")], "5-bit int"),
        ([group("float", 4, "nvfp4-pack-quantized", "tensor_group", group_size=64)], "NVFP4 has 16"),
        ([group("int", 8, "int-quantized", symmetric=False)], "zero points"),
        ([group("float", 8, "float-quantized", "block", block_structure="128x128")], "two whole numbers"),
        ([group("float", 8, "float-quantized", inputs={"num_bits": 8, "type": "int"})], "8-bit int activations"),
        ([group("int", 4, "pack-quantized", "group")], "group_size"),
    ],
)
def test_groups_of_compressed_tensors_that_cannot_be_run(groups, words) -> None:
    section = {"quant_method": "compressed-tensors", "config_groups": {f"group_{i}": g for i, g in enumerate(groups)}}
    with pytest.raises(InputError) as caught:
        read_scheme(Section(section, "config.json", "quantization_config"))
    assert words in str(caught.value)


def complaint(folder: Path, **options) -> str:
    with pytest.raises(InputError) as caught:
        load_model(folder, **options)
    return str(caught.value)


def test_two_files_that_disagree_are_refused(packed) -> None:
    folder = packed("gptq-int4")
    (folder / "quant_config.json").write_text('{"w_bit": 4, "q_group_size": 128}')
    assert "config.json says gptq and quant_config.json says awq" in complaint(folder)
    (folder / "quant_config.json").write_text('{"w_bit": ')
    assert "is not JSON" in complaint(folder)
    (folder / "quant_config.json").write_text("[1]")
    assert "expected a JSON object" in complaint(folder)
    (folder / "quant_config.json").write_text("{}")
    assert "does not say by which method" in complaint(folder)
    (folder / "quant_config.json").write_text('{"w_bit": ' + "[" * 100_000)
    assert "nested too deeply" in complaint(folder)
    (folder / "quant_config.json").write_text('{"w_bit": ' + "1" * 10_000 + "}")
    assert "too many digits" in complaint(folder)


def test_a_byte_order_mark_does_no_harm(packed) -> None:
    from backends.model.architecture import read_architecture

    folder = packed("gptq-int4")
    plain = read_architecture(folder)
    for name in ("config.json", "generation_config.json"):
        file = folder / name
        file.write_text(file.read_text("utf-8") if file.is_file() else "{}", "utf-8-sig")
    assert read_architecture(folder) == plain


def test_checkpoints_that_are_not_what_they_say_are_refused_with_the_tensor(packed) -> None:
    folder = packed("gptq-int4")
    rewrite(folder, lambda tensors: tensors.pop("model.layers.1.mlp.down_proj.scales"))
    assert "model.layers.1.mlp.down_proj.scales is missing" in complaint(folder)
    folder = packed("awq-int4")
    rewrite(folder, lambda tensors: tensors.update({"model.layers.0.mlp.down_proj.extra": torch.ones(3)}))
    assert "mlp.down_proj.extra has no place in a layer of awq" in complaint(folder)
    rewrite(folder, lambda tensors: tensors.pop("model.layers.0.mlp.down_proj.extra"))
    rewrite(folder, lambda tensors: tensors.update({"<script>": torch.ones(3)}))
    assert "tensor <script> has no place" in complaint(folder)
    folder = packed("int8")
    edit_config(folder, hidden_size=120)
    assert "config.json and the weights must come from the same checkpoint" in complaint(folder)


def test_what_is_asked_for_must_be_what_the_checkpoint_is_in(plain, packed) -> None:
    folder = packed("gptq-int4")
    assert load_model(folder, quantization="gptq").architecture.quantization is not None
    assert "the checkpoint is in gptq-int4, and awq-int4 is asked for" in complaint(folder, quantization="awq-int4")
    assert "bench quantize MODEL --mode fp8" in complaint(plain, quantization="fp8")
    assert "unknown quantization 'q4'" in complaint(plain, quantization="q4")
    load_model(plain, quantization="auto")


@pytest.mark.parametrize("mode", ["int8-w8a8", "gptq-int4", "fp8-block", "nvfp4", "squeezellm-3bit", "mxfp4"])
def test_made_up_weights_can_be_in_any_mode(mode, plain) -> None:
    model, again = (load_model(plain, load="dummy", quantization=mode, seed=4) for _ in range(2))
    found = logits(model, prompt())
    assert torch.isfinite(found).all() and torch.equal(found, logits(again, prompt()))
    assert all(isinstance(layer.mlp.down, QuantizedLinear) for layer in model.parameters.layers)


def test_made_up_experts_are_quantized_where_the_mode_is_of_experts_alone(tmp_path) -> None:
    model = load_model(make_tiny("tiny-mixtral", tmp_path / "moe"), load="dummy", quantization="mxfp4")
    layer = model.parameters.layers[1]
    assert isinstance(layer.mlp.down[3], QuantizedLinear) and not isinstance(layer.qkv, QuantizedLinear)
    assert torch.isfinite(logits(model, prompt())).all()


MEASURE = """
import sys
from pathlib import Path
from backends.weights.load import load_model
from backends.weights.names import places

def peak():  # of this program alone: that of getrusage starts with what the parent had
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))

load_model(Path(sys.argv[1]))  # everything is imported, allocators are warm
before = peak()
model = load_model(Path(sys.argv[2]))
print(peak() - before, sum(t.nbytes for t in places(model.architecture, model.parameters).values()))
"""


@pytest.mark.slow
def test_no_plain_copy_of_a_packed_model_is_ever_in_memory(tmp_path) -> None:
    """A model of 50 M weights in linear layers: 25 MB packed, 100 MB in 16 bits. The peak stays far below the latter."""
    source = make_tiny("tiny-llama", tmp_path / "tiny")
    small = tmp_path / "small"
    quantize_checkpoint(source, small, Recipe("rtn-int4", 32))
    edit_config(
        source,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=16,
        num_attention_heads=8,
        torch_dtype="float16",
    )
    from safetensors.torch import save_file

    from backends.model.architecture import read_architecture
    from backends.model.parameters import allocate
    from backends.weights.dummy import fill_randomly
    from backends.weights.names import places

    architecture = read_architecture(source)
    parameters = allocate(architecture, torch.float16, "cpu")
    fill_randomly(architecture, parameters, 0)
    tensors = {name: tensor.clone() for name, tensor in places(architecture, parameters).items()}
    save_file(tensors, source / "model.safetensors")
    large = tmp_path / "large"
    quantize_checkpoint(source, large, Recipe("rtn-int4", 128))
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(small), str(large)], capture_output=True, text=True, check=True,
        cwd=Path(__file__).parents[3],
    )  # fmt: skip
    grown, kept = map(int, done.stdout.split())
    plain = 2 * sum(each.layers * each.n * each.k for each in architecture.spec.linears() if each.kind != "head")
    file = (large / "model.safetensors").stat().st_size  # its pages count as ours while they are mapped
    assert kept / 2 < grown < kept + file + plain / 8, f"{grown / 1e6:.0f} MB for {kept / 1e6:.0f} MB kept"
    assert kept < plain / 3
