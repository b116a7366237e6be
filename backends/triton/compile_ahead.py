"""Compile every kernel for GPUs that are not here, and see what it takes of their registers and shared memory.

`python -m backends.triton.compile_ahead --out docs/kernels.md` needs torch and Triton, but no GPU: the assemblers come with
Triton. It fails if a hot kernel spills registers. What is compiled is what `backends.triton.variants` sees being launched.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from backends.triton.launch import Target
from backends.triton.variants import Variant, variants

TARGETS = {
    "sm_80": (GPUTarget("cuda", 80, 32), 108, 163 * 1024),
    "sm_90": (GPUTarget("cuda", 90, 32), 132, 227 * 1024),
    "sm_100": (GPUTarget("cuda", 100, 32), 148, 227 * 1024),
    "gfx942": (GPUTarget("hip", "gfx942", 64), 304, 64 * 1024),
}
"""Name → Triton's target, processors (A100, H100, B200, MI300X), and shared memory that a program may have in bytes."""

HOT = ("prefill_kernel", "decode_kernel", "grouped_kernel", "grouped_expand_kernel", "expand_kernel", "scaled_kernel")
"""Kernels that must not spill."""

TRIED = (
    "The checks in Triton's interpreter pass with torch 2.13.0 and Triton 3.7.1 and, tried once (November 2026), with torch",
    "2.11.0 and Triton 3.6.0; there, too, all variants compile for sm_90, and no hot one spills.",
)
"""What was tried by hand, for the page."""

_INSTRUCTIONS = (
    ("wgmma", r"wgmma\.mma_async"), ("tcgen05", r"tcgen05\.mma"), ("mma", r"mma\.sync"), ("mfma", r"v_mfma"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a variant takes on a target.

    Attributes:
        registers: a thread. spilled: bytes of spill stores (on AMD: vector registers spilled). shared: bytes a program.
        matrix: the tensor-core instruction in use, or "". refused: why it does not compile, or "".
    """

    registers: int = 0
    spilled: int = 0
    shared: int = 0
    matrix: str = ""
    refused: str = ""


def compile_variant(variant: Variant, arch: str) -> Compiled:
    """Compile for `arch`, a key of `TARGETS`."""
    module, name = variant.kernel.rsplit(".", 1)
    kernel = getattr(import_module(module), name)
    place = {argument: index for index, argument in enumerate(kernel.arg_names)}
    constants = {(place[key],): value for key, value in variant.constants.items()}
    attributes = {(place[key],): [["tt.divisibility", 16]] for key in variant.divisible}
    source = ASTSource(kernel, dict(variant.signature), constants, attributes)
    options = {"num_warps": variant.warps, "num_stages": variant.stages}
    target = TARGETS[arch][0]
    try:
        built = triton.compile(source, target=target, options=options)
    except Exception as error:  # of many kinds, with the reason in the first one's words
        return Compiled(refused=_reason(error))
    text = built.asm["ptx" if target.backend == "cuda" else "amdgcn"]
    matrix = next((label for label, pattern in _INSTRUCTIONS if re.search(pattern, text)), "")
    measured = _on_nvidia(text, arch) if target.backend == "cuda" else _on_amd(text)
    if built.metadata.shared > TARGETS[arch][2]:
        return Compiled(refused=f"needs {built.metadata.shared} bytes of shared memory, {TARGETS[arch][2]} are there")
    return Compiled(*measured, built.metadata.shared, matrix)


def _reason(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    words = str(error).strip()
    found = re.search(r"type fp8e4nv not supported in this architecture", words)
    return found.group() if found else (words.splitlines() or [type(error).__name__])[-1][:160]


def _on_nvidia(ptx: str, arch: str) -> tuple[int, int]:
    """Registers a thread and bytes of spill stores, as the assembler reports them."""
    from triton.backends import nvidia

    folder = Path(nvidia.__file__).parent / "bin"
    named = re.search(r"\.target\s+(\w+)", ptx).group(1)
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch, "kernel.ptx")
        file.write_text(ptx, "utf-8")
        assembler = folder / ("ptxas-blackwell" if Target(arch).compute >= 90 else "ptxas")
        command = [assembler, "-v", f"--gpu-name={named}", file, "-o", Path(scratch, "kernel.cubin")]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return int(re.search(r"Used (\d+) registers", said).group(1)), int(
        re.search(r"(\d+) bytes spill stores", said).group(1)
    )


def _on_amd(assembly: str) -> tuple[int, int]:
    return tuple(int(re.search(rf"\.{key}:\s+(\d+)", assembly).group(1)) for key in ("vgpr_count", "vgpr_spill_count"))


def compile_all(archs: Sequence[str], jobs: int, only: str = "") -> dict[str, dict[str, Compiled]]:
    """Variant's name → architecture → what came of it, of those whose name contains `only`."""
    work = []
    for arch in archs:
        work += [(v, arch) for v in variants(Target(arch, TARGETS[arch][1])) if only in v.name]
    table: dict[str, dict[str, Compiled]] = {}
    with ProcessPoolExecutor(jobs) as pool:
        results = pool.map(compile_variant, *zip(*work, strict=True))
        for (variant, arch), result in zip(work, results, strict=True):
            table.setdefault(variant.name, {})[arch] = result
            print(f"{arch:7} {variant.name}: {_cell(result)}", file=sys.stderr, flush=True)
    return table


def failures(table: dict[str, dict[str, Compiled]]) -> list[str]:
    """What must not be: hot kernels that spill, and anything that does not compile."""
    wrong = []
    for name, row in table.items():
        for arch, result in row.items():
            if result.refused:
                wrong.append(f"{arch}: {name}: {result.refused}")
            if result.spilled and name.startswith(HOT):
                wrong.append(f"{arch}: {name}: spills {result.spilled}")
    return wrong


def _cell(result: Compiled) -> str:
    if result.refused:
        return result.refused
    spilled = f", **spills {result.spilled}**" if result.spilled else ""
    matrix = f", {result.matrix}" if result.matrix else ""
    return f"{result.registers} r, {result.shared / 1024:.1f} KiB{matrix}{spilled}"


def _absent(name: str, arch: str) -> str:
    """Why a variant is not launched on an architecture."""
    return "no ¹" if ("e4m3" in name or ", fp8" in name) and not Target(arch).e4m3 else "–"


def page(table: dict[str, dict[str, Compiled]], archs: Iterable[str]) -> str:
    """The table in Markdown."""
    archs = list(archs)
    lines = [
        "# Triton kernels, compiled ahead of time",
        "",
        f"Made by `make kernels` with Triton {triton.__version__}, without a GPU; do not edit. Each cell: registers a thread,",
        "shared memory a program, the matrix instruction in use, and spilled registers if there are any (bytes of spill stores",
        "on NVIDIA, vector registers on AMD). Nothing here says how fast a kernel is. The hot ones, of attention, of the",
        "experts and of packed weights, must not spill.",
        "",
        *TRIED,
        "",
        "| kernel and variant | " + " | ".join(archs) + " |",
        "|---" * (len(archs) + 1) + "|",
    ]
    for name in sorted(table):
        row = table[name]
        cells = [_cell(row[arch]) if arch in row else _absent(name, arch) for arch in archs]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    lines += [
        "",
        "¹ Triton has no fp8 e4m3 before compute capability 8.9: refused when asked for. Pages in e5m2 and int8 work, and so do",
        "4-bit floats, whose scales in e4m3 are read as bits.",
        "",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line: 0 if all is well, 1 if a hot kernel spills or a kernel does not compile."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", action="append", choices=TARGETS, help="one of the targets; all by default")
    parser.add_argument("--only", default="", help="variants whose name contains this")
    parser.add_argument("--out", type=Path, help="where to write the table")
    parser.add_argument("--jobs", type=int, default=1, help="compilers at a time")
    options = parser.parse_args(arguments)
    archs = options.arch or list(TARGETS)
    table = compile_all(archs, options.jobs, options.only)
    if options.out:
        options.out.write_text(page(table, archs), "utf-8")
    wrong = failures(table)
    print("\n".join(wrong) or f"{len(table)} variants compile for {', '.join(archs)}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
