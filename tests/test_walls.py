"""The house keeps its walls: who may import whom, what is heavy, how long things are, whether data is packed."""

from __future__ import annotations

import ast
import glob
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FLOORS = {"workloads": 1, "sim": 2, "backends": 3, "reports": 3, "experiments": 4, "twinserve": 5, "tests": 6}
MOST_LINES, MOST_FUNCTION_LINES = 500, 80


@cache
def tracked() -> tuple[str, ...]:
    """Files of the project: what git tracks, or everything in our folders where there is no git."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if done.returncode == 0 and done.stdout:
        names = done.stdout.decode().split("\0")
        return tuple(name for name in names if name and (ROOT / name).is_file())
    found = [p for floor in FLOORS for p in (ROOT / floor).rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    return tuple(str(p.relative_to(ROOT)) for p in [*found, ROOT / "twinserve.py"])


@cache
def source(name: str) -> ast.Module:
    return ast.parse((ROOT / name).read_text("utf-8"), name)


def python_files() -> list[str]:
    return [name for name in tracked() if name.endswith(".py")]


def imports(name: str) -> Iterator[tuple[int, str]]:
    """(line, module) of every import in a file, inside functions too."""
    package = name.removesuffix(".py").split("/")[:-1]
    for node in ast.walk(source(name)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            yield node.lineno, ".".join([*base, *([node.module] if node.module else [])])


def test_there_is_something_to_check() -> None:
    assert len(python_files()) > 20
    assert {name.split("/")[0] for name in python_files()} >= set(FLOORS) - {"twinserve"}


def test_imports_only_point_downwards() -> None:
    wrong = []
    for name in python_files():
        here = name.removesuffix(".py").split("/")[0]
        for line, module in imports(name):
            there = module.split(".")[0]
            if there != here and there in FLOORS and FLOORS[there] >= FLOORS.get(here, 0):
                wrong.append(f"{name}:{line}: {here} imports {module}")
    assert not wrong, "\n".join(wrong)


def test_the_simulator_never_imports_the_engine_packages() -> None:
    """Not even inside a function. (A trace reader may ask for a tokenizer of transformers.)"""
    wrong = [
        f"{name}:{line}: {module}"
        for name in python_files()
        if name.startswith(("workloads/", "sim/", "reports/", "backends/sim/"))
        for line, module in imports(name)
        if module.split(".")[0] in ("torch", "triton", "safetensors")
        or (module.split(".")[0] == "transformers" and not name.startswith("workloads/readers/"))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "module", ["experiments.cli", "sim", "sim.build", "workloads.readers", "reports.metrics", "twinserve"]
)
def test_imports_stay_light(module: str) -> None:
    heavy = ("torch", "pandas", "matplotlib", "scipy", "transformers")
    code = f"import sys, {module}; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_files_are_short() -> None:
    long = []
    for name in python_files():
        lines = len((ROOT / name).read_text("utf-8").splitlines())
        if lines > MOST_LINES:
            long.append(f"{name}: {lines} lines")
    assert not long, "\n".join(long)


def test_no_two_test_modules_share_a_name() -> None:
    """The suite has no packages: two modules of one name would stop the collection of all."""
    names = [Path(name).name for name in tracked() if name.startswith("tests/") and Path(name).name.startswith("test_")]
    assert sorted(set(names)) == sorted(names)


def test_functions_fit_on_a_screen() -> None:
    long = []
    for name in python_files():
        if name.startswith("tests/"):
            continue
        for node in ast.walk(source(name)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MOST_FUNCTION_LINES:
                    long.append(f"{name}:{node.lineno}: {node.name} has {lines} lines")
    assert not long, "\n".join(long)


def test_every_module_and_public_definition_says_what_it_is() -> None:
    silent = []
    for name in python_files():
        if name.startswith("tests/"):
            continue
        tree = source(name)
        if tree.body and ast.get_docstring(tree) is None:
            silent.append(name)
        for node in tree.body:
            named = isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef)
            if named and not node.name.startswith("_") and ast.get_docstring(node) is None:
                silent.append(f"{name}:{node.lineno}: {node.name}")
    assert not silent, "\n".join(silent)


def test_data_files_are_packed() -> None:
    """Each lies under a folder that is a package, and matches a pattern of `package-data` as setuptools reads them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["*"]
    packages = {str(Path(name).parent) for name in tracked() if name.endswith("/__init__.py")}
    packed = {
        str(Path(package) / found)
        for package in packages
        for pattern in patterns
        for found in glob.glob(pattern, root_dir=ROOT / package, recursive=True)
    }
    data = [
        name
        for name in tracked()
        if name.split("/")[0] in FLOORS and not name.startswith("tests/") and not name.endswith(".py")
    ]
    assert data and not set(data) - packed, "\n".join(sorted(set(data) - packed))


def test_the_packages_found_are_all_there_are() -> None:
    from setuptools import find_packages

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    found = set(find_packages(str(ROOT), include=project["tool"]["setuptools"]["packages"]["find"]["include"]))
    folders = {
        str(Path(name).parent).replace("/", ".")
        for name in python_files()
        if "/" in name and not name.startswith("tests/")
    }
    assert folders <= found, folders - found
