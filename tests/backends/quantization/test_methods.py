"""GPTQ, AWQ and SqueezeLLM do what they are for: each is no worse than round-to-nearest on its own objective."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", minversion="2.0")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from patterned import calibration, prompt  # noqa: E402

from backends.model.architecture import read_architecture  # noqa: E402
from backends.quantization.dequantise import dequantise  # noqa: E402
from backends.quantization.make import awq, gptq, grids, squeezellm  # noqa: E402
from backends.quantization.make.awq_scales import scale_layer  # noqa: E402
from backends.quantization.make.forward import projections, readers, rotary, run_layer, token_losses  # noqa: E402
from backends.quantization.make.statistics import Inputs, sensitivities, through  # noqa: E402
from backends.weights.load import load_model  # noqa: E402
from backends.weights.tiny import make_tiny  # noqa: E402


def problem(rows: int, width: int, tokens: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A weight, and inputs that hang together and of which four channels are large; their second moments, mean magnitudes."""
    noise = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, width, generator=noise) * 0.05
    few = torch.randn(max(width // 4, 1), width, generator=noise)
    inputs = torch.randn(tokens, len(few), generator=noise) @ few / len(few) ** 0.5
    inputs += 0.3 * torch.randn(tokens, width, generator=noise)
    inputs[:, :: max(width // 4, 1)] *= 12
    return weight, inputs.T @ inputs / tokens, inputs.abs().mean(0)


def values(found: gptq.Solved) -> torch.Tensor:
    return (found.codes.float() - found.zeros[:, found.index]) * found.scales[:, found.index]


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000), rows=st.integers(1, 24), groups=st.integers(1, 6), group=st.sampled_from([8, 32, -1]),
    bits=st.sampled_from([3, 4, 8]), symmetric=st.booleans(), act_order=st.booleans(),
)  # fmt: skip
def test_gptq_is_on_its_grid_and_never_worse_than_rounding(
    seed, rows, groups, group, bits, symmetric, act_order
) -> None:
    width = groups * max(group, 8)
    weight, hessian, _ = problem(rows, width, 4 * width, seed)
    found = gptq.solve(weight, hessian, bits=bits, group=group, symmetric=symmetric, act_order=act_order)
    assert int(found.codes.max()) < 1 << bits and found.codes.shape == weight.shape
    assert sorted(found.index.bincount().tolist()) == [max(group, 8) if group > 0 else width] * len(
        found.index.unique()
    )
    grid = grids.int_grid(weight, bits, group, symmetric)
    plain = grids.int_values(grids.int_codes(weight, *grid, bits, group), *grid, group)
    if not act_order:  # with it, groups are of other columns
        assert gptq.objective(weight, values(found), hessian) <= gptq.objective(weight, plain, hessian) * 1.0001 + 1e-9


def test_gptq_is_much_better_where_inputs_hang_together() -> None:
    weight, hessian, _ = problem(48, 256, 2048, 5)
    grid = grids.int_grid(weight, 4, 64, True)
    plain = grids.int_values(grids.int_codes(weight, *grid, 4, 64), *grid, 64)
    for act_order in (False, True):
        found = gptq.solve(weight, hessian, group=64, act_order=act_order)
        assert gptq.objective(weight, values(found), hessian) < 0.7 * gptq.objective(weight, plain, hessian)


def test_gptq_of_independent_inputs_is_rounding_and_dead_inputs_do_no_harm() -> None:
    weight, _, _ = problem(8, 64, 128, 1)
    found = gptq.solve(weight, torch.eye(64), group=32)
    grid = grids.int_grid(weight, 4, 32, True)
    assert torch.equal(found.codes, grids.int_codes(weight, *grid, 4, 32))
    for hessian in (torch.zeros(64, 64), torch.ones(64, 64), torch.full((64, 64), 1e30)):
        codes = gptq.solve(weight, hessian, group=32).codes
        assert int(codes.max()) < 16
        assert torch.isfinite(values(gptq.solve(weight, hessian, group=32))).all()


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), rows=st.integers(1, 16), group=st.sampled_from([8, 32, -1]))
def test_awq_is_never_worse_than_rounding(seed, rows, group) -> None:
    weight, hessian, magnitude = problem(rows, 64, 256, seed)
    scales = awq.search([weight], [hessian], magnitude, group=group)
    assert (scales > 0).all() and torch.isfinite(scales).all()
    plain, error = awq_errors(weight, hessian, scales, group)
    assert error <= plain
    scaled, theirs = weight * scales, hessian / scales / scales[:, None]
    grid = awq.clipped_grid(scaled, theirs, group=group)
    clipped = row_errors(scaled, awq.on_grid(scaled, grid, 4, group), theirs)
    whole = row_errors(scaled, awq.rounded(scaled, 4, group), theirs)
    assert (clipped <= whole * 1.0001 + 1e-12).all(), "no row is the worse for what is cut off"


def awq_errors(weight, hessian, scales, group) -> tuple[float, float]:
    """The objective of rounding to nearest, and with scales."""
    found = awq.rounded(weight * scales, 4, group) / scales
    return gptq.objective(weight, awq.rounded(weight, 4, group), hessian), gptq.objective(weight, found, hessian)


def row_errors(weight: torch.Tensor, found: torch.Tensor, hessian: torch.Tensor) -> torch.Tensor:
    error = (weight - found).double()
    return ((error @ hessian.double()) * error).sum(1)


def test_awq_cuts_off_a_lone_large_weight_of_a_column_that_hardly_matters() -> None:
    weight = torch.randn(8, 64, generator=torch.Generator().manual_seed(4)) * 0.05
    weight[:, 5] = 0.5
    hessian = torch.eye(64)
    hessian[5, 5] = 1e-4
    plain = row_errors(weight, awq.rounded(weight, 4, 32), hessian)
    found = awq.on_grid(weight, awq.clipped_grid(weight, hessian, group=32), 4, 32)
    assert (row_errors(weight, found, hessian) < 0.8 * plain).all()
    assert (found[:, 5] < 0.32).all(), "cut off about as far as may be: at 11 twentieths"
    every = awq.on_grid(weight, awq.clipped_grid(weight, torch.eye(64), group=32), 4, 32)
    assert (every[:, 5] > 0.45).all(), "kept where it matters as much as the others"


def test_awq_protects_large_inputs() -> None:
    weight, hessian, magnitude = problem(64, 128, 1024, 2)
    scales = awq.search([weight], [hessian], magnitude, group=32)
    plain, error = awq_errors(weight, hessian, scales, 32)
    assert error < 0.8 * plain
    large = magnitude > 4 * magnitude.median()
    assert scales[large].min() > scales[~large].max()


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000), rows=st.integers(1, 8), width=st.sampled_from([32, 96]), bits=st.sampled_from([3, 4])
)
def test_squeezellm_is_never_worse_than_an_even_grid(seed, rows, width, bits) -> None:
    noise = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, width, generator=noise)
    sensitivity = torch.rand(rows, width, generator=noise) ** 6
    codes, table = squeezellm.cluster(weight, sensitivity, bits)
    assert int(codes.max()) < 1 << bits and (table.diff(dim=1) >= 0).all()
    assert torch.equal(codes.long(), squeezellm.nearest(weight, table))
    even = squeezellm._even(weight, bits)
    tilted = sensitivity + sensitivity.mean(1, keepdim=True) * 1e-3 + 1e-30
    ours = squeezellm.weighted_error(weight, tilted, codes, table)
    assert (
        ours <= squeezellm.weighted_error(weight, tilted, squeezellm.nearest(weight, even), even) * (1 + 1e-5)
    ).all()


def test_squeezellm_with_few_values_a_row_is_exact_and_constants_do_no_harm() -> None:
    weight = torch.tensor([[0.5, -1.0, 2.0, 0.5] * 8, [3.0] * 32, [0.0] * 32])
    codes, table = squeezellm.cluster(weight, torch.ones(3, 32), 4)
    assert torch.allclose(table.gather(1, codes.long()), weight, atol=1e-6)
    codes, table = squeezellm.cluster(weight, torch.zeros(3, 32), 4)  # nothing matters, nothing breaks
    assert torch.isfinite(table).all()


def test_outliers_come_back_exactly_and_the_table_is_the_better_for_it() -> None:
    weight, sensitivity = torch.randn(16, 256, generator=torch.Generator().manual_seed(0)), torch.rand(16, 256)
    weight[3, 7], weight[9, 200] = 40.0, -55.0
    plain = squeezellm.cluster(weight, sensitivity, 3)
    codes, table, sparse = squeezellm.dense_and_sparse(weight, sensitivity, 3, 0.01)
    assert len(sparse.values) == 41
    whole = table.gather(1, codes.long())
    counts = sparse.starts.diff().long()
    whole[torch.repeat_interleave(torch.arange(16), counts), sparse.columns.long()] += sparse.values
    assert float(whole[3, 7]) == pytest.approx(40.0) and float(whole[9, 200]) == pytest.approx(-55.0)
    before = (plain[1].gather(1, plain[0].long()) - weight).square().mean()
    assert (whole - weight).square().mean() < 0.8 * before


def test_grids_hold_their_own_values() -> None:
    """What a grid stands for is coded as itself."""
    weight = torch.randn(8, 64, generator=torch.Generator().manual_seed(3))
    for symmetric in (True, False):
        steps, zeros = grids.int_grid(weight, 4, 16, symmetric)
        assert torch.equal(steps, steps.half().float()) and (zeros >= 0).all() and (zeros <= 15).all()
        codes = grids.int_codes(weight, steps, zeros, 4, 16)
        again = grids.int_codes(grids.int_values(codes, steps, zeros, 16), steps, zeros, 4, 16)
        assert torch.equal(codes, again)
        error = (grids.int_values(codes, steps, zeros, 16) - weight).abs()
        assert (error <= steps.repeat_interleave(16, 1) * 1.01).all()
    zero = torch.zeros(4, 32)
    for mode in (
        grids.int8_rows(zero)[0],
        *(grids.fp8_codes(zero, shape)[0] for shape in ("tensor", "channel", "block")),
    ):
        assert not mode.float().any()
    assert not dequantise(grids.nearest_ints(zero, 4, 16)).any()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder: Path = make_tiny("tiny-qwen3", tmp_path_factory.mktemp("tiny") / "model", seed=2)
    from safetensors.torch import load_file

    tensors = load_file(folder / "model.safetensors")
    architecture = read_architecture(folder)

    def layer(index: int) -> dict[str, torch.Tensor]:
        prefix = f"model.layers.{index}."
        return {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}

    tops = {"embedding": tensors["model.embed_tokens.weight"], "norm": tensors["model.norm.weight"],
            "head": tensors["lm_head.weight"]}  # fmt: skip
    return folder, architecture, layer, tops


def layer_of(tensors: dict[str, torch.Tensor], index: int) -> dict[str, torch.Tensor]:
    prefix = f"model.layers.{index}."
    return {name[len(prefix) :]: each for name, each in tensors.items() if name.startswith(prefix)}


@pytest.mark.parametrize(
    "kind", ["tiny-llama", "tiny-mistral", "tiny-qwen2", "tiny-qwen3", "tiny-smollm", "tiny-mixtral", "tiny-qwen3-moe"]
)
def test_the_pass_for_calibration_is_the_engines(kind, tmp_path) -> None:
    from patterned import logits
    from safetensors.torch import load_file

    folder = make_tiny(kind, tmp_path / "model", seed=6)
    tensors, architecture = load_file(folder / "model.safetensors"), read_architecture(folder)
    ids = torch.tensor([prompt(60)])  # longer than tiny-mistral's window
    hidden, turn = tensors["model.embed_tokens.weight"][ids], rotary(architecture, 60)
    for index in range(architecture.spec.layers):
        hidden = run_layer(architecture, index, layer_of(tensors, index), hidden, turn)
    head = tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"])
    loss = token_losses(architecture, hidden, tensors["model.norm.weight"], head, ids)
    found = logits(load_model(folder), prompt(60))[:-1]
    expected = torch.nn.functional.cross_entropy(found, ids[0, 1:])
    assert float(loss) == pytest.approx(float(expected), abs=1e-4)


def test_sensitivities_are_the_squared_gradients_of_the_whole_model(tiny) -> None:
    """Layer by layer and back gives what one graph over all layers gives."""
    _, architecture, layer, tops = tiny
    ids, count = calibration(3, 24), architecture.spec.layers
    turn = rotary(architecture, 24)
    found = sensitivities(architecture, layer, tops, ids, turn, lambda done: None)
    live = [
        {name: tensor.clone().requires_grad_(True) for name, tensor in layer(index).items()} for index in range(count)
    ]
    expected = [{name: torch.zeros_like(tensor) for name, tensor in each.items()} for each in live]
    for row in range(len(ids)):
        hidden = tops["embedding"][ids[row : row + 1]]
        for index in range(count):
            hidden = run_layer(architecture, index, live[index], hidden, turn)
        token_losses(architecture, hidden, tops["norm"], tops["head"], ids[row : row + 1]).backward()
        for index in range(count):
            for name, tensor in live[index].items():
                expected[index][name] += tensor.grad.square()
                tensor.grad = None
    for index in range(count):
        for name in projections(architecture):
            mine, theirs = found[index][f"{name}.weight"].float(), expected[index][f"{name}.weight"]
            theirs = theirs / theirs.amax() * 60_000
            assert torch.allclose(mine, theirs, rtol=2e-3, atol=0.01), (index, name)


@pytest.mark.parametrize("kind", ["tiny-llama", "tiny-mixtral", "tiny-qwen3-moe"])
def test_awqs_scales_change_nothing_but_what_rounding_costs(kind, tmp_path) -> None:
    from safetensors.torch import load_file

    folder = make_tiny(kind, tmp_path / "model", seed=6)
    tensors, architecture = load_file(folder / "model.safetensors"), read_architecture(folder)
    weights, hidden, turn = layer_of(tensors, 1), torch.randn(3, 40, 64), rotary(architecture, 40)
    inputs = Inputs(hessian=True)
    before = through(architecture, 1, weights, hidden, turn, inputs)
    scaled = dict(weights)
    factors = scale_layer(architecture, scaled, inputs, 16)
    assert torch.allclose(through(architecture, 1, scaled, hidden, turn), before, atol=2e-5)
    assert any(not torch.equal(scaled[name], weights[name]) for name in weights)
    inner = {name for names in readers(architecture).values() for name in names}
    assert set(factors.columns) <= inner and set(factors.rows) <= inner


def test_an_experts_inputs_are_those_of_its_own_tokens(tmp_path) -> None:
    from safetensors.torch import load_file

    folder = make_tiny("tiny-mixtral", tmp_path / "model")
    tensors, architecture = load_file(folder / "model.safetensors"), read_architecture(folder)
    weights, hidden, turn = layer_of(tensors, 0), torch.randn(2, 20, 64), rotary(architecture, 20)
    together, apart = Inputs(hessian=True), Inputs(hessian=True)
    run_layer(architecture, 0, weights, hidden, turn, together)
    for part in hidden.split(1):
        run_layer(architecture, 0, weights, part, turn, apart)
    experts = range(architecture.spec.experts)
    assert sum(together.seen[f"mlp.{each}"] for each in experts) == 2 * together.seen["mlp"] == 80
    for each in experts:
        assert together.seen[f"mlp.{each}"] == together.seen[f"down.{each}"] == apart.seen[f"mlp.{each}"]
        assert torch.allclose(together.hessian[f"down.{each}"], apart.hessian[f"down.{each}"], rtol=1e-4, atol=1e-6)
    total = sum(together.hessian[f"mlp.{each}"] * together.seen[f"mlp.{each}"] for each in experts)
    assert torch.allclose(total / 80, together.hessian["mlp"], rtol=1e-4, atol=1e-5)
    assert together.largest("mlp.0") <= together.largest("mlp.99") == together.most["mlp"], "nobody's: that of all"


def test_statistics_do_not_depend_on_how_sequences_are_cut(tiny) -> None:
    _, architecture, layer, tops = tiny
    ids = calibration(5, 16)
    hidden, turn = tops["embedding"][ids], rotary(architecture, 16)
    together, apart = Inputs(hessian=True), Inputs(hessian=True)
    whole = through(architecture, 0, layer(0), hidden, turn, together)
    parts = [through(architecture, 0, layer(0), part, turn, apart) for part in hidden.split(2)]
    assert torch.allclose(whole, torch.cat(parts), atol=1e-5)
    for name in together.hessian:
        assert torch.allclose(together.hessian[name], apart.hessian[name], rtol=1e-4, atol=1e-5)
        assert torch.allclose(together.magnitude[name], apart.magnitude[name], rtol=1e-4, atol=1e-6)
        assert together.most[name] == pytest.approx(apart.most[name], rel=1e-5)
