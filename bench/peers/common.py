"""The half of the protocol that every Python peer shares; README.md says what goes over the pipe.

A peer imports this module before its library, since the number of threads has to be in the environment by then.
It then calls `serve` with one function for each variant: the function takes the request and gives a `Work` (or a
`Model`), or raises `Unsupported` with the reason.
"""

import ctypes
import json
import os
import sys
import time
from dataclasses import dataclass
from typing import Any, Callable

THREADS = int(os.environ.get("CIDER_PEER_THREADS", "2"))
for name in ("OMP", "MKL", "OPENBLAS", "NUMEXPR", "VECLIB"):
    os.environ[f"{name}_NUM_THREADS"] = str(THREADS)
# A kernel that was forced from outside (an older one, as a rule) would be an unfair peer.
for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"):
    os.environ.pop(name, None)

import numpy as np  # noqa: E402

# Threads that wait in a busy loop end that loop within this time, so that they do not take the cores from whoever
# is measured next.
SETTLE_SECONDS = 0.05


class Unsupported(Exception):
    """This peer cannot do what was asked; the text says why."""


@dataclass
class Work:
    """A linear layer or an attention, ready to run.

    `call(copy)` is what is timed, with the weights of that copy; it returns when the result is there.
    `answer(result)` makes float32 values of what `call` gave and is never timed.
    """

    call: Callable[[int], Any]
    answer: Callable[[Any], np.ndarray]
    copies: int = 1


@dataclass
class Model:
    """A language model with a prompt.

    `prefill()` reads the prompt into an empty cache and gives the next greedy token; `decode(token)` reads one
    token more and gives the one after it.
    """

    prefill: Callable[[], int]
    decode: Callable[[int], int]


def read(path, *shape):
    """The float32 file at `path`, which must hold exactly `shape`."""
    return np.fromfile(path, dtype="<f4").reshape(shape)


def linear_arrays(request):
    """Input `[M, K]` and weights `[N, K]` of a request."""
    m, n, k = (request[key] for key in "mnk")
    return read(request["input"], m, k), read(request["weights"], n, k)


def attention_arrays(request):
    """Queries `[R, H, D]`, keys and values `[C, G, D]` of a request."""
    size = request["head_size"]
    cache = (request["context"], request["kv_heads"], size)
    queries = read(request["queries"], request["rows"], request["heads"], size)
    return queries, read(request["keys"], *cache), read(request["values"], *cache)


def quantize_rows(values):
    """Symmetric int8 for each row: (integers, scales `[rows, 1]`)."""
    scales = np.abs(values).max(axis=1, keepdims=True) / 127
    scales[scales == 0] = 1
    return np.rint(values / scales).astype(np.int8), scales.astype(np.float32)


def serve(name, version, makers):
    """Announces the peer, then answers requests until standard input ends.

    `makers[work][variant]` makes the `Work` or `Model` of a request. The arguments of the command, if there are any,
    are the variants that the peer shall have.
    """
    makers = chosen(makers, sys.argv[1:])
    replies = keep_standard_output()

    def say(reply):
        replies.write(json.dumps(reply) + "\n")
        replies.flush()

    variants = {work: list(makers_of_work) for work, makers_of_work in makers.items()}
    say({"peer": name, "version": version, "threads": THREADS, "variants": variants})
    work = None
    for line in sys.stdin:
        try:
            request = json.loads(line)
            if request["op"] == "prepare":
                work = None  # two sets of weights at once may be more than the memory holds
                work, reply = prepare(makers, request)
            elif work is None:
                reply = {"error": "run before a prepare that worked"}
            else:
                reply = {"seconds": run(work, request)}
                time.sleep(SETTLE_SECONDS)
        except Unsupported as reason:
            reply = {"unsupported": str(reason)}
        except Exception as error:
            # A library that refuses in its own words; the first line says what, the rest is its stack.
            text = f"failed: {type(error).__name__}: {first_line(error)}"
            reply = {"unsupported" if work is None else "error": text}
        say(reply)


def chosen(makers, names):
    if unknown := set(names) - {variant for variants in makers.values() for variant in variants}:
        sys.exit(f"no such variants: {' '.join(sorted(unknown))}")
    return {
        work: {variant: maker for variant, maker in variants.items() if not names or variant in names}
        for work, variants in makers.items()
    }


def first_line(error):
    return (str(error).strip().splitlines() or [""])[0][:300]


def prepare(makers, request):
    maker = makers.get(request["work"], {}).get(request["variant"])
    if maker is None:
        raise Unsupported(f"no {request['work']} variant {request['variant']}")
    keep_freed_memory(False)
    work = maker(request)
    keep_freed_memory(True)
    if isinstance(work, Model):
        return work, {"ready": True, "next": work.prefill()}
    result = None
    # Each copy once: the first call of a set of weights often packs them.
    for copy in reversed(range(work.copies)):
        result = work.call(copy)
    work.answer(result).astype("<f4").tofile(request["out"])
    return work, {"ready": True}


def run(work, request):
    if isinstance(work, Work):
        return [timed(work.call, turn % work.copies)[0] for turn in range(request["repetitions"])]
    if request["phase"] == "prefill":
        return [timed(work.prefill)[0] for _ in range(request["repetitions"])]
    token, seconds = work.prefill(), []
    for _ in range(request["tokens"]):
        elapsed, token = timed(work.decode, token)
        seconds.append(elapsed)
    return seconds


def timed(call, *arguments):
    start = time.perf_counter()
    result = call(*arguments)
    return time.perf_counter() - start, result


def keep_standard_output():
    """A file for the replies; whatever a library prints goes to standard error from here on."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return replies


def keep_freed_memory(keep):
    """Whether the C library keeps freed memory: then a fresh result costs no page faults.

    Not while weights are prepared, whose forms on the way would stay in memory.
    """
    try:
        library = ctypes.CDLL("libc.so.6")
    except OSError:
        return
    m_trim_threshold, m_mmap_max = -1, -4
    library.mallopt(m_trim_threshold, 2**31 - 1 if keep else 128 * 1024)
    library.mallopt(m_mmap_max, 0 if keep else 65536)
    library.malloc_trim(0)
