import pytest

from workloads.errors import InputError
from workloads.registry import resolve

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
