"""F-CHAIN: a model that emits scripted pieces. `chain.py SCRIPTS.json OUT` writes the model folder.

README.md has the format of SCRIPTS.json and how tokens are numbered.
"""

import json
import pathlib
import sys

import torch
from tokenizers import pre_tokenizers

from common import ROOT, folder, save_tensors, write_json
from recipe import values

HIDDEN = 1024
HEAD = 16
TEMPLATE = "{{ messages[-1].content }}"
MAXIMUM = 65536

EXAMPLE = {
    "format": 1,
    "control": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    "marks": ["<tool_call>", "</tool_call>", "<think>", "</think>"],
    "end": "<|im_end|>",
    "scripts": [
        {
            "select": "1",
            "pieces": [{"hex": "f09f"}, {"hex": "9880"}, {"hex": "e4b8"}, {"hex": "96"}, {"hex": "e7"}, {"hex": "958c"}],
            "then": "end",
        },
        {"select": "2", "pieces": ["ABC", "DEF", "G", "HI", "J", "K"], "then": "end"},
        {"select": "3", "pieces": ["la", "li", "lo", " "], "then": "loop"},
        {"select": "4", "pieces": ["<think>", "r", "</think>", "ok"], "then": "end"},
        {"select": "5", "pieces": ["a", {"hex": "ff"}, "b"], "then": "end"},
    ],
}


def byte_letters():
    """The letter that stands for each byte in a byte-level vocabulary."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    letters = {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}
    assert sorted(letters.values()) == sorted(pre_tokenizers.ByteLevel.alphabet())
    return letters


class Chain:
    """Token numbers and successors: bytes are 0..255, then added tokens, then longer pieces as they come."""

    def __init__(self, scripts):
        self.scripts = scripts
        self.added = scripts["control"] + scripts["marks"]
        self.words = [bytes([b]) for b in range(256)] + [t.encode() for t in self.added]
        self.numbers = {word: i for i, word in enumerate(self.words)}
        self.next = {}
        self.end = self.numbers[scripts["end"].encode()]
        for script in scripts["scripts"]:
            self.link(script)

    def number(self, piece):
        word = bytes.fromhex(piece["hex"]) if isinstance(piece, dict) else piece.encode()
        if word not in self.numbers:
            self.numbers[word] = len(self.words)
            self.words.append(word)
            if len(self.words) > HIDDEN:
                raise ValueError(f"more than {HIDDEN} tokens")
        return self.numbers[word]

    def link(self, script):
        pieces = [self.number(p) for p in script["pieces"]]
        last = pieces[0] if script["then"] == "loop" else self.end
        for token, successor in zip([self.number(script["select"]), *pieces], [*pieces, last]):
            if self.next.setdefault(token, successor) != successor:
                raise ValueError(f"script {script['select']}: {self.words[token]} already has another successor")

    def emitted(self, script, limit=12):
        """Tokens after the selecting one, the end token included."""
        out = [self.next[self.number(script["select"])]]
        while out[-1] != self.end and len(out) < limit:
            out.append(self.next[out[-1]])
        return out

    def text(self, tokens):
        control = {t.encode() for t in self.scripts["control"]}
        return b"".join(self.words[t] for t in tokens if self.words[t] not in control).decode(errors="replace")

    def tensors(self):
        layer = "model.layers.0."
        ones_at = [[successor, token] for token, successor in sorted(self.next.items())]
        entries = {
            "model.embed_tokens": ([HIDDEN, HIDDEN], "identity"),
            layer + "input_layernorm": ([HIDDEN], "ones"),
            layer + "self_attn.q_proj": ([HEAD, HIDDEN], "zeros"),
            layer + "self_attn.k_proj": ([HEAD, HIDDEN], "zeros"),
            layer + "self_attn.v_proj": ([HEAD, HIDDEN], "zeros"),
            layer + "self_attn.o_proj": ([HIDDEN, HEAD], "zeros"),
            layer + "self_attn.q_norm": ([HEAD], "ones"),
            layer + "self_attn.k_norm": ([HEAD], "ones"),
            layer + "post_attention_layernorm": ([HIDDEN], "ones"),
            layer + "mlp.gate_proj": ([HEAD, HIDDEN], "zeros"),
            layer + "mlp.up_proj": ([HEAD, HIDDEN], "zeros"),
            layer + "mlp.down_proj": ([HIDDEN, HEAD], "zeros"),
            "model.norm": ([HIDDEN], "ones"),
            "lm_head": ([HIDDEN, HIDDEN], "ones_at"),
        }
        entry = lambda name, shape, kind: {"name": name, "shape": shape, "kind": kind, "at": ones_at}
        return {n + ".weight": values(entry(n, *e), 0, 0) for n, e in entries.items()}

    def config(self):
        return {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "attention_bias": False,
            "head_dim": HEAD,
            "hidden_act": "silu",
            "hidden_size": HIDDEN,
            "intermediate_size": HEAD,
            "max_position_embeddings": MAXIMUM,
            "num_attention_heads": 1,
            "num_hidden_layers": 1,
            "num_key_value_heads": 1,
            "rms_norm_eps": 1e-06,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "vocab_size": HIDDEN,
            "eos_token_id": self.end,
        }

    def tokenizer(self):
        letters = byte_letters()
        spelled = lambda word: "".join(letters[b] for b in word)
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {"id": self.numbers[t.encode()], "content": t, **flags, "special": t in self.scripts["control"]}
                for t in self.added
            ],
            "normalizer": None,
            "pre_tokenizer": byte_level,
            "post_processor": None,
            "decoder": byte_level,
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                # The added tokens too: one that the vocabulary lacks would be numbered after its last entry.
                "vocab": {spelled(w): i for i, w in enumerate(self.words)},
                "merges": [],
            },
        }

    def write(self, path):
        path.mkdir(parents=True, exist_ok=True)
        save_tensors(path / "model.safetensors", self.tensors())
        write_json(path / "config.json", self.config())
        write_json(path / "generation_config.json", {"eos_token_id": [self.end], "do_sample": False})
        write_json(path / "tokenizer.json", self.tokenizer())
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": self.scripts["end"], "chat_template": TEMPLATE}
        write_json(path / "tokenizer_config.json", config)


def check(path, cases):
    """`transformers` must emit the scripts from the written folder."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    for case in cases:
        prompt = tokenizer.apply_chat_template([{"role": "user", "content": case["prompt"]}], tokenize=False)
        ids = tokenizer.encode(prompt)
        assert ids == case["prompt_ids"], (ids, case)
        for token in case["ids"]:
            logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
            assert logits.argmax() == token and logits.max() > 31.9 and logits.topk(2).values[1] == 0
            ids.append(token)
        text = tokenizer.decode(case["ids"], skip_special_tokens=True)
        assert text == case["text"], (text, case)


def build():
    path, scripts = folder("f-chain"), json.loads(json.dumps(EXAMPLE))
    write_json(path / "scripts.json", scripts)
    chain, cases = Chain(scripts), []
    for script in scripts["scripts"]:
        prompt = "say 日 " + script["select"]
        ids = chain.emitted(script)
        cases.append({"prompt": prompt, "prompt_ids": list(prompt.encode()), "ids": ids, "text": chain.text(ids)})
    write_json(path / "expected.json", cases)
    built = ROOT.parent / "target" / "f-chain"
    chain.write(built)
    check(built, cases)


if __name__ == "__main__":
    Chain(json.loads(pathlib.Path(sys.argv[1]).read_text())).write(pathlib.Path(sys.argv[2]))
