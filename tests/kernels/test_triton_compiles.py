"""The kernels are compiled for GPUs that need not be there: Triton and its assembler are enough.

What is asked of a tile that ships: that it compiles for Hopper, fits the room that a block has, and
keeps its numbers in registers, all but two of a thread's.
"""

import importlib.util
import subprocess
from pathlib import Path

import pytest
import torch

from attnlab.kernels.triton import engine, tiles

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed", allow_module_level=True)
if engine.is_interpreted():
    pytest.skip("Triton interprets here, and compiles nothing", allow_module_level=True)

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from attnlab.kernels.triton.backward import keys_kernel, queries_kernel
from attnlab.kernels.triton.forward import forward_kernel

KERNELS = {"forward": forward_kernel, "queries": queries_kernel, "keys": keys_kernel}
ROOM = 227 << 10  # bytes that a block may have on Hopper
OPTIONAL = {
    *("ranges", "seen_by", "padding", "slopes", "table", "sinks", "cos", "sin"),
    *("slants", "turned_q"),
}
FLOATS = {"stats", "along_rows", "slants", "slopes", "table", "sinks", "cos", "sin"}
KINDS = {
    "plain": set(),
    "turned": {"cos", "sin", "turned_q"},
    "ranges": {"ranges", "seen_by"},
    "padding": {"padding"},
    "slopes": {"slopes", "slants"},
    "a table, a cap, sinks": {"table", "sinks"},
}


def compiled(kernel, tile, width, *, dtype="bf16", kind="plain", capability=90, **more):
    """A kernel for heads of this width, with the optional inputs of a kind."""
    function = KERNELS[kernel]
    padded = triton.next_power_of_2(width)
    constants = {
        "ROWS": tile.rows,
        "COLUMNS": tile.columns,
        "PACK": tile.pack,
        "PARTS": tile.parts,
        "WIDTH": width,
        "WIDE_WIDTH": padded,
        "VALUES": width,
        "WIDE_VALUES": padded,
        "PAIRS": width // 2,
        "INTERLEAVED": False,
        "CAPPED": "cap" in kind,
        "SAFE": True,
        "SPLIT": False,
        "DESCRIBED": tile.described,
        "PRECISION": "ieee",
        **more,
    }
    rows = tile.rows if kernel == "keys" else tile.columns
    loaded = ("q", "grad_out") if kernel == "keys" else ("k", "v")
    types, kept, aligned = {}, {}, {}
    for place, name in enumerate(function.arg_names):
        if name in constants or (name in OPTIONAL and name not in KINDS[kind]):
            types[name], kept[name] = "constexpr", constants.get(name)
        elif tile.described and name in loaded:
            types[name] = f"tensordesc<{dtype}[1, 1, {rows}, {padded}]>"
        elif name in ("scale", "cap"):
            types[name] = "fp32"
        elif name in FLOATS or name in ("ranges", "seen_by", "padding"):
            types[name] = {"ranges": "*i32", "seen_by": "*i32", "padding": "*u8"}.get(name, "*fp32")
        elif name in ("q", "k", "v", "out", "grad_out", "grad_q", "grad_k", "grad_v", "turned_q"):
            types[name], aligned[place,] = f"*{dtype}", [["tt.divisibility", 16]]
        else:
            types[name], aligned[place,] = "i32", [["tt.divisibility", 16]]
            if name in ("heads", "kv_heads", "group", "before", "after", "zero", "table_size"):
                del aligned[place,]
    source = ASTSource(fn=function, signature=types, constexprs=kept, attrs=aligned)
    options = {"num_warps": tile.warps, "num_stages": tile.stages}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def bytes_on_the_stack(built, folder):
    """What did not fit into registers."""
    binary = folder / "kernel.cubin"
    binary.write_bytes(built.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    told = subprocess.run([tool, "-res-usage", binary], capture_output=True, text=True, check=True)
    return int(told.stdout.split("STACK:")[1].split()[0])


SHIPPED = [
    (kernel, width, tile)
    for kernel, rows in tiles.USUAL.items()
    for (width, _), tile in rows.items()
]


@pytest.mark.parametrize(("kernel", "width", "tile"), SHIPPED, ids=str)
def test_a_tile_that_ships_fits(kernel, width, tile, tmp_path):
    built = compiled(kernel, tile, width)
    assert built.metadata.shared <= ROOM
    assert bytes_on_the_stack(built, tmp_path) <= 8
    assert "wgmma" in built.asm["ptx"]  # Hopper's own products


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("width", tiles.WIDE_NUMBERS)
def test_float32_fits(kernel, width):
    built = compiled(kernel, tiles.WIDE_NUMBERS[width], width, dtype="fp32")
    assert built.metadata.shared <= ROOM


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "plain"])
def test_every_kind_of_request_compiles(kernel, kind):
    tile = tiles.chosen(kernel, chip="", width=64, window=256, dtype=torch.bfloat16, group=1)
    assert compiled(kernel, tile, 64, kind=kind).metadata.shared <= ROOM


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_oldest_chip_is_compiled_for(kernel):
    tile = tiles.Tile(64, 64, 4, 2, parts=1, described=False)
    assert compiled(kernel, tile, 80, capability=80).metadata.shared <= 163 << 10


def test_keys_of_few_queries_are_split():
    tile = tiles.Tile(16, 64, 4, 2)
    assert compiled("forward", tile, 128, SPLIT=True).metadata.shared <= ROOM
