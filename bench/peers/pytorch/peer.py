"""PyTorch as a peer: dense, dynamically quantised and weight-only linears, and attention."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from common import THREADS, Unsupported, Work, attention_arrays, linear_arrays, serve  # noqa: E402

import torch  # noqa: E402
from torch.nn import functional  # noqa: E402

GROUP = 128


def main():
    torch.set_num_threads(THREADS)
    torch.set_grad_enabled(False)
    linear = {
        "fp32": lambda request: dense(request, torch.float32),
        "bf16": lambda request: dense(request, torch.bfloat16),
        "fp32_packed": lambda request: dense_packed(request, torch.float32),
        "bf16_packed": lambda request: dense_packed(request, torch.bfloat16),
        "w8a8_dynamic": lambda request: composed(request, w8a8),
        "w8a8_compiled": lambda request: composed(request, torch.compile(w8a8, dynamic=False)),
        "w8a8_ao_onednn": lambda request: quantized_module(request, "onednn"),
        "w8a8_ao_x86": lambda request: quantized_module(request, "x86"),
        "int_mm": product_alone,
        "w8a16": weight_only_int8,
        "w4a16": weight_only_int4,
    }
    attention = {
        "fp32": lambda request: scaled_dot_product(request, torch.float32),
        "bf16": lambda request: scaled_dot_product(request, torch.bfloat16),
    }
    serve("pytorch", torch.__version__, {"linear": linear, "attention": attention})


def tensors(request):
    return (torch.from_numpy(array) for array in linear_arrays(request))


def copies(request, make):
    """`make()` once for each set of weights; each has its own memory."""
    return [make() for _ in range(request.get("copies", 1))]


def as_float(result):
    return result.float().numpy()


def work(weights, call, answer=as_float):
    return Work(lambda copy: call(weights[copy]), answer, len(weights))


def dense(request, dtype):
    inputs, weights = (tensor.to(dtype) for tensor in tensors(request))
    return work(copies(request, weights.clone), lambda weight: functional.linear(inputs, weight))


def dense_packed(request, dtype):
    """The operator that a frozen, compiled model calls: weights in oneDNN's own layout."""
    inputs, weights = (tensor.to(dtype) for tensor in tensors(request))
    pack = torch.ops.mkldnn._reorder_linear_weight
    packed = copies(request, lambda: pack(weights, inputs.shape[0]))
    call = torch.ops.mkldnn._linear_pointwise
    return work(packed, lambda weight: call(inputs, weight, None, "none", [], ""))


def rows_to_int8(values):
    scales = values.abs().amax(dim=1, keepdim=True).clamp_min(1e-30) / 127
    return (values / scales).round_().to(torch.int8), scales


def w8a8(inputs, weight, weight_scales):
    """Quantise each row, multiply, scale back."""
    quantized, scales = rows_to_int8(inputs)
    return torch._int_mm(quantized, weight.t()).float().mul_(scales).mul_(weight_scales)


def composed(request, function):
    inputs, weights = tensors(request)
    quantized, scales = rows_to_int8(weights)
    scales = scales.reshape(1, -1)
    return work(copies(request, quantized.clone), lambda weight: function(inputs, weight, scales))


def product_alone(request):
    """The int8 product without quantising the input or scaling the result."""
    inputs, weights = tensors(request)
    left, left_scales = rows_to_int8(inputs)
    right, right_scales = rows_to_int8(weights)
    scales = left_scales * right_scales.reshape(1, -1)
    result = torch.empty(left.shape[0], right.shape[0], dtype=torch.int32)
    return work(
        copies(request, right.clone),
        lambda weight: torch._int_mm(left, weight.t(), out=result),
        lambda product: as_float(product.float() * scales),
    )


def quantized_module(request, engine):
    """torch.ao's dynamic linear: one scale for the whole input, one for each row of the weights."""
    if engine not in torch.backends.quantized.supported_engines:
        raise Unsupported(f"this build has no quantised engine {engine}")
    torch.backends.quantized.engine = engine
    inputs, weights = tensors(request)
    _, scales = rows_to_int8(weights)
    zeros = torch.zeros(len(scales), dtype=torch.int64)
    # 7 bits where the instruction adds pairs in 16 bits and may saturate.
    narrow = engine == "x86" and not torch.cpu._is_vnni_supported()
    quantized = torch.quantize_per_channel(weights, scales.reshape(-1).double(), zeros, 0, torch.qint8)
    packed = copies(request, lambda: torch.ops.quantized.linear_prepack(quantized, None))
    call = torch.ops.quantized.linear_dynamic
    return work(packed, lambda weight: call(inputs, weight, narrow))


def weight_only_int8(request):
    inputs, weights = tensors(request)
    quantized, scales = rows_to_int8(weights)
    inputs, scales = inputs.bfloat16(), scales.reshape(-1).bfloat16()
    call = torch._weight_int8pack_mm
    return work(copies(request, quantized.clone), lambda weight: call(inputs, weight, scales))


def weight_only_int4(request):
    """Unsigned 4 bit in groups along K: value = (q - 8) * scale + zero, with zero = 0 here."""
    inputs, weights = tensors(request)
    n, k = weights.shape
    if k % GROUP or n % 16:
        raise Unsupported(f"4-bit weights need K in groups of {GROUP} and N in tiles of 16, got [{n}, {k}]")
    groups = weights.reshape(n, k // GROUP, GROUP)
    scales = groups.abs().amax(dim=2, keepdim=True).clamp_min(1e-30) / 7
    values = ((groups / scales).round() + 8).to(torch.int32).reshape(n, k)
    scales = scales.reshape(n, k // GROUP).t()
    scales_and_zeros = torch.stack([scales, torch.zeros_like(scales)], dim=2).contiguous().bfloat16()
    inputs = inputs.bfloat16()
    packed = copies(request, lambda: torch._convert_weight_to_int4pack_for_cpu(values, 1))
    call = torch._weight_int4pack_mm_for_cpu
    return work(packed, lambda weight: call(inputs, weight, GROUP, scales_and_zeros))


def scaled_dot_product(request, dtype):
    """Causal attention of the last rows of the context, heads first as the library likes it."""
    arrays = (torch.from_numpy(array) for array in attention_arrays(request))
    queries, keys, values = (tensor.transpose(0, 1).unsqueeze(0).to(dtype).contiguous() for tensor in arrays)
    rows, context = queries.shape[2], keys.shape[2]
    grouped = queries.shape[1] != keys.shape[1]
    mask = None
    if 1 < rows < context:
        mask = torch.ones(rows, context, dtype=torch.bool).tril(context - rows)
    whole = rows == context

    def call(_):
        return functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=whole, enable_gqa=grouped
        )

    return Work(call, lambda result: as_float(result[0].transpose(0, 1).contiguous()))


main()
