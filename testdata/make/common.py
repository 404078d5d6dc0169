"""What every fixture script shares: paths, seeded numbers, files whose bytes do not depend on the run."""

import hashlib
import json
import os
import pathlib

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch
from safetensors.torch import save_file

ROOT = pathlib.Path(__file__).resolve().parent.parent
MANIFEST = ROOT / "MANIFEST.sha256"
DIFFERENCES = ROOT / "DIFFERENCES.json"

# One thread, so that the order of every float sum is the same in every run.
torch.set_num_threads(1)
torch.set_grad_enabled(False)


def folder(*parts):
    path = ROOT.joinpath(*parts)
    path.mkdir(parents=True, exist_ok=True)
    return path


def write_json(path, value):
    text = json.dumps(value, indent=2, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def save_tensors(path, tensors):
    """One metadata key only: the order of several is not fixed."""
    tensors = {k: torch.as_tensor(v).clone().contiguous() for k, v in tensors.items()}
    save_file(tensors, path, metadata={"format": "pt"})


def generator(seed):
    return np.random.Generator(np.random.PCG64(seed))


def normal(rng, shape, deviation):
    return torch.from_numpy((rng.standard_normal(shape) * deviation).astype(np.float32))


def record_difference(name, margin, noise, differences):
    """Adds the distances of fixture `name` to DIFFERENCES.json."""
    known = json.loads(DIFFERENCES.read_text()) if DIFFERENCES.exists() else {}
    rounding = {"rounding_margin": float(f"{margin:.3g}"), "rounding_noise": float(f"{noise:.3g}")}
    known[name] = rounding | differences
    write_json(DIFFERENCES, dict(sorted(known.items())))
    worst = max(v["max_abs"] / v["largest"] for v in differences.values())
    print(f"{name}: f32 within {worst:.1e} of f64, rounding margin {margin:.1e}, noise {noise:.1e}", flush=True)


def difference(tested, exact):
    """Largest |f32 - f64| beside the largest value, rounded so that the file stays readable."""
    apart = (tested.double() - exact.double()).abs().max().item()
    return {"max_abs": float(f"{apart:.3g}"), "largest": float(f"{exact.abs().max().item():.4g}")}


def manifest_lines():
    skip = {MANIFEST.name, "README.md"}
    files = [p for p in ROOT.rglob("*") if p.is_file() and p.name not in skip and "make" not in p.relative_to(ROOT).parts]
    names = sorted(p.relative_to(ROOT).as_posix() for p in files if p.suffix != ".rs")
    return [f"{hashlib.sha256((ROOT / n).read_bytes()).hexdigest()}  {n}" for n in names]
