"""The bundled traces are what their specifications make, and near what was recorded."""

import gzip

import numpy as np
import pytest
from ruamel.yaml import YAML

from workloads.errors import InputError
from workloads.examples import TRACES, make, read_synth, synth_path, trace_path, workload_paths
from workloads.examples.build import main
from workloads.inspect import describe
from workloads.readers import read_trace
from workloads.synthetic import SyntheticSpec


@pytest.mark.parametrize("name", TRACES)
def test_traces_are_made_again_byte_for_byte(name, tmp_path, same):
    from workloads.write import write_jsonl

    made = make(synth_path(name))
    write_jsonl(made, tmp_path / "again.jsonl.gz")
    # of the text inside: another zlib may pack it another way
    assert gzip.decompress((tmp_path / "again.jsonl.gz").read_bytes()) == gzip.decompress(trace_path(name).read_bytes())
    same(read_trace(trace_path(name)), made)
    assert trace_path(name).stat().st_size < 200_000


def test_build_writes_all(tmp_path, capsys):
    main(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(trace_path(name).name for name in TRACES)
    assert "chat.jsonl.gz" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "rate", "inputs", "outputs"),
    [
        ("chat", 5.53, (1154.7, 1020, 4083), (211.1, 129, 451)),
        ("code", 2.57, (2047.8, 1469, 7303), (27.9, 13, 90)),
        ("agents", None, (12035, 6909, 39550), (342.6, 350, 698)),
        ("documents", 2.634, (22623, 17961, 54130), (86.2, 25, 348)),
    ],
)
def test_traces_are_near_the_published_figures(name, rate, inputs, outputs):
    found = describe(read_trace(trace_path(name)), 512)
    if rate:
        assert found["rate_per_s"] == pytest.approx(rate, rel=0.02)
    for column, wanted in (("input_tokens", inputs), ("output_tokens", outputs)):
        got = [found[column][k] for k in ("mean", "p50", "p95")]
        np.testing.assert_allclose(got, wanted, rtol=0.08, err_msg=column)


def test_burstiness_and_sharing_are_near_the_published_figures():
    chat, code = (describe(read_trace(trace_path(name))) for name in ("chat", "code"))
    assert chat["gap_cv"] == pytest.approx(1.09, rel=0.06) and chat["minute_cv"] == pytest.approx(0.25, rel=0.1)
    assert code["gap_cv"] == pytest.approx(13.15, rel=0.1) and code["minute_cv"] == pytest.approx(1.03, rel=0.1)
    agents = read_trace(trace_path("agents"))
    found = describe(agents, 512)
    assert found["prefix"]["token_share"] == pytest.approx(0.374, abs=0.01)
    assert found["prefix"]["request_share"] > 0.999
    assert len(agents) / 900 == pytest.approx(3.40, rel=0.02)
    documents = read_trace(trace_path("documents"))
    found = describe(documents, 512)
    assert found["gap_cv"] == pytest.approx(1.08, rel=0.1)
    assert found["prefix"]["token_share"] == pytest.approx(0.654, abs=0.02)
    assert found["prefix"]["request_share"] == pytest.approx(0.648, abs=0.02)
    first = documents.spans.content[documents.spans.start[:-1]]  # the document, then the question
    assert len(np.unique(first)) / len(documents) == pytest.approx(947 / 2692, abs=0.02)


def test_workloads_have_the_keys_of_a_workload():
    paths = workload_paths()
    assert {p.stem for p in paths} == {
        "chat-h100", "code-burst", "agents-radix", "static-vs-continuous", "concurrency-sweep", "poisson-10k",
        "smollm2-chat", "documents-h100", "cluster-routers", "prefill-apart", "autoscale", "speculation-sweep",
    }  # fmt: skip
    for path in paths:
        data = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
        assert {"name", "seed", "model", "backend", "engine", "traffic", "load"} <= set(data), path
        assert set(data) <= {
            "name",
            "seed",
            "model",
            "backend",
            "engine",
            "cluster",
            "traffic",
            "load",
            "slo",
            "sweep",
            "sampling",
        }, path
        traffic = data["traffic"]
        if "trace" in traffic:
            options = dict(traffic["trace"])
            least = 10 if data["backend"].get("name") == "torch" else 500  # what a CPU does in half a minute
            assert len(read_trace(path.parent / options.pop("path"), **options)) > least
        else:
            spec = SyntheticSpec.from_dict(traffic["synthetic"])
            assert spec.duration == 2400 if spec.requests is None else spec.requests in (1200, 1500, 4000, 10_000)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", r"x\.synth\.yaml:1.*not YAML"),
        ("- 1", r"expected a mapping"),
        ("seed: 1", r"file.synthetic: is missing"),
        ("synthetic: {}\nsead: 1", r"x\.synth\.yaml: file.sead: unknown key 'sead' \(did you mean seed"),
    ],
)
def test_a_specification_that_is_wrong(file, text, said):
    with pytest.raises(InputError, match=said):
        read_synth(file("x.synth.yaml", text))
