"""OpenVINO as a peer: a linear in several forms, and a model from a GGUF file."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from common import THREADS, Unsupported, Work, linear_arrays, quantize_rows, serve  # noqa: E402

import numpy as np  # noqa: E402
import openvino  # noqa: E402
from openvino import opset13 as ops  # noqa: E402

from model import model_of  # noqa: E402

GROUP = 128


def main():
    linear = {
        "fp32": lambda request: compiled(request, dense, precision="f32"),
        "bf16": lambda request: compiled(request, dense, precision="bf16"),
        "w8a8_dynamic": lambda request: compiled(request, eight_bit, group=request["k"]),
        "w8a8_dynamic128": lambda request: compiled(request, eight_bit, group=GROUP),
        "w8a8_static": lambda request: compiled(request, static_eight_bit),
        "w8a16": lambda request: compiled(request, eight_bit, group=0),
        "w4a8_group128": lambda request: compiled(request, four_bit, group=GROUP),
        "w4a16": lambda request: compiled(request, four_bit, group=0),
    }
    model = {
        "int8": lambda request: model_of(request, settings(), eight_bit=True, last_logits=False),
        "int8_last": lambda request: model_of(request, settings(), eight_bit=True, last_logits=True),
        "as_is": lambda request: model_of(request, settings(), eight_bit=False, last_logits=False),
        "as_is_last": lambda request: model_of(request, settings(), eight_bit=False, last_logits=True),
    }
    serve("openvino", openvino.__version__, {"linear": linear, "model": model})


def settings(precision=None, group=None):
    """What the plugin is told; what is left out it chooses itself."""
    chosen = {"INFERENCE_NUM_THREADS": THREADS, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"}
    if precision:
        chosen["INFERENCE_PRECISION_HINT"] = precision
    if group is not None:
        chosen["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = group
    return chosen


def compiled(request, weights_of, **options):
    """Work of the input times what `weights_of(x, inputs, weights)` builds: the pair of factors in the graph."""
    inputs, weights = linear_arrays(request)
    x = ops.parameter(inputs.shape, np.float32)
    product = ops.matmul(*weights_of(x, inputs, weights), False, True)
    model = openvino.Model([product], [x])

    def infer_request():
        made = openvino.Core().compile_model(model, "CPU", settings(**options)).create_infer_request()
        made.set_input_tensor(openvino.Tensor(inputs.copy()))
        return made

    copies = [infer_request() for _ in range(request.get("copies", 1))]

    def call(copy):
        return copies[copy].infer(share_outputs=True)[0]

    return Work(call, np.copy, len(copies))


def dense(x, _, weights):
    return x, ops.constant(weights)


def eight_bit(x, _, weights):
    """Integers with one scale for each row; whether the input is quantised too is up to the plugin's settings."""
    integers, scales = quantize_rows(weights)
    return x, ops.multiply(ops.convert(ops.constant(integers), "f32"), ops.constant(scales))


def static_eight_bit(x, inputs, weights):
    """The input's range is a constant of the graph, found from this very input: a calibration that fits perfectly."""
    limit = np.abs(inputs).max()
    low, high = (ops.constant(np.float32(value)) for value in (-limit * 128 / 127, limit))
    return ops.fake_quantize(x, low, high, low, high, 256), eight_bit(x, inputs, weights)[1]


def four_bit(x, _, weights):
    n, k = weights.shape
    if k % GROUP:
        raise Unsupported(f"K must be a multiple of the group of {GROUP}, got {k}")
    groups = weights.reshape(n, k // GROUP, GROUP)
    scales = np.abs(groups).max(axis=2, keepdims=True) / 7
    values = (np.rint(groups / scales) + 8).astype(np.uint8)
    integers = ops.constant(values, openvino.Type.u4)
    middle = ops.constant([8], openvino.Type.u4)
    centered = ops.subtract(ops.convert(integers, "f16"), ops.convert(middle, "f16"))
    scaled = ops.multiply(centered, ops.constant(scales.astype(np.float16)))
    return x, ops.convert(ops.reshape(scaled, [n, k], False), "f32")


main()
