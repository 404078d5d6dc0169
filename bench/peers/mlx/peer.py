"""MLX on the CPU as a peer: dense and weight-only linears, and attention."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from common import Unsupported, Work, attention_arrays, linear_arrays, serve  # noqa: E402

import mlx.core as mx  # noqa: E402
import numpy as np  # noqa: E402

GROUP = 128


def main():
    mx.set_default_device(mx.cpu)
    linear = {
        "fp32": lambda request: dense(request, mx.float32),
        "bf16": lambda request: dense(request, mx.bfloat16),
        "w8a16": lambda request: weight_only(request, 8, mx.float16),
        "w8a32": lambda request: weight_only(request, 8, mx.float32),
        "w4a32": lambda request: weight_only(request, 4, mx.float32),
    }
    attention = {
        "fp32": lambda request: scaled_dot_product(request, mx.float32),
        "bf16": lambda request: scaled_dot_product(request, mx.bfloat16),
    }
    serve("mlx", mx.__version__, {"linear": linear, "attention": attention})


def computed(*arrays):
    """The arrays, now and not when they are first needed."""
    mx.eval(*arrays)
    return arrays


def work(weights, expression):
    def call(copy):
        result = expression(*weights[copy])
        mx.eval(result)
        return result

    return Work(call, as_float, len(weights))


def as_float(result):
    return np.array(result.astype(mx.float32))


def dense(request, dtype):
    inputs, weights = linear_arrays(request)
    (inputs,) = computed(mx.array(inputs).astype(dtype))
    copies = [computed(mx.array(weights).astype(dtype)) for _ in range(request.get("copies", 1))]
    return work(copies, lambda weight: inputs @ weight.T)


def weight_only(request, bits, dtype):
    """Affine weights in groups along K, the input as it is.

    The CPU kernel adds up in the type of the input: an answer in bfloat16 would be off by a tenth at K = 2560, so 16
    bits mean float16 here, which this kernel is slow at; in float32 it is both fast and exact.
    """
    inputs, weights = linear_arrays(request)
    if weights.shape[1] % GROUP:
        raise Unsupported(f"K must be a multiple of the group of {GROUP}, got {weights.shape[1]}")
    (inputs,) = computed(mx.array(inputs).astype(dtype))
    copies = [
        computed(*mx.quantize(mx.array(weights).astype(dtype), group_size=GROUP, bits=bits))
        for _ in range(request.get("copies", 1))
    ]

    def expression(weight, scales, biases):
        return mx.quantized_matmul(inputs, weight, scales, biases, transpose=True, group_size=GROUP, bits=bits)

    return work(copies, expression)


def scaled_dot_product(request, dtype):
    """Causal attention of the last rows of the context, heads first."""
    arrays = (mx.array(array.transpose(1, 0, 2)[None].copy()).astype(dtype) for array in attention_arrays(request))
    queries, keys, values = computed(*arrays)
    scale = request["head_size"] ** -0.5

    def call(_):
        result = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=scale, mask="causal")
        mx.eval(result)
        return result

    return Work(call, lambda result: as_float(result)[0].transpose(1, 0, 2).copy())


main()
