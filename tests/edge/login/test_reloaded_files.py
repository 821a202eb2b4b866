"""Files of a listener's chain that change around a reload: no change is missed, and marks reveal no secret."""

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from access.identity.chain import LoginPending
from access.identity.password_file import read_password_file
from access.identity.principal import Credentials, TimePoint
from access.identity.scram import user_line
from access.identity.scram_step import Challenge
from conf.edge_settings import EdgeSettings, ListenerSettings
from conf.errors import UserError
from edge.login import listener_chain
from edge.login.chains import Chains
from edge.login.listener_chain import ListenerChain
from edge.reload import ListenerLogins
from tests.access.identity.test_passwords import KNOWN
from tests.clients.scram_exchange import client_first, read_challenge
from wire.node.reload_parts import MARKED_BYTES_MAX, UNREAD, file_marks, secret_marks

HASH = KNOWN["sha512"][0]


def secret_file(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    path.chmod(0o600)
    return path


def test_file_changed_during_read_is_applied_by_next_reload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file loses its user after the read: the next reload finds a changed mark."""
    path = secret_file(tmp_path, "users", f"alice:{HASH}\n".encode())
    listener = ListenerSettings(name="tcp", port=0, tls=False, password_file=path)
    config: Any = SimpleNamespace(edge=EdgeSettings(listeners=(listener,)))
    chains = Chains(bytes(16))
    ended: list[object] = []
    part = ListenerLogins("tcp", config, chains, ended.append)

    def read_and_write(path: Path) -> Any:
        users = read_password_file(path)
        path.write_bytes(f"carol:{HASH}\n".encode())
        return users

    path.write_bytes(f"alice:{HASH}\nbob:{HASH}\n".encode())
    monkeypatch.setattr(listener_chain, "read_password_file", read_and_write)
    part.put(part.load(config))
    assert set(part.current()[0].users["password"]) == {"alice", "bob"} and len(ended) == 1
    loaded = part.load(config)
    assert part.difference(loaded)
    part.put(loaded)
    assert set(part.current()[0].users["password"]) == {"carol"} and len(ended) == 2


def test_secret_mark_is_not_a_hash_of_the_text(tmp_path: Path) -> None:
    """Marks appear in the log and the audit: a plain hash of a weak secret could be guessed."""
    secret = secret_file(tmp_path, "secret", b"correct horse battery staple 123")
    plain = hashlib.sha256(secret.read_bytes()).hexdigest()[:16]
    listener = ListenerSettings(name="tcp", port=0, tls=False, token_secret=secret)
    chain = ListenerChain(listener, EdgeSettings(listeners=(listener,)), Chains(bytes(16)))
    mark = chain.marks[str(secret)]
    assert file_marks([secret]) == {str(secret): plain} and mark != plain
    assert secret_marks([secret]) == {str(secret): mark}
    secret.write_bytes(b"another secret of thirty-two byte")
    assert secret_marks([secret]) != {str(secret): mark}


def test_mark_of_non_files_reads_nothing(tmp_path: Path) -> None:
    """A folder, a gibibyte, a missing file; the later read reports the error."""
    (tmp_path / "folder").mkdir()
    large = secret_file(tmp_path, "large", b"")
    with large.open("wb") as file:
        file.truncate(MARKED_BYTES_MAX + 1)
    paths = [tmp_path / "folder", large, tmp_path / "missing"]
    assert set(file_marks(paths).values()) == {UNREAD}


def test_scram_file_requires_the_shared_secret(tmp_path: Path) -> None:
    """Otherwise unknown names would have different salts at two edges, and after a restart."""
    users = secret_file(tmp_path, "users", f"{user_line('alice', 'right', bytes(16))}\n".encode())
    secret = secret_file(tmp_path, "secret", bytes(range(32)))
    listener = ListenerSettings(name="tcp", port=0, tls=False)
    with pytest.raises(UserError, match="scram_secret_file"):
        ListenerChain(listener, EdgeSettings(listeners=(listener,), scram_users_file=users), Chains(bytes(16)))
    edge = EdgeSettings(listeners=(listener,), scram_users_file=users, scram_secret_file=secret)
    given = Credentials("tcp", "::1", "c", None, None, None, "SCRAM-SHA-256", client_first("nobody"), True)
    shown = set()
    for process in (bytes(16), bytes(15) + b"x"):
        began = ListenerChain(listener, edge, Chains(process)).chain.begin(given, TimePoint(0, 0))
        assert isinstance(began, LoginPending) and isinstance(began.job, Challenge)
        shown.add(read_challenge(began.job.data)[1:])
    assert len(shown) == 1
