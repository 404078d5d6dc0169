"""Drives a peer through the protocol with small shapes and compares its answers with numpy.

    python selftest.py "COMMAND OF THE PEER" [--model FILE.gguf] [--prompt TOKENS] [--shape M,N,K] [--only TEXT]

Prints one line for each variant: the relative error (largest difference by largest value) or, for a model, the next
token, and the fastest of a few runs. Ends with 1 if an answer is wrong or a peer breaks the protocol.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

# Largest relative error that is no bug. Eight bits for the whole input, or four for the weights, are that coarse on
# Gaussian values; single precision is not.
TOLERANCES = {"fp32": 1e-5, "f32": 1e-5, "bf16": 0.02}
QUANTIZED_TOLERANCE = 0.05
FOUR_BIT_TOLERANCE = 0.2
PROMPT = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]
COPIES = 3
# (rows, context): the last rows of a longer context, one row, a whole prompt.
ATTENTION_SIZES = (5, 37), (1, 33), (16, 16)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command")
    parser.add_argument("--model")
    parser.add_argument("--prompt", type=int, default=len(PROMPT), help="tokens of the prompt for the model")
    parser.add_argument("--shape", default="7,256,384")
    parser.add_argument("--only", default="", help="variants whose name holds this text")
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        peer = Peer(options.command)
        checks = [check(peer, options, Path(folder), work, variant) for work, variant in peer.variants()]
        failures = checks.count(False)
        failures += peer.end() != 0
    print(f"{failures} failed")
    sys.exit(failures > 0)


class Peer:
    def __init__(self, command):
        environment = {**os.environ, "CIDER_PEER_THREADS": os.environ.get("CIDER_PEER_THREADS", "2")}
        self.process = subprocess.Popen(
            shlex.split(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.hello = self.reply()
        print(f"{self.hello['peer']} {self.hello['version']}, {self.hello['threads']} threads")

    def variants(self):
        return [(work, variant) for work, names in self.hello["variants"].items() for variant in names]

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self.reply()

    def reply(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"the peer ended with status {self.process.wait()}")
        return json.loads(line)

    def end(self):
        self.process.stdin.close()
        return self.process.wait(timeout=30)


def check(peer, options, folder, work, variant):
    """Prints the line of one variant; false if it is wrong."""
    name = f"{work:<9} {variant:<22}"
    if options.only not in variant:
        return True
    if work == "model":
        return check_model(peer, options, name, variant)
    if work == "linear":
        cases = [make_linear(options, folder)]
    else:
        cases = [make_attention(rows, context, folder) for rows, context in ATTENTION_SIZES]
    return all([check_case(peer, options.repetitions, name, variant, case) for case in cases])


def check_case(peer, repetitions, name, variant, case):
    request, expected, operations = case
    reply = peer.ask(op="prepare", variant=variant, **request)
    if "ready" not in reply:
        print(name, reply)
        return refused(reply)
    answer = np.fromfile(request["out"], "<f4").reshape(expected.shape)
    error = float(np.abs(answer - expected).max() / np.abs(expected).max())
    seconds = peer.ask(op="run", repetitions=repetitions)["seconds"]
    right = error <= tolerance(variant) and len(seconds) == repetitions and min(seconds) > 0
    rate = operations / min(seconds) / 1e12
    print(f"{name} error {error:.2e}  {min(seconds) * 1e3:9.3f} ms  {rate:6.3f} TOPS {'' if right else '  WRONG'}")
    return right


def refused(reply):
    """Whether the peer said on purpose that it cannot do this, rather than failed at it."""
    return not reply.get("unsupported", "failed").startswith("failed")


def tolerance(variant):
    if variant.startswith(("w4", "q4")):
        return FOUR_BIT_TOLERANCE
    return TOLERANCES.get(variant.split("_")[0], QUANTIZED_TOLERANCE)


def check_model(peer, options, name, variant):
    if options.model is None:
        print(name, "skipped: no --model")
        return True
    prompt = (PROMPT * (options.prompt // len(PROMPT) + 1))[:options.prompt]
    request = {"model": options.model, "prompt": prompt, "context": 2048}
    reply = peer.ask(op="prepare", work="model", variant=variant, **request)
    if "ready" not in reply:
        print(name, reply)
        return refused(reply)
    prefill = peer.ask(op="run", phase="prefill", repetitions=2)["seconds"]
    decode = peer.ask(op="run", phase="decode", tokens=8)["seconds"]
    right = isinstance(reply["next"], int) and len(prefill) == 2 and len(decode) == 8
    speed = f"prefill {options.prompt / min(prefill):7.0f} tok/s  decode {1 / np.median(decode):7.1f} tok/s"
    print(f"{name} next {reply['next']:>6}  {speed} {'' if right else '  WRONG'}")
    return right


def make_linear(options, folder):
    m, n, k = map(int, options.shape.split(","))
    random = np.random.default_rng(1)
    inputs = random.standard_normal((m, k), dtype=np.float32)
    weights = random.standard_normal((n, k), dtype=np.float32) * np.float32(0.02)
    paths = save(folder / "linear", input=inputs, weights=weights)
    expected = inputs.astype(np.float64) @ weights.T.astype(np.float64)
    return {"work": "linear", "m": m, "n": n, "k": k, "copies": COPIES, **paths}, expected, 2 * m * n * k


def make_attention(rows, context, folder):
    heads, kv_heads, size = 4, 2, 64
    random = np.random.default_rng(2)
    queries = random.standard_normal((rows, heads, size), dtype=np.float32)
    keys, values = (random.standard_normal((context, kv_heads, size), dtype=np.float32) for _ in range(2))
    paths = save(folder / f"attention-{rows}", queries=queries, keys=keys, values=values)
    shape = {"work": "attention", "rows": rows, "context": context, "heads": heads, "kv_heads": kv_heads, "head_size": size}
    return {**shape, **paths}, attention(queries, keys, values), 4 * rows * context * heads * size


def attention(queries, keys, values):
    rows, heads, size = queries.shape
    context, kv_heads, _ = keys.shape
    keys, values = (np.repeat(array.astype(np.float64), heads // kv_heads, axis=1) for array in (keys, values))
    scores = np.einsum("rhd,chd->hrc", queries.astype(np.float64), keys) / np.sqrt(size)
    hidden = np.arange(context)[None, :] > np.arange(context - rows, context)[:, None]
    scores[:, hidden] = -np.inf
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    return np.einsum("hrc,chd->rhd", weights / weights.sum(axis=2, keepdims=True), values)


def save(folder, **arrays):
    """Writes each array as raw little-endian float32: its path by name, and a fresh path for the answer."""
    folder.mkdir(exist_ok=True)
    paths = {name: str(folder / f"{name}.f32") for name in [*arrays, "out"]}
    Path(paths["out"]).unlink(missing_ok=True)
    for name, array in arrays.items():
        array.astype("<f4").tofile(paths[name])
    return paths


if __name__ == "__main__":
    main()
