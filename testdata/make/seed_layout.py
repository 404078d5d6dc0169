"""Weights in the array layouts of the public W8A8 package for MLX, made with numpy from their description."""

import numpy as np
import torch

from common import folder, generator, save_tensors
from fake_quant import quantise_rows

N, K, M = 24, 256, 5


def matrix(rng):
    """[N, K] with the rows that break careless code: all zero, nearly all zero, one outlier, tiny, a half everywhere."""
    w = rng.standard_normal((N, K)).astype(np.float32) / 16
    w[3] = 0
    w[5] = 0
    w[5, [7, 200]] = [0.5, -0.25]
    w[8, 100] = 40
    w[9] *= np.float32(1e-30)
    w[11] = (np.arange(K) % 127 + 0.5) / 127
    w[11, 0] = -1
    return w


def scale_of(largest, limit):
    scale = (largest / np.float32(limit)).astype(np.float32)
    return np.where(scale == 0, np.float32(1), scale)


def quantise(w, percentile=100):
    """int8 and scales for rows (the last axis) of w; values beyond the percentile are clamped."""
    limit = clip_value(w, percentile)
    scale = scale_of(limit, 127)
    clipped = np.clip(w, -limit[..., None], limit[..., None])
    return np.clip(np.round(clipped / scale[..., None]), -128, 127).astype(np.int8), scale


def quantise_groups(w, size, percentile=100):
    """int8 [N, K] and scale [K / size, N]."""
    q, scale = quantise(w.reshape(N, K // size, size), percentile)
    return q.reshape(N, K), np.ascontiguousarray(scale.T)


def pack_int4(w):
    """Columns of w.T: u8 [K / 2, N], the high nibble is the even k, zero point 8; scale [N]."""
    columns = w.T
    scale = scale_of(np.abs(columns).max(axis=0), 7)
    q = np.clip(np.round(columns / scale) + 8, 0, 15).astype(np.uint8)
    return (q[0::2] << 4) | q[1::2], scale


def clip_value(w, percentile):
    """np.percentile of |w| (linear interpolation) along the last axis; where it is 0, the maximum."""
    largest = np.abs(w).max(axis=-1)
    clip = np.percentile(np.abs(w), percentile, axis=-1).astype(np.float32)
    exact = np.percentile(np.abs(w.astype(np.float64)), percentile, axis=-1)
    assert np.all(np.abs(clip - exact) <= np.spacing(clip)), "one unit in the last place at most"
    return np.where(clip == 0, largest, clip)


def activations(rng):
    x = rng.standard_normal((M, K)).astype(np.float32)
    x[1, 17] = 300
    x[2] = 0
    x[3] *= np.float32(1e-33)
    return x


def products(x, weights, bias):
    """f64 results over the stored f32 scales: what any correct order of sums comes near to."""
    integers, row_scale = (t.double().numpy() for t in quantise_rows(torch.from_numpy(x)))
    out = {}
    for name, (q, scale) in weights.items():
        q, scale = q.astype(np.float64), scale.astype(np.float64)
        for kind, rows, factor in (("w8a8", integers, row_scale), ("w8a16", x.astype(np.float64), 1.0)):
            out[f"y_{name}_{kind}"] = grouped_product(rows, q, scale) * factor + bias
    return out


def grouped_product(rows, q, scale):
    scale = scale[None] if scale.ndim == 1 else scale
    size = K // len(scale)
    parts = [rows[:, g * size : (g + 1) * size] @ q[:, g * size : (g + 1) * size].T * scale[g] for g in range(len(scale))]
    return sum(parts)


def build():
    rng, path = generator(31), folder("seed")
    w, x = matrix(rng), activations(rng)
    bias = rng.standard_normal(N).astype(np.float32)
    out = {"w": w, "x": x, "bias": bias}
    weights = {"channel": quantise(w), "channel_clip99": quantise(w, 99)}
    weights |= {f"group{size}": quantise_groups(w, size) for size in (64, 128)}
    weights["group64_clip99"] = quantise_groups(w, 64, 99)
    for name, (q, scale) in weights.items():
        out |= {f"w_{name}": q, f"scale_{name}": scale}
    packed, scale = pack_int4(w)
    out |= {"w_int4": packed, "scale_int4": scale}
    unpacked = np.empty((K, N), np.int8)
    unpacked[0::2], unpacked[1::2] = (packed >> 4).astype(np.int8) - 8, (packed & 15).astype(np.int8) - 8
    out |= products(x, weights, bias)
    # The packed form takes no bias.
    out["y_int4_w4a8"] = products(x, {"int4": (unpacked.T, scale)}, 0)["y_int4_w8a8"]
    save_tensors(path / "quantise.safetensors", {k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in out.items()})
    a = rng.integers(-128, 128, (7, 133), dtype=np.int8)
    b = rng.integers(-128, 128, (9, 133), dtype=np.int8)
    a[0], b[0], b[1] = -128, -128, 127
    c = a.astype(np.int64) @ b.astype(np.int64).T
    save_tensors(path / "int8_matmul.safetensors", {"a": a, "b": b, "c": c.astype(np.int32)})
