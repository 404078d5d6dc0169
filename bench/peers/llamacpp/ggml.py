"""The few functions of ggml that a product of one weight matrix needs, by way of ctypes."""

import ctypes
from ctypes import CFUNCTYPE, POINTER, Structure, c_bool, c_char_p, c_float, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path

import llama_cpp
import numpy as np
from common import THREADS, Work

# Number of each format in ggml. The input of a quantised product is quantised in groups of 32 at each call.
TYPES = {"fp32": 0, "bf16": 30, "q8_0": 8, "q4_0": 2}
F32 = TYPES["fp32"]
# Room for the descriptions of a graph beside its tensors.
OVERHEAD_BYTES = 1 << 20


class InitParameters(Structure):
    _fields_ = [("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool)]


class Plan(Structure):
    _fields_ = [
        ("work_size", c_size_t),
        ("work_data", c_void_p),
        ("n_threads", c_int),
        ("threadpool", c_void_p),
        ("abort_callback", c_void_p),
        ("abort_callback_data", c_void_p),
        ("use_ref", c_bool),
    ]


def function(library, name, result, *arguments):
    found = getattr(library, name)
    found.restype, found.argtypes = result, arguments
    return found


folder = Path(llama_cpp.__file__).parent / "lib"
base, cpu = (ctypes.CDLL(str(folder / f"libggml-{part}.so")) for part in ("base", "cpu"))
init = function(base, "ggml_init", c_void_p, InitParameters)
free = function(base, "ggml_free", None, c_void_p)
row_size = function(base, "ggml_row_size", c_size_t, c_int, c_int64)
tensor_2d = function(base, "ggml_new_tensor_2d", c_void_p, c_void_p, c_int, c_int64, c_int64)
mul_mat = function(base, "ggml_mul_mat", c_void_p, c_void_p, c_void_p, c_void_p)
new_graph = function(base, "ggml_new_graph", c_void_p, c_void_p)
expand = function(base, "ggml_build_forward_expand", None, c_void_p, c_void_p)
data = function(base, "ggml_get_data", c_void_p, c_void_p)
quantize = function(
    base, "ggml_quantize_chunk", c_size_t, c_int, POINTER(c_float), c_void_p, c_int64, c_int64, c_int64, c_void_p
)
plan_of = function(cpu, "ggml_graph_plan", Plan, c_void_p, c_int, c_void_p)
compute = function(cpu, "ggml_graph_compute", c_int, c_void_p, POINTER(Plan))
start = function(cpu, "ggml_cpu_init", None)
cpu_registry = function(cpu, "ggml_backend_cpu_reg", c_void_p)
plain_memory = function(base, "ggml_backend_cpu_buffer_type", c_void_p)
device_of = function(base, "ggml_backend_reg_dev_get", c_void_p, c_void_p, c_size_t)
address_of = function(base, "ggml_backend_reg_get_proc_address", c_void_p, c_void_p, c_char_p)
supports = function(base, "ggml_backend_dev_supports_op", c_bool, c_void_p, c_void_p)
allocate = function(base, "ggml_backend_alloc_ctx_tensors_from_buft", c_void_p, c_void_p, c_void_p)
set_tensor = function(base, "ggml_backend_tensor_set", None, c_void_p, c_void_p, c_size_t, c_size_t)
free_buffer = function(base, "ggml_backend_buffer_free", None, c_void_p)


def product(name, inputs, weights, copies):
    """Work of `inputs` times `weights` in the format of that name."""
    start()
    graphs = [Product(TYPES[name], inputs, weights) for _ in range(copies)]

    def call(copy):
        graphs[copy].run()
        return graphs[copy]

    return Work(call, Product.answer, copies)


class Product:
    """The weights in a buffer of their own; the input, the result and the graph in a context."""

    def __init__(self, kind, inputs, weights):
        (m, k), n = inputs.shape, len(weights)
        self.shape = m, n
        self.context = init(InitParameters(4 * m * (k + n) + OVERHEAD_BYTES, None, False))
        right = tensor_2d(self.context, F32, k, m)
        ctypes.memmove(data(right), np.ascontiguousarray(inputs).ctypes.data, inputs.nbytes)
        self.result = mul_mat(self.context, self.place_weights(kind, weights, m), right)
        self.graph = new_graph(self.context)
        expand(self.graph, self.result)
        self.plan = plan_of(self.graph, THREADS, None)
        self.scratch = ctypes.create_string_buffer(max(self.plan.work_size, 1))
        self.plan.work_data = ctypes.cast(self.scratch, c_void_p)

    def place_weights(self, kind, weights, m):
        """The weights where the device repacks them, as a model's loader does, or else in plain memory."""
        n, k = weights.shape
        registry = cpu_registry()
        device = device_of(registry, 0)
        for memory in [*repacking_memories(registry, device), plain_memory()]:
            self.weights_context = init(InitParameters(OVERHEAD_BYTES, None, True))
            left = tensor_2d(self.weights_context, kind, k, n)
            self.buffer = allocate(self.weights_context, memory)
            # Whether the memory suits the product is asked with a product that is never computed.
            trial = mul_mat(self.weights_context, left, tensor_2d(self.weights_context, F32, k, m))
            if supports(device, trial):
                break
            self.free_weights()
        packed = np.empty(row_size(kind, k) * n, np.uint8)
        values = np.ascontiguousarray(weights).ctypes.data_as(POINTER(c_float))
        quantize(kind, values, packed.ctypes.data, 0, n, k, None)
        set_tensor(left, packed.ctypes.data, 0, packed.nbytes)
        return left

    def free_weights(self):
        free_buffer(self.buffer)
        free(self.weights_context)

    def __del__(self):
        self.free_weights()
        free(self.context)

    def run(self):
        status = compute(self.graph, self.plan)
        if status:
            raise RuntimeError(f"ggml_graph_compute gave {status}")

    def answer(self):
        values = ctypes.cast(data(self.result), POINTER(c_float))
        return np.ctypeslib.as_array(values, self.shape).copy()


def repacking_memories(registry, device):
    """The device's further kinds of memory, as a list that ends with a null pointer gives them."""
    address = address_of(registry, b"ggml_backend_dev_get_extra_bufts")
    if not address:
        return
    kinds = CFUNCTYPE(POINTER(c_void_p), c_void_p)(address)(device)
    index = 0
    while kinds and kinds[index]:
        yield kinds[index]
        index += 1
