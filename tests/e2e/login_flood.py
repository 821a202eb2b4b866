"""An attacker in its own process: CONNECTs with wrong passwords at a rate, from many loopback addresses.

    python -m tests.e2e.login_flood PORT RATE SECONDS ADDRESSES [NETWORK]

The addresses start at 127.0.NETWORK.1; an edge refuses a blocked address without a hash. Prints the
number of attempts, and the reason codes.
"""

import collections
import json
import selectors
import socket
import sys
import time

from mqtt.codec import encode_packet
from mqtt.packets import Connect

OPEN_MAX = 400


def main() -> None:
    """Send logins for the given time."""
    port, rate, seconds, addresses, network = (int(word) for word in [*sys.argv[1:], "1"][:5])
    selector = selectors.DefaultSelector()
    codes: collections.Counter[str] = collections.Counter()
    began = time.monotonic()
    tried = 0

    def end(sock: socket.socket, code: str) -> None:
        codes[code] += 1
        selector.unregister(sock)
        sock.close()

    while (now := time.monotonic()) < began + seconds:
        while tried < (now - began) * rate and len(selector.get_map()) < OPEN_MAX:
            sock = socket.socket()
            sock.bind((f"127.0.{network}.{1 + tried % addresses}", 0))
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", port))
            selector.register(sock, selectors.EVENT_WRITE)
            tried += 1
        for key, events in selector.select(0.005):
            found = key.fileobj
            assert isinstance(found, socket.socket)
            sock = found
            try:
                if events & selectors.EVENT_WRITE:
                    packet = Connect(f"evil-{tried}", protocol_version=5, username=f"u{tried % 100}", password=b"guess")
                    sock.send(encode_packet(packet, 5))
                    selector.modify(sock, selectors.EVENT_READ)
                else:
                    answer = sock.recv(64)
                    end(sock, f"{answer[3]:#04x}" if len(answer) > 3 else "closed")
            except OSError:
                end(sock, "broken")
    print(json.dumps({"tried": tried, "codes": codes}))


if __name__ == "__main__":
    main()
