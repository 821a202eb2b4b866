"""Trials of changes on the command line: each has --dry-run, and with it no node is asked to change anything."""

from pathlib import Path
from typing import Any

import pytest

from access.operators.commands import VERBS
from stratamq.cli import node_requests
from stratamq.cli.main import main
from wire.messages.operators import AdminReply

OTHERWISE = {  # verb -> the words of its command, where they are others
    "store aside remove": "store aside-remove",
    "store export cancel": "operation cancel",
    "client drain": "node drain",
}
OUTSIDE = ("store export",)  # writes files beside the cluster, and changes nothing in it
CHANGES = sorted(verb for verb, row in VERBS.items() if row.changes and verb not in OUTSIDE)
ABOUT = {  # commands about one thing, with its name
    "node undrain": "edge-0",
    "cluster join": "router-1",
    "cluster leave": "router-1",
    "cluster transfer": "router-1",
    "cluster forget": "edge-9",
    "ring remove": "storage-0",
    "ring undelegate": "plant",
    "membership keys use": "00ff",
    "membership keys remove": "00ff",
    "ring pause": "",
    "ring resume": "",
    "ring abort": "",
}


LOSING = {  # commands about one thing that wait for --yes, with a word of what they lose
    "cluster leave": "vote",
    "cluster forget": "disk",
    "ring remove": "disk",
    "ring undelegate": "pin",
}


@pytest.mark.parametrize("verb", sorted(LOSING))
def test_destructive_verb_prints_loss_and_requires_yes(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """NIST: protect. It is tried, so that a refusal comes first; without --yes nothing is changed."""
    asked: list[dict[str, Any]] = []

    def take(verb: str, arguments: dict[str, Any], *_: object, **__: object) -> AdminReply:
        asked.append({"verb": verb, **arguments})
        return AdminReply(0, True, {"tried": "yes"})

    monkeypatch.setattr(node_requests, "ask_links", take)
    assert main([*verb.split(), ABOUT[verb]]) == 2
    said = capsys.readouterr()
    assert all(one["dry_run"] for one in asked) and LOSING[verb] in said.err and "--yes" in said.err
    asked.clear()
    assert main([*verb.split(), ABOUT[verb], "--yes"]) == 0
    assert [one.get("dry_run", False) for one in asked] == [False]


@pytest.mark.parametrize("verb", CHANGES)
def test_each_change_has_a_dry_run(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*OTHERWISE.get(verb, verb).split(), "--help"]) == 0
    assert "--dry-run" in capsys.readouterr().out


@pytest.mark.parametrize("verb", sorted(ABOUT))
def test_dry_run_changes_no_state(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is tried by the router, or told here where no node tries it; `node undrain --dry-run` was carried out."""
    asked: list[dict[str, Any]] = []

    def take(verb: str, arguments: dict[str, Any], *_: object, **__: object) -> AdminReply:
        asked.append({"verb": verb, **arguments})
        return AdminReply(0, True, {"dry_run": True})

    monkeypatch.setattr(node_requests, "ask_links", take)
    words = [*verb.split(), *([ABOUT[verb]] if ABOUT[verb] else [])]
    assert main([*words, "--dry-run"]) == 0
    assert all(one["dry_run"] for one in asked) and "dry_run" in capsys.readouterr().out
    tried_by_router = "dry_run" in VERBS[verb].arguments.__struct_fields__
    assert len(asked) == (1 if tried_by_router else 0)


def test_dry_run_of_key_install_does_not_print_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dry run prints no secret."""
    monkeypatch.setattr(node_requests, "ask_links", None)
    assert main(["membership", "keys", "generate", str(tmp_path / "key")]) == 0
    assert main(["membership", "keys", "install", str(tmp_path / "key"), "--dry-run", "-o", "json"]) == 0
    assert (tmp_path / "key").read_text().split()[0] not in capsys.readouterr().out


def test_drain_dry_run_reports_copies_without_target(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With as many storage nodes as copies the plan had moves to nobody, and no word about what they mean."""

    def take(verb: str, *_: object, **__: object) -> AdminReply:
        nodes = {"nodes": [{"node": "storage-1", "tier": "storage"}]}
        return AdminReply(0, True, nodes if verb == "node list" else {"partitions_under_replicated": 256, "moves": []})

    monkeypatch.setattr(node_requests, "ask_links", take)
    assert main(["node", "drain", "storage-1", "--dry-run"]) == 0
    assert "no other node can store its copy of 256 partitions" in capsys.readouterr().err
