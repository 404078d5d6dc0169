"""ONNX Runtime as a peer: one operator for each variant, in a graph of its own."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from common import THREADS, Unsupported, Work, attention_arrays, linear_arrays, quantize_rows, serve  # noqa: E402

import numpy as np  # noqa: E402
import onnxruntime  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

GROUP = 128
MICROSOFT = "com.microsoft"
# The kernel of MatMulNBits that quantises the input to int8 too.
INT8_ACCURACY = 4


def main():
    onnxruntime.set_global_thread_pool_sizes(THREADS, 1)
    linear = {
        "fp32": dense,
        "w8a8_dynamic": dynamic_quantize_matmul,
        "int_mm_float": matmul_integer_to_float,
        "int_mm": matmul_integer,
        "w8a8_group128": lambda request: matmul_n_bits(request, 8),
        "w4a8_group128": lambda request: matmul_n_bits(request, 4),
    }
    attention = {"fp32": group_query_attention}
    serve("onnxruntime", onnxruntime.__version__, {"linear": linear, "attention": attention})


class Graph:
    """One node with its constants, run with inputs and outputs in memory of its own."""

    def __init__(self, node, constants, inputs, outputs):
        self.inputs = inputs
        self.outputs = outputs
        tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
        graph = helper.make_graph([node], "peer", described(inputs), described(outputs), tensors)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        self.bytes = model.SerializeToString()

    def session(self):
        """A session bound to its inputs and outputs; an output that is a cache shares the memory of its input."""
        options = onnxruntime.SessionOptions()
        # Sessions with threads of their own would spin in each other's way.
        options.use_per_session_threads = False
        session = onnxruntime.InferenceSession(self.bytes, options, providers=["CPUExecutionProvider"])
        binding = session.io_binding()
        shared = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in self.inputs.items()}
        for name, value in shared.items():
            binding.bind_ortvalue_input(name, value)
        for name, array in self.outputs.items():
            value = shared.get(PRESENT_OF.get(name)) or onnxruntime.OrtValue.ortvalue_from_numpy(array)
            binding.bind_ortvalue_output(name, value)
        return session, binding

    def work(self, copies, answer):
        sessions = [self.session() for _ in range(copies)]

        def call(copy):
            session, binding = sessions[copy]
            session.run_with_iobinding(binding)
            return binding

        return Work(call, lambda binding: answer(binding.get_outputs()[0].numpy()), copies)


PRESENT_OF = {"present_keys": "past_keys", "present_values": "past_values"}


def described(arrays):
    return [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in arrays.items()
    ]


def linear(request, operator, constants, given, **options):
    """Work of `operator(x, constants...)`; `given` holds x and, unless the result is float32, its type and meaning."""
    result = np.zeros((request["m"], request["n"]), given.get("type", np.float32))
    domain = options.pop("domain", MICROSOFT)
    node = helper.make_node(operator, ["x", *constants], ["y"], domain=domain, **options)
    graph = Graph(node, constants, {"x": given["x"]}, {"y": result})
    return graph.work(request.get("copies", 1), given.get("answer", lambda product: product))


def dense(request):
    inputs, weights = linear_arrays(request)
    return linear(request, "Gemm", {"w": weights}, {"x": inputs}, domain="", transB=1)


def dynamic_quantize_matmul(request):
    """One scale for the whole input, found at each call, and one for each column of the weights."""
    inputs, weights = linear_arrays(request)
    quantized, scales = quantize_rows(weights)
    constants = {"w": quantized.T.copy(), "w_scales": scales.reshape(-1)}
    return linear(request, "DynamicQuantizeMatMul", constants, {"x": inputs})


def quantize_all(values):
    """One scale and zero point for all values, unsigned: (integers, scale, zero point)."""
    low, high = min(values.min(), 0), max(values.max(), 0)
    scale = np.float32((high - low) / 255)
    zero = np.uint8(np.rint(-low / scale))
    return np.clip(np.rint(values / scale) + zero, 0, 255).astype(np.uint8), scale, zero


def matmul_integer_to_float(request):
    """The product with its scaling, without the quantising."""
    inputs, weights = linear_arrays(request)
    quantized, scales = quantize_rows(weights)
    x, x_scale, x_zero = quantize_all(inputs)
    constants = {"w": quantized.T.copy(), "x_scale": x_scale, "w_scales": scales.reshape(-1), "x_zero": x_zero}
    constants = {name: np.asarray(value) for name, value in constants.items()}
    return linear(request, "MatMulIntegerToFloat", constants, {"x": x})


def matmul_integer(request):
    """The int32 product alone."""
    inputs, weights = linear_arrays(request)
    quantized, scales = quantize_rows(weights)
    x, x_scale, x_zero = quantize_all(inputs)
    constants = {"w": quantized.T.copy(), "x_zero": np.asarray(x_zero)}
    all_scales = x_scale * scales.reshape(1, -1)
    given = {"x": x, "type": np.int32, "answer": lambda product: product * all_scales}
    return linear(request, "MatMulInteger", constants, given, domain="")


def matmul_n_bits(request, bits):
    """Weights of 8 or 4 bits in groups along K, input quantised at each call in groups too."""
    inputs, weights = linear_arrays(request)
    n, k = weights.shape
    if k % GROUP:
        raise Unsupported(f"K must be a multiple of the group of {GROUP}, got {k}")
    groups = weights.reshape(n, k // GROUP, GROUP)
    middle = 2 ** (bits - 1)
    scales = np.abs(groups).max(axis=2, keepdims=True) / (middle - 1)
    values = (np.rint(groups / scales) + middle).astype(np.uint8)
    if bits == 4:
        values = values[:, :, 0::2] | values[:, :, 1::2] << 4
    constants = {"w": values, "scales": scales.reshape(n, -1).astype(np.float32)}
    shape = {"K": k, "N": n, "bits": bits, "block_size": GROUP, "accuracy_level": INT8_ACCURACY}
    return linear(request, "MatMulNBits", constants, {"x": inputs}, **shape)


def group_query_attention(request):
    """The newest rows join a cache that holds the earlier ones, in place."""
    queries, keys, values = attention_arrays(request)
    rows, context = len(queries), len(keys)
    inputs = {
        "queries": queries.reshape(1, rows, -1),
        "keys": keys[context - rows:].reshape(1, rows, -1),
        "values": values[context - rows:].reshape(1, rows, -1),
        "past_keys": np.ascontiguousarray(keys.transpose(1, 0, 2)[None]),
        "past_values": np.ascontiguousarray(values.transpose(1, 0, 2)[None]),
        "last": np.array([context - 1], np.int32),
        "total": np.array(context, np.int32),
    }
    outputs = {"y": np.zeros_like(inputs["queries"])}
    outputs |= {present: inputs[past] for present, past in PRESENT_OF.items()}
    node = helper.make_node(
        "GroupQueryAttention",
        list(inputs),
        list(outputs),
        domain=MICROSOFT,
        num_heads=request["heads"],
        kv_num_heads=request["kv_heads"],
    )
    return Graph(node, {}, inputs, outputs).work(1, lambda result: result.reshape(queries.shape))


main()
