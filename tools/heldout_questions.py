#!/usr/bin/env python3
"""Held-out questions for the demo model, and what the reference (`transformers`, f32) answers to them.

    python tools/heldout_questions.py make OUT                   1,000 questions of ten kinds: OUT/questions.jsonl, OUT/images/
    python tools/heldout_questions.py make OUT --kinds all --count 1550
    python tools/heldout_questions.py subset OUT SMALL           four of each kind, with the reference's answers
    python tools/heldout_questions.py reference OUT --record F   answers in OUT/reference.jsonl, accuracy per kind in F

A line of questions.jsonl has `id`, `kind`, `tags` (which of the things that training never drew the question asks about:
words, a font, shapes in a color, these at a place), `images` (file names under the folder, in the order shown), `question` and
`answer`. A prompt is one user turn: the images, then the question. An answer counts when it is equal to the letter.

`reference` asks three times: with the pictures as they are, with blank ones (grey 128, same sizes), and with
those of the next question of the same kind and number of pictures. The last two show what words alone give.
"""

import argparse
import json
import pathlib
import shutil
import sys
import time
from collections import Counter, defaultdict

import make_scenes as scenes
from PIL import Image

KINDS = ["describe", "count", "color", "shape", "position", "relation", "word", "number", "multi_nth", "multi_which"]
MODEL = pathlib.Path(__file__).resolve().parent.parent / "models" / "demo-vlm"
WAYS = ("shown", "blank", "swapped")
ANSWER_TOKENS = 200


def write_lines(path, values):
    path.write_text("".join(json.dumps(v, ensure_ascii=False) + "\n" for v in values), encoding="utf-8")


def read_questions(folder):
    lines = (folder / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def make(options):
    kinds = scenes.KINDS if options.kinds == ["all"] else options.kinds
    scenes.use_fonts(options.fonts)
    (options.folder / "images").mkdir(parents=True, exist_ok=True)
    listed = []
    for number, document in enumerate(scenes.held_out(options.seed, scenes.HELD_OUT, options.count, kinds)):
        names = [f"images/{number:04d}{'abc'[i]}.png" for i in range(len(document.images))]
        for name, pixels in zip(names, document.images):
            Image.fromarray(pixels).save(options.folder / name, "PNG", optimize=True)
        question = {"id": f"{number:04d}", "kind": document.kind, "tags": document.tags, "images": names}
        listed.append(question | {"question": document.question, "answer": document.answer})
    write_lines(options.folder / "questions.jsonl", listed)
    print(f"{len(listed)} questions: " + ", ".join(f"{k} {n}" for k, n in Counter(q["kind"] for q in listed).items()))
    print(", ".join(f"{t} {n}" for t, n in Counter(t for q in listed for t in q["tags"]).items()))


def subset(options):
    """Of each kind some questions from the half with the smaller pictures; needs the reference's answers."""
    questions = read_questions(options.folder)
    answers = {a["id"]: a["shown"] for a in map(json.loads, (options.folder / "reference.jsonl").read_text().splitlines())}
    size = lambda q: sum((options.folder / n).stat().st_size for n in q["images"])
    kinds = defaultdict(list)
    for question in sorted(questions, key=lambda q: (size(q), q["id"])):
        kinds[question["kind"]].append(question)
    spread = lambda of_kind: [of_kind[len(of_kind) * (i + 1) // (2 * options.each)] for i in range(options.each)]
    picked = sorted((q for of_kind in kinds.values() for q in spread(of_kind)), key=lambda q: q["id"])
    (options.small / "images").mkdir(parents=True, exist_ok=True)
    for question in picked:
        for name in question["images"]:
            shutil.copyfile(options.folder / name, options.small / name)
        question["reference"] = answers[question["id"]]
    write_lines(options.small / "questions.jsonl", picked)
    print(f"{len(picked)} questions, {sum(map(size, picked))} bytes of pictures")


class Reference:
    """The model as `transformers` runs it: f32, pictures by its Pillow processor, greedy."""

    def __init__(self, folder):
        import torch
        from transformers import AutoImageProcessor, AutoTokenizer, Qwen3VLForConditionalGeneration

        self.torch = torch
        torch.set_num_threads(1)
        torch.set_grad_enabled(False)
        self.processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = Qwen3VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
        self.pad = self.model.config.image_token_id

    def inputs(self, question, pictures):
        """Token ids with each image pad repeated as often as its picture has tokens, pixels and grids."""
        torch = self.torch
        content = [{"type": "image"} for _ in pictures] + [{"type": "text", "text": question}]
        text = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
        )
        ids = torch.tensor(self.tokenizer.encode(text, add_special_tokens=False))
        given = {}
        if pictures:
            given = dict(self.processor(pictures, return_tensors="pt"))
            counts = torch.ones_like(ids)
            counts[ids == self.pad] = given["image_grid_thw"].prod(1) // self.processor.merge_size**2
            ids = ids.repeat_interleave(counts)
            given["mm_token_type_ids"] = (ids == self.pad).int()[None]
        return given | {"input_ids": ids[None], "attention_mask": torch.ones_like(ids)[None]}

    def answer(self, question, pictures):
        inputs = self.inputs(question, pictures)
        self.model.model.rope_deltas = None
        made = self.model.generate(**inputs, max_new_tokens=ANSWER_TOKENS, do_sample=False)
        return self.tokenizer.decode(made[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def others(questions):
    """For each question the images of the next one of its kind with as many."""
    alike = defaultdict(list)
    for question in questions:
        alike[question["kind"], len(question["images"])].append(question)
    following = {}
    for group in alike.values():
        for question, after in zip(group, group[1:] + group[:1]):
            following[question["id"]] = after["images"]
    return following


def pictures_for(way, folder, question, following):
    if way == "swapped":
        return [Image.open(folder / n) for n in following[question["id"]]]
    opened = [Image.open(folder / n) for n in question["images"]]
    return [Image.new("RGB", p.size, (128, 128, 128)) for p in opened] if way == "blank" else opened


def accuracy(questions, given):
    """Right answers and questions for all, per kind and per tag; `constant` is the best single answer to each kind."""
    kinds = list(dict.fromkeys(q["kind"] for q in questions))
    tags = [t for t in scenes.TAGS if any(t in q["tags"] for q in questions)]

    def row(of):
        answers = defaultdict(Counter)
        for question in of:
            answers[question["kind"]][question["answer"]] += 1
        right = {w: sum(given[q["id"]][w] == q["answer"] for q in of) for w in WAYS}
        constant = sum(counted.most_common(1)[0][1] for counted in answers.values())
        return right | {"constant": constant, "questions": len(of)}

    per_kind = {kind: row([q for q in questions if q["kind"] == kind]) for kind in kinds}
    per_tag = {tag: row([q for q in questions if tag in q["tags"]]) for tag in tags}
    return {"all": row(questions)} | per_kind | per_tag | {"any tag": row([q for q in questions if q["tags"]])}


def reference(options):
    import PIL
    import torch
    import transformers

    model, questions, begun = Reference(options.model), read_questions(options.folder), time.time()
    following, given = others(questions), {}
    for number, question in enumerate(questions, 1):
        given[question["id"]] = {
            way: model.answer(question["question"], pictures_for(way, options.folder, question, following))
            for way in WAYS
        }
        if number % 50 == 0:
            print(f"{number} of {len(questions)}, {time.time() - begun:.0f} s", file=sys.stderr, flush=True)
    write_lines(options.folder / "reference.jsonl", [{"id": k} | v for k, v in given.items()])
    table = accuracy(questions, given)
    for kind, row in table.items():
        print(f"{kind:18s} " + " ".join(f"{w} {row[w]:4d}" for w in (*WAYS, "constant")) + f" of {row['questions']}")
    versions = {"torch": torch.__version__, "transformers": transformers.__version__, "pillow": PIL.__version__}
    record = {"model": "models/demo-vlm", "dtype": "f32", "versions": versions, "command": options.command}
    if options.record:
        wrong = [
            {k: q[k] for k in ("id", "kind", "tags", "question", "answer")} | {"given": given[q["id"]]["shown"]}
            for q in questions if given[q["id"]]["shown"] != q["answer"]
        ]
        options.record.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(record | {"accuracy": table, "wrong": wrong}, indent=1, ensure_ascii=False)
        options.record.write_text(text + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="name", required=True)
    path = pathlib.Path
    one = commands.add_parser("make")
    one.add_argument("folder", type=path)
    one.add_argument("--count", type=int, default=1000)
    one.add_argument("--seed", type=int, default=1)
    one.add_argument("--fonts", type=path, help="folder of the fonts; matplotlib's if none")
    one.add_argument("--kinds", type=lambda text: text.split(","), default=KINDS, help="names with commas, or all")
    one.set_defaults(run=make)
    two = commands.add_parser("subset")
    two.add_argument("folder", type=path)
    two.add_argument("small", type=path)
    two.add_argument("--each", type=int, default=4)
    two.set_defaults(run=subset)
    three = commands.add_parser("reference")
    three.add_argument("folder", type=path)
    three.add_argument("--model", type=path, default=MODEL)
    three.add_argument("--record", type=path)
    three.add_argument("--command", default="", help="how the questions were made, for the record")
    three.set_defaults(run=reference)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
