"""The whole API against its own description: an OpenAPI validator, and Schemathesis with each role."""

import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.e2e.local_cluster import local_cluster
from tests.e2e.test_prometheus import served

SCHEMATHESIS = shutil.which("schemathesis", path=str(Path(sys.executable).parent)) or ""
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
ENDLESS = "/(live|logout|login)$"  # a stream, and paths that end or limit the caller's own session


@pytest.mark.slow
@pytest.mark.skipif(not SCHEMATHESIS, reason="schemathesis is not here: PyPI's package schemathesis")
@pytest.mark.parametrize("role", ["viewer", "operator", "admin"])
def test_every_response_is_described(role: str, tmp_path: Path) -> None:
    """No 500; status, content type and body match the description."""
    validator = pytest.importorskip("openapi_spec_validator", reason="PyPI's package openapi-spec-validator")
    with local_cluster("--edges", "1", "--admin-port", "0") as cluster:
        base = served(cluster)
        token = str(cluster.admin("token", "create", role, "--role", role)["token"])
        validator.validate(httpx.get(f"{base}/openapi.json").json())
        command = [SCHEMATHESIS, "run", f"{base}/openapi.json", "--header", f"Authorization: Bearer {token}"]
        command += ["--checks", CHECKS, "--exclude-path-regex", ENDLESS, "--max-examples", "4", "--no-color"]
        command += ["--phases", "examples,coverage,fuzzing", "--request-timeout", "30", "--seed", "1"]
        run = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, cwd=tmp_path)
    assert run.returncode == 0, run.stdout[-8_000:] + run.stderr[-1_000:]
