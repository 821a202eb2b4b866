"""An OTLP/HTTP collector in its own process: writes each span as a line of JSON.

``python -m tests.admin.otlp_receiver PORT FILE [STATUS]``; with a status it answers every request with that.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

__all__ = ["receiver"]

ROOT = Path(__file__).parents[2]


def main(port: int, file: Path, status: int) -> None:
    """Serve until terminated."""
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as service

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert self.headers["Content-Type"] == "application/x-protobuf" and self.path == "/v1/traces"
            request = service.ExportTraceServiceRequest.FromString(body)
            self.send_response(status)
            self.send_header("Content-Type", "application/x-protobuf")
            self.end_headers()
            if status != 200:
                return
            self.wfile.write(service.ExportTraceServiceResponse().SerializeToString())
            with file.open("a") as lines:
                for resource in request.resource_spans:
                    attributes = values(resource.resource.attributes)
                    for scope in resource.scope_spans:
                        for span in scope.spans:
                            lines.write(json.dumps(to_json(span) | {"resource": attributes}) + "\n")

        def log_message(self, *_: Any) -> None:
            pass

    def values(attributes: Any) -> dict[str, Any]:
        return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}

    def to_json(span: Any) -> dict[str, Any]:
        return {
            "trace": span.trace_id.hex(),
            "span": span.span_id.hex(),
            "parent": span.parent_span_id.hex(),
            "name": span.name,
            "us": (span.end_time_unix_nano - span.start_time_unix_nano) / 1000,
            "about": values(span.attributes),
            "events": [event.name for event in span.events],
            "failed": span.status.message,
        }

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()


class Receiver:
    """A running collector."""

    def __init__(self, process: "subprocess.Popen[str]", file: Path) -> None:
        assert process.stdout is not None
        self.port = int(process.stdout.readline())
        self._file = file

    @property
    def endpoint(self) -> str:
        """Value for `admin.otlp_endpoint`."""
        return f"http://127.0.0.1:{self.port}"

    def spans(self) -> list[dict[str, Any]]:
        """Return the received spans."""
        return [json.loads(line) for line in self._file.read_text().splitlines()] if self._file.exists() else []


@contextmanager
def receiver(file: Path, port: int = 0, status: int = 200) -> Iterator[Receiver]:
    """Run a collector within the block."""
    command = [sys.executable, "-m", "tests.admin.otlp_receiver", str(port), str(file), str(status)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Receiver(process, file)
        finally:
            process.kill()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
