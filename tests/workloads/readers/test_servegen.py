import io
import json
import tarfile

import numpy as np
import pytest

from workloads.errors import InputError
from workloads.readers import guess_format, read_trace
from workloads.readers.servegen import read_servegen


def statistics(folder, clients):
    for number, (windows, table) in clients.items():
        text = "\n".join(",".join(map(str, window)) for window in windows) + "\n"
        (folder / f"chunk-{number}-trace.csv").write_text(text)
        if table is not None:
            tables = {str(at): {k: str(v) for k, v in t.items()} for at, t in table.items()}
            (folder / f"chunk-{number}-dataset.json").write_text(json.dumps(tables))
    return folder


TABLE = {0: {"input_tokens": {100: 0.25, 200: 0.75}, "output_tokens": {7: 1.0}}}
GAMMA = (0, 2.0, 2.0, "Gamma", 0.25, 2.0)
WEIBULL = (600, 0.5, 1.5, "Weibull", 0.7, 1.6)
QUIET = (600, 0, 0, "", 0, 0)


def test_a_client_sends_its_rate_with_its_law(tmp_path):
    path = statistics(tmp_path, {0: ([GAMMA, QUIET], TABLE), 1: ([(0, 0, 0, "", 0, 0), WEIBULL], TABLE)})
    traffic = read_servegen(path)
    assert len(traffic) == 1200 + 300
    assert (traffic.arrival < 600).sum() == 1200
    gaps = np.diff(traffic.arrival[traffic.arrival < 600])
    assert gaps.std() / gaps.mean() == pytest.approx(2.0, rel=0.15)  # shape 1/4
    assert set(traffic.input_tokens.tolist()) == {100, 200}
    assert (traffic.input_tokens == 200).mean() == pytest.approx(0.75, abs=0.05)
    assert set(traffic.output_tokens.tolist()) == {7}
    traffic.validate()


def test_a_window_is_the_same_requests_as_in_the_whole(tmp_path):
    path = statistics(tmp_path, {0: ([GAMMA, WEIBULL], TABLE)})
    whole, part = (
        read_servegen(path, seed=3),
        read_trace(path, "servegen", start="5min", duration="10min", seed=3),
    )
    inside = (whole.arrival >= 300) & (whole.arrival < 900)
    np.testing.assert_allclose(part.arrival, whole.arrival[inside] - 300)


def test_seed(tmp_path):
    path = statistics(tmp_path, {0: ([GAMMA], TABLE)})
    a, b, c = (read_servegen(path, seed=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(a.arrival, b.arrival)
    np.testing.assert_array_equal(a.input_tokens, b.input_tokens)
    assert not np.array_equal(a.arrival, c.arrival)


def test_clients_without_tables_borrow_or_are_skipped(tmp_path):
    path = statistics(tmp_path, {0: ([GAMMA], TABLE), 4: ([GAMMA], None)})
    borrowed, skipped = read_servegen(path), read_servegen(path, missing="skip")
    assert (len(borrowed), len(skipped)) == (2400, 1200)
    assert any("without tables of lengths: 4" in note for note in borrowed.notes)
    assert any("left out" in note for note in skipped.notes)


def test_images_count_for_each(tmp_path):
    table = {
        "text_tokens": {10: 1},
        "image_tokens": {100: 1},
        "image_count": {0: 0.5, 2: 0.5},
        "output_tokens": {1: 1},
    }
    traffic = read_servegen(statistics(tmp_path, {0: ([GAMMA], {0: table})}))
    assert set(traffic.input_tokens.tolist()) == {10, 210}


def test_tables_are_of_their_time(tmp_path):
    late = {21_600: {"input_tokens": {900: 1}, "output_tokens": {9: 1}}}
    empty = {43_200: {"input_tokens": {}, "output_tokens": {}}}
    windows = [(at, 1.0, 1.0, "Gamma", 1, 1) for at in (0, 21_600, 43_200)]
    traffic = read_servegen(statistics(tmp_path, {0: (windows, TABLE | late | empty)}))
    assert set(traffic.input_tokens[traffic.arrival > 21_600].tolist()) == {900}
    assert set(traffic.input_tokens[traffic.arrival < 600].tolist()) == {100, 200}


@pytest.mark.parametrize(
    ("window", "said"),
    [
        ((0, 1, 1, "Pareto", 1, 1), "unknown law 'Pareto'"),
        ((0, "x", 1, "Gamma", 1, 1), r"trace\.csv:1"),
        ((0, 1, 1, "Gamma"), "has 4 fields"),
        ((0, 1, 1, "Gamma", -1, 1), "finite and positive"),
    ],
)
def test_errors(tmp_path, window, said):
    with pytest.raises(InputError, match=said):
        read_servegen(statistics(tmp_path, {0: ([window], TABLE)}))


def test_tables_are_data_and_never_code(tmp_path):
    path = statistics(tmp_path, {0: ([GAMMA], {0: {"input_tokens": "__import__('os')", "output_tokens": {1: 1}}})})
    with pytest.raises(InputError, match=r"bad table input_tokens"):
        read_servegen(path)


def test_nothing_there(tmp_path):
    with pytest.raises(InputError, match=r"no client statistics"):
        read_servegen(tmp_path)
    path = statistics(tmp_path, {0: ([GAMMA, QUIET], TABLE)})
    with pytest.raises(InputError, match=r"statistics end at 1,200 s"):
        read_servegen(path, start=700, duration=60)
    with pytest.raises(InputError, match=r"more than 20,000,000"):
        read_servegen(statistics(tmp_path, {0: ([(0, 1e6, 1, "Gamma", 1, 1)], TABLE)}))


def test_archives_read_as_folders(tmp_path, same):
    source = tmp_path / "s"
    source.mkdir()
    statistics(source, {0: ([GAMMA], TABLE)})
    archive = tmp_path / "s.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(source, "language/s")
        tar.addfile(tarfile.TarInfo("language/s/README"), io.BytesIO())
    assert guess_format(archive) == guess_format(source) == "servegen"
    same(read_servegen(archive), read_servegen(source))
    archive.write_bytes(archive.read_bytes()[:100])
    with pytest.raises(InputError, match=r"not a readable archive"):
        read_servegen(archive)


@pytest.mark.shared
def test_the_published_statistics(recorded):
    path = recorded / "servegen" / "deepseek-r1.tar.gz"
    traffic = read_trace(path, start="8h", duration="10min")
    traffic.validate()
    assert 9 < len(traffic) / 600 < 12
    assert traffic.output_tokens.mean() > 2 * traffic.input_tokens.mean()  # it reasons


@pytest.mark.parametrize("packed", [False, True])
def test_statistics_of_another_encoding_are_told(tmp_path, packed):
    path = statistics(tmp_path, {0: ([GAMMA], TABLE)})
    (path / "chunk-0-dataset.json").write_bytes(b'{"0": "\xff"}')
    if packed:
        archive = tmp_path / "clients.tar.gz"
        with tarfile.open(archive, "w:gz") as tar:
            for file in sorted(path.glob("chunk-*")):
                tar.add(file, file.name)
        path = archive
    with pytest.raises(InputError, match=r"chunk-0-dataset\.json:1: not UTF-8 at byte 7"):
        read_servegen(path)
