"""Models of llama.cpp: loaded from a file, made into another format, and asked for tokens."""

import sys

from common import THREADS, Unsupported

import llama_cpp  # isort: skip: after common, which sets the number of threads
import numpy as np

LOG_LEVEL_ERROR = 4
FILE_TYPES = {"q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0, "q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0}


def start():
    llama_cpp.llama_log_set(quiet, None)
    llama_cpp.llama_backend_init()


@llama_cpp.llama_log_callback
def quiet(level, text, _):
    if level == LOG_LEVEL_ERROR:
        sys.stderr.write(text.decode(errors="replace"))


def requantize(path, out, file_type):
    """Writes the model with all its matrices in one format."""
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.nthread = THREADS
    parameters.ftype = FILE_TYPES[file_type]
    parameters.allow_requantize = True
    parameters.pure = True
    if llama_cpp.llama_model_quantize(str(path).encode(), str(out).encode(), parameters):
        raise Unsupported(f"{path}: llama.cpp could not quantise it anew")


def load(path, mode=llama_cpp.LLAMA_LOAD_MODE_MMAP):
    loading = llama_cpp.llama_model_default_params()
    loading.load_mode = mode
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), loading)
    if not model:
        raise Unsupported(f"{path}: llama.cpp does not load it")
    return model


class Sequence:
    """One sequence in one context; both and the model are freed with it."""

    def __init__(self, model, tokens):
        self.loaded, self.context = model, None
        self.words = llama_cpp.llama_model_get_vocab(model)
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(self.words)
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx = settings.n_batch = tokens
        settings.n_threads = settings.n_threads_batch = THREADS
        self.context = llama_cpp.llama_init_from_model(model, settings)
        if not self.context:
            raise Unsupported(f"llama.cpp makes no context of {tokens} tokens")

    def __del__(self):
        if self.context:
            llama_cpp.llama_free(self.context)
        llama_cpp.llama_model_free(self.loaded)

    def prefill(self, prompt):
        """Reads a prompt into the empty context and gives the token after it."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), False)
        return self.step(prompt)

    def step(self, tokens):
        """Reads the tokens, with logits of the last alone, and gives the greedy one after it."""
        tokens = (llama_cpp.llama_token * len(tokens))(*tokens)
        status = llama_cpp.llama_decode(self.context, llama_cpp.llama_batch_get_one(tokens, len(tokens)))
        if status:
            raise RuntimeError(f"llama_decode of {len(tokens)} tokens gave {status}")
        logits = llama_cpp.llama_get_logits_ith(self.context, -1)
        return int(np.ctypeslib.as_array(logits, (self.vocabulary,)).argmax())

    def tokens(self, text):
        """The tokens of a raw text, control tokens in it as what they are."""
        data = text.encode()
        found = (llama_cpp.llama_token * (len(data) + 2))()
        count = llama_cpp.llama_tokenize(self.words, data, len(data), found, len(found), True, True)
        return found[:count]

    def ends(self, token):
        return llama_cpp.llama_vocab_is_eog(self.words, token)

    def text(self, token):
        piece = (llama_cpp.ctypes.c_char * 256)()
        count = llama_cpp.llama_token_to_piece(self.words, token, piece, len(piece), 0, False)
        return piece.raw[:count].decode(errors="replace")
