"""How long a login's HTTP request blocks the edge's loop: while the server answers, and while it hangs.

    python -m bench.asked_server [--rate 40] [--seconds 14]

The requests of ``edge/login/callout_service.py`` alone, in their own loop, at a rate; the server is another process
that is stopped (SIGSTOP) for the second part. Prints the CPU time of a request (of this thread, so other load
counts less), and that of the longest iterations of the loop: the minimum wait of a connected client. The first part is
the basic cost of a request.
"""

import argparse
import time

import trio

from access.identity.chain import Ticket
from access.identity.http_answer import HttpJob, HttpReply
from access.identity.principal import Credentials
from conf.url_settings import ProtectedUrl
from edge.login.auth_jobs import AuthJobs
from edge.login.bounded_http import tls_context
from edge.login.callout_service import CalloutService, Server
from tests.clients.http_child import http_child

ANSWERS = """
class Answers(Quiet):
    def do_POST(self):
        self.body()
        body = b'{"result": "allow"}'
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
"""


class Turns(trio.abc.Instrument):
    """CPU time of each iteration of the loop."""

    def __init__(self) -> None:
        self.took: list[float] = []
        self._began = time.thread_time()

    def after_io_wait(self, timeout: float) -> None:
        """Start of an iteration."""
        del timeout
        self._began = time.thread_time()

    def before_io_wait(self, timeout: float) -> None:
        """End of the iteration."""
        del timeout
        self.took.append(time.thread_time() - self._began)


class _Question:
    """A login of an unknown user."""

    body = b'{"username":"ann","password":"x","clientid":"c","peerhost":"192.0.2.1"}'
    kept = None

    def read(self, reply: HttpReply | None) -> tuple[object, str]:
        """Accept any reply."""
        return reply, "" if reply is None else "allow"


async def measured(port: int, rate: float, seconds: float) -> tuple[int, float, list[float], dict[str, int]]:
    """Return the number of logins, their CPU time, iterations by length, and outcomes."""
    ended = 0

    def done(number: int, ticket: Ticket, result: object) -> None:
        nonlocal ended
        del number, ticket, result
        ended += 1

    desk = AuthJobs(1000)
    server = Server(
        "asks", "http_url", ProtectedUrl(f"http://127.0.0.1:{port}/auth"), "application/json", tls_context(None)
    )
    asking = CalloutService({"asks": server}, lambda _: _Question(), desk, done)
    desk.came = asking.came
    turns = Turns()
    trio.lowlevel.add_instrument(turns)
    began, cpu = trio.current_time(), time.thread_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(asking.run)
        asked = 0
        while (now := trio.current_time()) < began + seconds:
            while asked < (now - began) * rate:
                asked += 1
                job = HttpJob(_Question.body, b"%d" % asked)
                desk.put(asked, Ticket(Credentials("asks", "192.0.2.1", "c"), 0, job, 1, None))
            await trio.sleep(0.005)
        nursery.cancel_scope.cancel()
    trio.lowlevel.remove_instrument(turns)
    return asked, time.thread_time() - cpu, sorted(turns.took), {" ".join(k[1:]): v for k, v in asking.outcomes.items()}


def main() -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=40.0, help="logins per second")
    parser.add_argument("--seconds", type=float, default=14.0, help="of each part")
    options = parser.parse_args()
    with http_child(ANSWERS) as server:
        for name in ("answers", "hangs"):
            if name == "hangs":
                server.stand_still()
            asked, cpu, turns, outcomes = trio.run(measured, server.port, options.rate, options.seconds)
            longest = ", ".join(f"{1e3 * took:.1f}" for took in turns[:-6:-1])
            p99_ms = 1e3 * turns[len(turns) * 99 // 100]
            print(f"{name}: {asked} logins, {1e3 * cpu / asked:.2f} ms each; turns P99 {p99_ms:.2f} ms,", end=" ")
            print(f"longest {longest} ms; {outcomes}")


if __name__ == "__main__":
    main()
