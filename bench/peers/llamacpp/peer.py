"""llama.cpp as a peer: a model from a GGUF file, and ggml's product of one weight matrix."""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from common import THREADS, Model, Unsupported, linear_arrays, serve  # noqa: E402

import llama_cpp  # noqa: E402
import numpy as np  # noqa: E402

from ggml import TYPES, product  # noqa: E402

LOG_LEVEL_ERROR = 4


def main():
    llama_cpp.llama_log_set(quiet, None)
    llama_cpp.llama_backend_init()
    linear = {name: lambda request, name=name: product(name, *linear_arrays(request), request.get("copies", 1))
              for name in TYPES}
    model = {
        "as_is": lambda request: model_of(request, request["model"]),
        "q8_0": lambda request: requantized(request, llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0),
        "q4_0": lambda request: requantized(request, llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0),
    }
    version = f"{llama_cpp.llama_version().decode()} (llama-cpp-python {llama_cpp.__version__})"
    serve("llama.cpp", version, {"linear": linear, "model": model})


@llama_cpp.llama_log_callback
def quiet(level, text, _):
    if level == LOG_LEVEL_ERROR:
        sys.stderr.write(text.decode(errors="replace"))


def requantized(request, file_type):
    """The model with all its matrices in one format, made beside the original and removed once it is in memory."""
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.nthread = THREADS
    parameters.ftype = file_type
    parameters.allow_requantize = True
    parameters.pure = True
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/model.gguf"
        if llama_cpp.llama_model_quantize(request["model"].encode(), path.encode(), parameters):
            raise Unsupported(f"{request['model']}: llama.cpp could not quantise it anew")
        return model_of(request, path)


def model_of(request, path):
    if not Path(path).is_file():
        raise Unsupported(f"{path}: not a GGUF file")
    loading = llama_cpp.llama_model_default_params()
    loading.use_mmap = False
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), loading)
    if not model:
        raise Unsupported(f"{path}: llama.cpp does not load it")
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx = settings.n_batch = request["context"]
    settings.n_threads = settings.n_threads_batch = THREADS
    context = llama_cpp.llama_init_from_model(model, settings)
    if not context:
        llama_cpp.llama_model_free(model)
        raise Unsupported(f"{path}: no context of {request['context']} tokens")
    return Sequence(model, context, request["prompt"]).model()


class Sequence:
    """One sequence in one context; both are freed with it."""

    def __init__(self, model, context, prompt):
        self.loaded, self.context = model, context
        self.prompt = (llama_cpp.llama_token * len(prompt))(*prompt)
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))

    def __del__(self):
        llama_cpp.llama_free(self.context)
        llama_cpp.llama_model_free(self.loaded)

    def model(self):
        return Model(self.prefill, lambda token: self.step((llama_cpp.llama_token * 1)(token)))

    def prefill(self):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), False)
        return self.step(self.prompt)

    def step(self, tokens):
        """Reads the tokens, with logits of the last alone, and gives the greedy one after it."""
        status = llama_cpp.llama_decode(self.context, llama_cpp.llama_batch_get_one(tokens, len(tokens)))
        if status:
            raise RuntimeError(f"llama_decode of {len(tokens)} tokens gave {status}")
        logits = llama_cpp.llama_get_logits_ith(self.context, -1)
        return int(np.ctypeslib.as_array(logits, (self.vocabulary,)).argmax())


main()
