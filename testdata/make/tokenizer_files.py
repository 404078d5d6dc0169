"""Byte-level tokenizers trained on corpus.txt, in the three forms they come in, with the ids of hard texts."""

import json
import pathlib

import gguf
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer

from common import folder, write_json

MERGES = 600
CORPUS = pathlib.Path(__file__).with_name("corpus.txt")

# The split patterns are facts of the families' formats: a file is read right only with exactly these.
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")

QWEN_CONTROL = (
    "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> "
    "<|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|>"
).split()
QWEN_MARKS = (
    "<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> "
    "<tool_response> </tool_response> <think> </think>"
).split()
LLAMA_CONTROL = (
    "<|begin_of_text|> <|end_of_text|> <|start_header_id|> <|end_header_id|> <|eom_id|> <|eot_id|> <|python_tag|>"
).split()
SMOL_CONTROL = "<|endoftext|> <|im_start|> <|im_end|>".split()

CHATML = (
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message.role + '\\n' }}"
    "{%- if message.content is string -%}{{ message.content }}"
    "{%- else -%}{%- for part in message.content if part.type == 'text' -%}{{ part.text }}{%- endfor -%}{%- endif -%}"
    "{{ '<|im_end|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and not enable_thinking -%}{{ '<think>\\n\\n</think>\\n\\n' }}{%- endif -%}"
    "{%- endif -%}"
)

# family -> added tokens (text, control), their place, beginning and end token
FAMILIES = {
    "qwen2": dict(control=QWEN_CONTROL, marks=QWEN_MARKS, first=False, bos=None, eos="<|im_end|>", pad="<|endoftext|>"),
    "llama-bpe": dict(control=LLAMA_CONTROL, marks=[], first=False, bos="<|begin_of_text|>", eos="<|eot_id|>", pad=None),
    "smollm": dict(control=SMOL_CONTROL, marks=[], first=True, bos="<|im_start|>", eos="<|im_end|>", pad="<|im_end|>"),
    "gpt2": dict(control=["<|endoftext|>"], marks=[], first=False, bos="<|endoftext|>", eos="<|endoftext|>", pad=None),
}

# Whole words of the Llama 3 vocabulary that no chain of merges reaches: found only when merges are ignored for them.
UNREACHABLE = ["zyxwvutsrqponm", "Ġqqzzqq"]

TEXTS = [
    "Hello, world!",
    "Hello 世界 😀 \n\n 123",
    "What is the capital of France?",
    "",
    " ",
    "   leading and trailing   ",
    "a  b   c    d",
    "\n",
    "\n\n\n",
    "line\r\nline\r\n\r\nline",
    "\ttab\t\ttabs\n\t\tindented",
    "def f(x):\n    return x**2  # 12345\n",
    "1 12 123 1234 12345 1234567890",
    "3.14159 1,000,000 0x7f 2024-11-30",
    "It's I'm you're we've he'll she'd don't",
    "IT'S I'M YOU'RE WE'VE HE'LL SHE'D DON'T",
    "‘curly’ “quotes” it’s — and … dots",
    "naïve café größer Übermorgen",
    "cafe\u0301 A\u030a e\u0301e\u0301",
    "今天天气很好，我们去公园走走吧。",
    "日本語のテキスト 東京は日本の首都です。",
    "안녕하세요, 세계!",
    "Привет, мир! Γειά σου κόσμε",
    "مرحبا بالعالم שלום עולם",
    "😀😃🚀 👩‍💻 🇫🇷 ❤️ 👍🏽",
    "١٢٣ ४५६ Ⅷ ½ x²",
    "a\u00a0b\u2003c\u200bd\u3000e",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>",
    "x<|endoftext|>y <think>z</think> <tool_call>{}</tool_call>",
    "<|im_start|<|im_end|> <|im_end |> <|IM_END|>",
    "!!!??? ...--- ===>>> ((([[[{{{ \\\\ // ## $$ %% ^^ && ** ~~ ``",
    "zyxwvutsrqponm qqzzqq zyxwvutsrqponmx qqzzqqq",
    "\u0000\u0001\u007f\ufffd\ue000",
]


def splitter(family):
    if family in ("qwen2", "llama-bpe"):
        pattern = Regex(QWEN2 if family == "qwen2" else LLAMA3)
        split = pre_tokenizers.Split(pattern, behavior="isolated", invert=False)
        return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if family == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), bytes_])
    return bytes_


def train(family, merges):
    """Vocabulary (bytes, then merges) and merge list."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = splitter(family)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=256 + merges, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS.read_text(encoding="utf-8").splitlines(keepends=True), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    assert len(model["merges"]) == merges, (family, len(model["merges"]))
    words = sorted(model["vocab"], key=model["vocab"].get)
    return words, [tuple(m) for m in model["merges"]]


class Trained:
    """One family's tokenizer: words and merges, added tokens, and the forms to write it in."""

    def __init__(self, family, merges=MERGES):
        self.family, self.facts = family, FAMILIES[family]
        words, self.merges = train(family, merges)
        if family == "llama-bpe" and merges == MERGES:
            words = words + UNREACHABLE
        added = self.facts["control"] + self.facts["marks"]
        self.tokens = added + words if self.facts["first"] else words + added

    def id(self, token):
        return None if token is None else self.tokens.index(token)

    def tokenizer(self, added=True, begin=False):
        facts = self.facts
        model = models.BPE(
            vocab={t: i for i, t in enumerate(self.tokens)}, merges=self.merges, ignore_merges=self.family == "llama-bpe"
        )
        tokenizer = Tokenizer(model)
        if self.family == "qwen2":
            tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = splitter(self.family)
        tokenizer.decoder = decoders.ByteLevel()
        if added:
            tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in facts["control"]])
            tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in facts["marks"]])
        if begin:
            tokenizer.post_processor = processors.TemplateProcessing(
                single=f"{facts['bos']} $A", special_tokens=[(facts["bos"], self.id(facts["bos"]))]
            )
        return tokenizer

    def write_json(self, path):
        """tokenizer.json; the older spelling of merges ("a b") for one family."""
        value = json.loads(self.tokenizer(begin=self.family == "llama-bpe").to_str())
        added = set(self.facts["control"] + self.facts["marks"])
        if not self.facts["first"]:
            value["model"]["vocab"] = {t: i for t, i in value["model"]["vocab"].items() if t not in added}
        value["model"]["vocab"] = dict(sorted(value["model"]["vocab"].items(), key=lambda item: item[1]))
        if self.family == "smollm":
            value["model"]["merges"] = [" ".join(m) for m in value["model"]["merges"]]
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        (path / "tokenizer.json").write_text(text + "\n", encoding="utf-8")
        assert Tokenizer.from_file(str(path / "tokenizer.json")).encode(TEXTS[1]).ids

    def write_config(self, path, kind, chat_template=None, list_added=False):
        facts = self.facts
        value = {
            "add_bos_token": self.family == "llama-bpe",
            "add_prefix_space": False,
            "bos_token": facts["bos"],
            "eos_token": facts["eos"],
            "pad_token": facts["pad"],
            "model_max_length": 131072,
            "tokenizer_class": kind,
        }
        if list_added:
            value["added_tokens_decoder"] = {
                str(self.id(t)): {
                    "content": t, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
                    "special": t in facts["control"],
                }
                for t in facts["control"] + facts["marks"]
            }
        if chat_template:
            value["chat_template"] = chat_template
        write_json(path / "tokenizer_config.json", value)

    def write_vocabulary(self, path):
        added = set(self.facts["control"] + self.facts["marks"])
        words = {t: i for i, t in enumerate(self.tokens) if t not in added}
        text = json.dumps(words, ensure_ascii=False, separators=(",", ":"))
        (path / "vocab.json").write_text(text, encoding="utf-8")
        lines = ["#version: 0.2", *(" ".join(m) for m in self.merges)]
        (path / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def add_to_gguf(self, writer, vocabulary=None, chat_template=None):
        """The tokenizer's metadata; `vocabulary` pads the list as converters do."""
        facts, kinds = self.facts, gguf.TokenType
        pads = [f"[PAD{i}]" for i in range(len(self.tokens), vocabulary or 0)]
        special = {t: kinds.CONTROL for t in facts["control"]} | {t: kinds.USER_DEFINED for t in facts["marks"]}
        special |= {t: kinds.UNUSED for t in pads}
        tokens = self.tokens + pads
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre({"gpt2": "gpt-2"}.get(self.family, self.family))
        writer.add_token_list(tokens)
        writer.add_token_types([special.get(t, kinds.NORMAL) for t in tokens])
        writer.add_token_merges([" ".join(m) for m in self.merges])
        for token, add in ((facts["bos"], writer.add_bos_token_id), (facts["eos"], writer.add_eos_token_id),
                           (facts["pad"], writer.add_pad_token_id)):
            if token is not None:
                add(self.id(token))
        writer.add_add_bos_token(self.family == "llama-bpe")
        if chat_template:
            writer.add_chat_template(chat_template)

    def cases(self):
        """`ids`: added tokens count. `ids_plain`: they are plain text. `ids_begin`: with the beginning token."""
        whole, plain = self.tokenizer(), self.tokenizer(added=False)
        begun = self.tokenizer(begin=True) if self.family == "llama-bpe" else None
        out = []
        for text in TEXTS:
            case = {"text": text, "ids": whole.encode(text).ids, "ids_plain": plain.encode(text).ids}
            if begun:
                case["ids_begin"] = begun.encode(text).ids
            out.append(case)
        return out


def write_cases(path, cases):
    """One text a line: readable, and a change shows as one line."""
    lines = ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def write_family(family):
    path, trained = folder("tokenizers", family), Trained(family)
    trained.write_json(path)
    trained.write_config(path, "PreTrainedTokenizerFast" if family == "llama-bpe" else "GPT2Tokenizer")
    cases = trained.cases()
    unreachable = {trained.id(t) for t in UNREACHABLE if t in trained.tokens}
    assert unreachable <= {i for c in cases for i in c["ids"]}, family
    write_cases(path / "ids.json", cases)
    writer = gguf.GGUFWriter(path / "tokenizer.gguf", "llama")
    trained.add_to_gguf(writer, chat_template=CHATML)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    if family in ("qwen2", "gpt2"):
        old = folder("tokenizers", family, "vocab-merges")
        trained.write_vocabulary(old)
        trained.write_config(old, "Qwen2Tokenizer" if family == "qwen2" else "GPT2Tokenizer", CHATML, list_added=True)
        check_against_transformers(old, cases)


def check_against_transformers(path, cases):
    """The family's own class must read the two-file form to the same ids."""
    theirs = AutoTokenizer.from_pretrained(path)
    for case in cases:
        ids = theirs.encode(case["text"], add_special_tokens=False)
        assert ids == case["ids"], (path, case["text"], ids, case["ids"])


def build():
    for family in FAMILIES:
        write_family(family)
