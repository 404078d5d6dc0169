"""From a GGUF file to an OpenVINO model: OpenVINO GenAI builds the graph, NNCF compresses its weights."""

import tempfile
from pathlib import Path

import nncf
import numpy as np
import openvino
import openvino_genai
from common import Model, Unsupported
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
from gguf.quants import dequantize
from openvino import opset13 as ops


def model_of(request, settings, eight_bit, last_logits):
    """The model of the request, its weights as they are in the file or as 8-bit integers for each channel.

    The graph computes the logits of every token, as models are exported by default, or of the last alone, as
    OpenVINO's own pipeline rewrites it.
    """
    path = Path(request["model"])
    if not path.is_file():
        raise Unsupported(f"{path}: not a GGUF file")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "model.gguf"
        if eight_bit:
            write_half_precision(path, source)
        else:
            source.symlink_to(path.resolve())
        model = graph_of(source)
        if eight_bit:
            model = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_ASYM)
        if last_logits:
            keep_last_logits(model)
        compiled = openvino.Core().compile_model(model, "CPU", settings)
    return Sequence(compiled.create_infer_request(), request["prompt"]).model()


def graph_of(path):
    """The graph that the pipeline makes of a GGUF file and leaves beside it."""
    openvino_genai.LLMPipeline(path, "CPU", enable_save_ov_model=True)
    return openvino.Core().read_model(path.with_name("openvino_model.xml"))


def write_half_precision(source, target):
    """The same GGUF file with all matrices in float16, so that they are quantised once and not twice."""
    reader = GGUFReader(source)
    writer = GGUFWriter(target, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value = int(LlamaFileType.MOSTLY_F16) if name == "general.file_type" else field.contents()
        element = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(name, value, field.types[0], sub_type=element)
    for tensor in reader.tensors:
        values = tensor.data
        if tensor.tensor_type not in (GGMLQuantizationType.F32, GGMLQuantizationType.F16):
            values = dequantize(values, tensor.tensor_type)
        writer.add_tensor(tensor.name, values if values.ndim == 1 else values.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def keep_last_logits(model):
    """Cuts all rows but the last before the product with the head."""
    node = model.output("logits").get_node()
    while node.get_type_name() != "MatMul":
        node = node.input_value(0).get_node()
    last = ops.slice(node.input_value(0), *(ops.constant([value]) for value in (-1, 2**31 - 1, 1, 1)))
    node.input(0).replace_source_output(last.output(0))
    model.validate_nodes_and_infer_types()


class Sequence:
    """One sequence in the state of one request."""

    def __init__(self, request, prompt):
        self.request, self.prompt = request, prompt
        self.length = 0

    def model(self):
        return Model(self.prefill, lambda token: self.step([token]))

    def prefill(self):
        self.request.reset_state()
        self.length = 0
        return self.step(self.prompt)

    def step(self, tokens):
        start, self.length = self.length, self.length + len(tokens)
        inputs = {
            "input_ids": np.array([tokens], np.int64),
            "attention_mask": np.ones((1, self.length), np.int64),
            "position_ids": np.arange(start, self.length, dtype=np.int64)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        logits = self.request.infer(inputs, share_inputs=True, share_outputs=True)["logits"]
        return int(logits[0, -1].argmax())
