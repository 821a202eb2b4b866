"""One request of an operator: its error when the node closes the connection during the handshake."""

import socket
import struct
import threading
from pathlib import Path

import pytest

from conf.errors import ExitCode, UserError
from tests.patience import PATIENCE_S
from tests.wire.test_hub import certificates
from wire.links.request import request
from wire.messages.operators import Admin

LINGER = struct.pack("ii", 1, 0)  # close with a reset


@pytest.mark.parametrize("resets", [False, True])
async def test_request_to_a_node_that_dies_in_the_handshake_reports_unreachable(tmp_path: Path, resets: bool) -> None:
    """Another router may answer: it was reported as a refusal, which ended the command with exit code 1."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE_S)

        def die() -> None:
            stream, _ = listener.accept()
            stream.recv(16)  # the beginning of a hello
            if resets:
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
            stream.close()

        thread = threading.Thread(target=die)
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        contexts = certificates(tmp_path, "operator", "ann")
        with pytest.raises(UserError, match="cannot reach router") as caught:
            await request(address, contexts, Admin(1, "node list"), cluster="test", tier="router")
        thread.join()
    assert caught.value.exit_code == ExitCode.NOT_READY
