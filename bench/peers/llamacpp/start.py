"""From a GGUF file to the first token after a prompt, by llama.cpp, as one JSON object.

    venv/bin/python start.py FILE.gguf PROMPT [TOKENS]           PROMPT is raw text
    venv/bin/python start.py --requantize FILE.gguf OUT.gguf     the same model in Q8_0

The clock starts once Python and the library are in memory: a program in C would not wait for the former.
"""

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from common import THREADS, keep_standard_output  # noqa: E402

import llama_cpp  # noqa: E402

from model import Sequence, load, requantize, start  # noqa: E402

CONTEXT = 256


def main():
    replies = keep_standard_output()
    if sys.argv[1] == "--requantize":
        start()
        requantize(*sys.argv[2:4], "q8_0")
        return
    count = int(sys.argv[3]) if sys.argv[3:] else 1
    begin = time.perf_counter()
    start()
    sequence = Sequence(load(sys.argv[1]), CONTEXT)
    loaded = time.perf_counter()
    prompt = sequence.tokens(sys.argv[2])
    tokens = [sequence.prefill(prompt)]
    first = time.perf_counter()
    while len(tokens) < count and not sequence.ends(tokens[-1]):
        tokens.append(sequence.step(tokens[-1:]))
    replies.write(json.dumps({
        "version": llama_cpp.llama_version().decode(),
        "threads": THREADS,
        "seconds": first - begin,
        "load_seconds": loaded - begin,
        "first_token_seconds": first - loaded,
        "prompt_tokens": len(prompt),
        "text": "".join(map(sequence.text, tokens)),
    }) + "\n")


main()
