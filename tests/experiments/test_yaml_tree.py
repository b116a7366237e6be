"""YAML and JSON as values with lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.yaml_tree import MAX_BYTES, parse_tree, parse_value, read_text
from workloads.errors import InputError, Place

NAMES = st.text(
    st.characters(codec="utf-8", exclude_characters="\x7f", exclude_categories=("Cc", "Cs")),
    min_size=1,
    max_size=40,
)
VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(10**9), 10**9), st.floats(allow_nan=False, allow_infinity=False), NAMES
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=8,
)


def test_values_follow_yaml_1_2() -> None:
    tree = parse_tree('a: [1, 1.5, 1e3, true, yes, ~, 2023-11-16, 0x1f, 0o17, 1_000, "64", .inf, 010]', "w.yaml")
    expected = [1, 1.5, 1000.0, True, "yes", None, "2023-11-16", 31, 15, 1000, "64", float("inf"), 10]
    assert tree.data["a"] == expected
    assert [type(v) for v in tree.data["a"]] == [type(v) for v in expected]


def test_every_key_and_item_has_its_line() -> None:
    tree = parse_tree("a: 1\nb:\n  c:\n  - 2\n  - {d: 3}\n", "w.yaml")
    assert str(tree.place(("b", "c", 1, "d"))) == "w.yaml:5: b.c[1].d"
    assert str(tree.place(("b", "c"))) == "w.yaml:3: b.c"
    assert str(tree.place(("b", "missing", "deeper"))) == "w.yaml:2: b.missing.deeper"
    assert str(tree.place(("absent",))) == "w.yaml: absent"


def test_all_duplicate_keys_are_found() -> None:
    tree = parse_tree("a: 1\nb: {c: 1, c: 2}\na: 3\n", "w.yaml")
    assert [str(e) for e in tree.errors] == [
        "w.yaml:2: b.c: is given twice (first on line 2) (remove one)",
        "w.yaml:3: a: is given twice (first on line 1) (remove one)",
    ]


def test_anchors_and_merge_keys() -> None:
    tree = parse_tree("a: &x {p: 1, q: 2}\nb: {<<: *x, q: 3}\nc: *x\n", "w.yaml")
    assert tree.data["b"] == {"p": 1, "q": 3} and tree.data["c"] == {"p": 1, "q": 2}


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("a: [1\nb: 2", 2, "expected ',' or ']'"),
        ("a: b: c", 1, "put text that contains ': ' in quotes"),
        ("a: 1\n\tb: 2", 2, "not tabs"),
        ("a: 1\n---\nb: 2", 2, "one document"),
        ("- 1\n- 2", 1, "expected keys and values"),
        ("just text", 1, "expected keys and values"),
        ("a: *nothing", 1, "undefined alias"),
        ("a: 'x", 1, "not valid YAML"),
        ("a: 1\nb: \x01", 2, "control character"),
    ],
)
def test_syntax_errors_name_the_line(text: str, line: int, says: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_tree(text, "w.yaml")
    assert caught.value.place.line == line
    assert says in str(caught.value)


def test_empty_and_comment_only_files() -> None:
    for text in ("", "\n", "# nothing\n"):
        with pytest.raises(InputError, match="is empty"):
            parse_tree(text, "w.yaml")


def test_tags_and_odd_keys_are_refused_in_place() -> None:
    tree = parse_tree("a: !!python/object:os.system x\nb: {[1]: 2}\ntrue: 3\n", "w.yaml")
    assert [e.place.line for e in tree.errors] == [1, 2, 3]
    assert "tag" in tree.errors[0].message


@pytest.mark.parametrize(
    "text",
    [
        "a: &x [*x]",
        "a: &a [x,x,x,x,x,x,x,x,x]\n"
        + "\n".join(
            f"{b}: &{b} [*{a},*{a},*{a},*{a},*{a},*{a},*{a},*{a},*{a}]"
            for a, b in zip("abcdefg", "bcdefgh", strict=True)
        ),
        "a: " + "[" * 60 + "]" * 60,
        "a: " + "[" * 2000,
        "a: " + "9" * 10000,
    ],
)
def test_hostile_documents_end_in_an_input_error(text: str) -> None:
    try:
        tree = parse_tree(text, "w.yaml")
    except InputError as error:
        assert "w.yaml" in str(error)
    else:
        assert tree.errors


def test_json_is_read_with_its_lines() -> None:
    text = '{\n\t"name": "\\ud83d\\ude00",\n\t"b": {"c": 1e5,\n\t"c": 2}\n}'
    tree = parse_tree(text, "w.json")
    assert tree.data["name"] == "😀" and tree.data["b"] == {"c": 1e5}
    assert tree.errors[0].place.line == 4
    with pytest.raises(InputError, match="not valid JSON") as caught:
        parse_tree('{"a": 1,\n "b": }', "w.json")
    assert caught.value.place.line == 2


@given(st.dictionaries(NAMES, VALUES, min_size=1, max_size=4))
def test_what_json_writes_is_read_back(data: dict) -> None:
    tree = parse_tree(json.dumps(data), "w.json")
    assert not tree.errors
    assert tree.data == data


@given(st.text(max_size=40))
def test_any_text_is_a_tree_or_an_input_error(text: str) -> None:
    try:
        assert isinstance(parse_tree(text, "w.yaml").data, dict)
    except InputError as error:
        assert str(error)


def test_one_value_for_the_command_line() -> None:
    place = Place(file="--set", key="k")
    assert parse_value("64", place) == 64
    assert parse_value("[1, a]", place) == [1, "a"]
    assert parse_value("{a: {b: 1}}", place) == {"a": {"b": 1}}
    assert parse_value("", place) is None
    with pytest.raises(InputError, match="--set: k: not valid YAML"):
        parse_value("[1", place)
    with pytest.raises(InputError, match="--set: k: is given twice"):
        parse_value("{a: 1, a: 2}", place)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "chat.yaml").write_text("a: 1")
    with pytest.raises(InputError, match=r"chta.yaml: no such file \(did you mean .*chat.yaml\?\)"):
        read_text(tmp_path / "chta.yaml")
    with pytest.raises(InputError, match=r"is a folder.*it holds chat.yaml"):
        read_text(tmp_path)
    with pytest.raises(InputError, match=r"no such file .*does not exist"):
        read_text(tmp_path / "nowhere" / "w.yaml")
    (tmp_path / "latin").write_bytes("a: 1\nb: é\n".encode("latin-1"))
    with pytest.raises(InputError, match="latin:2: is not UTF-8"):
        read_text(tmp_path / "latin")
    (tmp_path / "large").write_bytes(b" " * (MAX_BYTES + 1))
    with pytest.raises(InputError, match="too large"):
        read_text(tmp_path / "large")
    (tmp_path / "bom").write_bytes(b"\xef\xbb\xbfa: 1")
    assert read_text(tmp_path / "bom") == "a: 1"
    with pytest.raises(InputError, match="cannot be read"):
        read_text(Path("a\0b"))
