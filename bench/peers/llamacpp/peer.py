"""llama.cpp as a peer: a model from a GGUF file, and ggml's product of one weight matrix."""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from common import Model, Unsupported, linear_arrays, serve  # noqa: E402

import llama_cpp  # noqa: E402

from ggml import TYPES, product  # noqa: E402
from model import FILE_TYPES, Sequence, load, requantize, start  # noqa: E402


def main():
    start()
    linear = {name: lambda request, name=name: product(name, *linear_arrays(request), request.get("copies", 1))
              for name in TYPES}
    model = {"as_is": lambda request: model_of(request, request["model"])}
    for name in FILE_TYPES:
        model[name] = lambda request, name=name: requantized(request, name)
    version = f"{llama_cpp.llama_version().decode()} (llama-cpp-python {llama_cpp.__version__})"
    serve("llama.cpp", version, {"linear": linear, "model": model})


def requantized(request, file_type):
    """The model with all its matrices in one format, made beside the original and removed once it is in memory."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/model.gguf"
        requantize(request["model"], path, file_type)
        return model_of(request, path)


def model_of(request, path):
    if not Path(path).is_file():
        raise Unsupported(f"{path}: not a GGUF file")
    sequence = Sequence(load(path, llama_cpp.LLAMA_LOAD_MODE_NONE), request["context"])
    return Model(lambda: sequence.prefill(request["prompt"]), lambda token: sequence.step([token]))


main()
