"""Whatever the description of the API allows, and some of what it does not, is answered without a failure."""

import os
import subprocess
import sys
from pathlib import Path

from conftest import serving

# A longer search: CIDER_SCHEMA_EXAMPLES=1000.
EXAMPLES = os.environ.get("CIDER_SCHEMA_EXAMPLES", "15")


def test_no_request_makes_the_server_fail(tmp_path):
    with serving("--max-tokens", 16, "--grammar-bytes", "4K") as server:
        command = [Path(sys.executable).with_name("schemathesis"), "run", server.url + "/openapi.json"]
        options = ["--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"]
        options += ["--max-examples", EXAMPLES, "--seed", "1", "--warnings", "off", "--no-color"]
        done = subprocess.run([*command, *options], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        # Nothing that was sent is still at work, and the server answers.
        server.wait_until_idle()
        assert server.get("/ready")["status"] == "ok"
    assert "generated" in done.stdout
