#!/usr/bin/env python3
"""Makes every fixture: `build.py [PART...]`. `build.py --check` remakes all and compares with MANIFEST.sha256."""

import importlib
import sys

from common import MANIFEST, manifest_lines

PARTS = ["models", "tokenizer_files", "f_tiny", "chain", "gguf_files", "seed_layout", "vl", "images"]


def main(arguments):
    check = arguments == ["--check"]
    for part in PARTS if check or not arguments else arguments:
        importlib.import_module(part).build()
    lines = manifest_lines()
    if not check:
        MANIFEST.write_text("\n".join(lines) + "\n")
        return 0
    known = MANIFEST.read_text().splitlines()
    changed = sorted(set(known) ^ set(lines))
    for line in changed:
        print(("missing or changed " if line in known else "made now ") + line)
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
