"""Starts the programs that the tests of the Node client need, and runs these: node_client.py COMMAND..."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from conftest import MODEL, serving

with tempfile.TemporaryDirectory() as folder:
    keys = Path(folder, "keys")
    keys.write_text("right\n")
    template = Path(__file__).with_name("tools.jinja")
    with serving() as plain, serving("--chat-template", template) as tools, serving("--api-key-file", keys) as key:
        urls = {"CIDER_URL": plain.url, "CIDER_TOOLS_URL": tools.url, "CIDER_KEY_URL": key.url}
        done = subprocess.run(sys.argv[1:], env={**os.environ, **urls, "CIDER_EXAMPLES": str(MODEL / "examples")})
sys.exit(done.returncode)
