import os
import sys

import pytest

from workloads.errors import InputError
from workloads.registry import plugins_from, resolve

KNOWN = {"one": 1, "two": 2}


def find(name):
    return resolve("number", name, KNOWN, "twinserve.numbers_of_a_test")


def test_built_ins_and_dotted_paths():
    assert find("two") == 2
    assert find("math:tau") == pytest.approx(6.283, abs=1e-3)
    assert find("collections:OrderedDict.fromkeys")("a") == {"a": None}


def test_a_module_beside_the_user(tmp_path, monkeypatch):
    (tmp_path / "numbers_of_mine.py").write_text("answer = 42\n")
    monkeypatch.chdir(tmp_path)
    assert find("numbers_of_mine:answer") == 42


def test_installed_names(monkeypatch):
    class Point:
        name = "three"

        def load(self):
            return 3

    import workloads.registry

    monkeypatch.setattr(workloads.registry, "installed_names", lambda group: {"three": Point()})
    assert find("three") == 3
    with pytest.raises(InputError, match=r"unknown number 'thre' \(did you mean three"):
        find("thre")


@pytest.mark.parametrize("name", ["nowhere_at_all:x", "math:nothing", "math:", ":x"])
def test_paths_that_lead_nowhere(name):
    with pytest.raises(InputError, match=r"cannot load number .*package\.module:object"):
        find(name)


def test_unknown_names_give_the_nearest():
    with pytest.raises(InputError, match=r"unknown number 'tow' \(did you mean two"):
        find("tow")


def put(folder, text, name="numbers_of_this_test.py"):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return folder


def test_modules_beside_the_workload_come_before_the_present_folder(tmp_path, monkeypatch):
    put(tmp_path / "here", "answer = 1\n")
    there = put(tmp_path / "there", "answer = 2\n")
    monkeypatch.chdir(tmp_path / "here")
    before = list(sys.path)
    with plugins_from(there):
        assert find("numbers_of_this_test:answer") == 2
    assert find("numbers_of_this_test:answer") == 1
    with plugins_from(there):
        assert find("numbers_of_this_test:answer") == 2
    assert sys.path == before


def test_a_module_that_was_changed_is_read_again(tmp_path):
    with plugins_from(put(tmp_path, "answer = 1\n")):
        assert find("numbers_of_this_test:answer") == 1
        put(tmp_path, "answer = 20\n")
        os.utime(tmp_path / "numbers_of_this_test.py", ns=(1, 1))
        assert find("numbers_of_this_test:answer") == 20


def test_the_same_module_gives_the_same_object(tmp_path):
    with plugins_from(put(tmp_path, "class Answer: pass\n")):
        assert find("numbers_of_this_test:Answer") is find("numbers_of_this_test:Answer")


def test_packages_beside_the_workload(tmp_path):
    put(tmp_path / "package_of_this_test", "from .inner import answer\n", "__init__.py")
    put(tmp_path / "package_of_this_test", "answer = 3\n", "inner.py")
    with plugins_from(tmp_path):
        assert find("package_of_this_test:answer") == find("package_of_this_test.inner:answer") == 3


def test_what_is_installed_is_not_hidden_by_a_file_of_its_name(tmp_path):
    with plugins_from(put(tmp_path, "tau = 1\n", "math.py")):
        assert find("math:tau") > 6
    with plugins_from(put(tmp_path, "", "workloads.py")):
        assert callable(find("workloads.registry:resolve"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("answer = (\n", r"SyntaxError: .*numbers_of_this_test\.py, line 1"),
        ("1 / 0\n", "ZeroDivisionError: division by zero"),
        ("import nothing_of_that_name\n", "No module named 'nothing_of_that_name'"),
        ("other = 1\n", "has no attribute 'answer'"),
    ],
)
def test_what_is_wrong_inside_a_module_is_told(tmp_path, text, says):
    with plugins_from(put(tmp_path, text)), pytest.raises(InputError, match=says):
        find("numbers_of_this_test:answer")
