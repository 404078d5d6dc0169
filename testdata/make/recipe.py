"""Models that are stored as a recipe, because their weights would not fit: exact values from integers alone.

README.md has the format. `recipe.py FOLDER OUT` writes FOLDER's model.safetensors into OUT.
"""

import json
import pathlib
import sys

import numpy as np
import torch

from common import save_tensors

MASK = (1 << 64) - 1


def mixed(state):
    """The finaliser of SplitMix64 over u64 values."""
    z = state + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def random_bytes(seed, tensor, count):
    """Signed bytes [count] of tensor number `tensor`."""
    first = np.uint64((seed << 56 | tensor << 40) & MASK)
    words = mixed(first + np.arange(-(-count // 8), dtype=np.uint64))
    return words.astype("<u8").view(np.int8)[:count].astype(np.float32)


def values(entry, seed, number):
    shape, kind = entry["shape"], entry["kind"]
    count = int(np.prod(shape))
    if kind == "random":
        flat = random_bytes(seed, number, count) * np.float32(2.0 ** -entry["shift"])
    elif kind == "random_norm":
        flat = (128 + np.floor(random_bytes(seed, number, count) / 8)) / 128
    elif kind == "zeros":
        flat = np.zeros(count)
    elif kind == "ones":
        flat = np.ones(count)
    elif kind == "identity":
        flat = np.eye(*shape)
    elif kind == "ones_at":
        flat = np.zeros(shape)
        flat[tuple(np.array(entry["at"]).reshape(-1, 2).T)] = 1
    tensor = torch.from_numpy(np.asarray(flat, dtype=np.float32).reshape(shape))
    stored = tensor.to(torch.bfloat16)
    assert torch.equal(stored.float(), tensor), entry["name"]
    return stored


def tensors_of(recipe):
    return {e["name"]: values(e, recipe["seed"], i) for i, e in enumerate(recipe["tensors"])}


def checksum(tensors):
    """FNV-1a over 64-bit little-endian words of all data in the recipe's order."""
    data = b"".join(t.contiguous().view(torch.uint8).numpy().tobytes() for t in tensors.values())
    value = 0xCBF29CE484222325
    for word in np.frombuffer(data + bytes(-len(data) % 8), dtype="<u8").tolist():
        value = (value ^ word) * 0x100000001B3 & MASK
    return f"{value:016x}"


def main(source, target):
    recipe = json.loads((pathlib.Path(source) / "recipe.json").read_text())
    tensors = tensors_of(recipe)
    assert checksum(tensors) == recipe["checksum"]
    pathlib.Path(target).mkdir(parents=True, exist_ok=True)
    save_tensors(pathlib.Path(target) / "model.safetensors", tensors)


if __name__ == "__main__":
    main(*sys.argv[1:])
