"""Every command that reads, in all six forms of ``-o``, against a running cluster.

The tree of commands is walked: a verb that is neither a question below nor a change is a mistake of this file.
"""

import csv
import io
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import typer
import yaml

from stratamq.cli.main import application
from tests.e2e.operated_cluster import OperatedCluster, operated_cluster

READS = """balance render haproxy
cluster status
node list
node show edge-0
operation list
operation show drain-edge-1
ring export
ring status
ring explain forms/1
ring show
ring plan --add storage-0
ring verify
user show forms
user list
role show forms
role list
group show forms
group list
ban list
policy status
token list
client list
client show forms-reader
client explain forms-reader --topic forms/1
session list
session show forms-away
queue show forms-away --payload head
subscription list
subscription show forms-away
topic list
topic explain forms/1 --from forms-reader --qos 0
route show forms/1
msg explain --client forms-reader --packet 1
trace list
trace export forms
retained list
retained get forms/kept
share list
share show g forms/#
slow
drops
journal
log --limit 5
listener list
membership list
membership keys list
audit reports
store replicas
store stats
store aside
config show --node edge-0
config list --node edge-0
config diff edge-0 storage-0
top --once
doctor"""
CHANGES = """revoke unrevoke reload cluster:join cluster:leave cluster:transfer cluster:forget node:drain node:undrain
operation:cancel ring:pause ring:resume ring:abort ring:remove ring:undelegate ring:rebalance ring:add ring:drain
ring:delegate ring:recover user:add user:change user:password user:disable user:enable user:delete role:put role:delete
group:put group:delete ban:add ban:del token:create token:revoke client:kick session:delete session:expire queue:purge
msg:send trace:start trace:tail trace:stop retained:clear retained:purge listener:pause listener:resume support:bundle
membership:keys:install membership:keys:use membership:keys:remove"""
# No cluster is asked: their own tests read them in the forms that they have.
OF_FILES = """audit:verify membership:keys:show-file balance:status bridge:check bridge:try bridge:status
federate:status federate:graph federate:topics federate:why"""
QUEUE = ("--set", "storage.queue_messages_max=1")  # the second message of an absent client is a drop
FORMS = ("table", "wide", "json", "jsonl", "yaml", "csv")
CODES = {"config diff": (1,), "doctor": (0, 1), "client explain": (0, 1), "msg explain": (0, 1)}


def commands(of: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the paths of all commands that have ``-o``; a noun's plural is the same command."""
    for name, command in getattr(of, "commands", {}).items():
        if not (getattr(command, "hidden", False)):
            yield from commands(command, (*path, name))
    if path and any("--output" in parameter.opts for parameter in of.params):
        yield path


def asked() -> list[tuple[tuple[str, ...], list[str]]]:
    """Return the path of each question, and its words."""
    known = set(commands(typer.main.get_command(application())))
    found = []
    for line in (line.split() for line in READS.splitlines()):
        paths = [tuple(line[:n]) for n in (3, 2, 1) if tuple(line[:n]) in known]
        found.append((paths[0] if paths else tuple(line[:2]), line))
    return found


def test_every_command_is_covered() -> None:
    """Each command with output formats is a query here, a change, or reads files."""
    tree = set(commands(typer.main.get_command(application())))
    named = {path for path, _ in asked() if path[0] != "store"}  # created only when the test needs it
    others = {tuple(words.split(":")) for words in (CHANGES + " " + OF_FILES).split()}
    assert not named & others
    assert tree == named | others


@pytest.fixture(scope="module")
def place() -> Iterator[OperatedCluster]:
    with operated_cluster("--edges", "2", "--storages", "1", "--routers", "1", *QUEUE) as here:
        away = here.come("forms-away", 0, expiry_s=600)
        here.subscribe(away, "forms/#")
        away.disconnect()
        here.cluster.wait_for(lambda: not away.is_connected(), "gone")
        reader = here.come("forms-reader", 0)
        here.subscribe(reader, "forms/#")
        here.subscribe(reader, "$share/g/forms/#")
        assert here.ask("trace", "start", "topic", "forms/#", "--name", "forms").code == 0
        assert here.ask("msg", "send", "forms/kept", 'caf\u00e9, "quoted"\n\u202e', "--retain").code == 0
        here.publish(reader, "forms/1", 2)
        (here.cluster.data / "password").write_text("a-long-password")
        (here.cluster.data / "password").chmod(0o600)
        for words in (
            ("role", "put", "forms", "--publish", "forms/#"),
            ("group", "put", "forms", "--role", "forms"),
            ("user", "add", "forms", "--password-file", str(here.cluster.data / "password"), "--role", "forms"),
            ("ban", "add", "user", "mallory"),
            ("token", "create", "forms"),
            ("node", "drain", "edge-1", "--no-wait"),
        ):
            assert here.ask(*words).code == 0, words
        yield here


def read(form: str, text: str) -> Any:
    """Return the parsed content of an output format; tables as lines."""
    if form == "json":
        return json.loads(text) if text else None
    if form == "jsonl":
        return [json.loads(line) for line in text.splitlines()]
    if form == "yaml":
        return yaml.safe_load(text)
    if form == "csv":
        tables = [list(csv.reader(io.StringIO(part))) for part in text.split("\n\n") if part.strip()]
        assert all(len({len(row) for row in table}) == 1 for table in tables), text
        return tables
    assert text.isprintable() or set(text) - set("\n") <= {letter for letter in text if letter.isprintable()}, text
    return text.splitlines()


def shape(value: Any) -> Any:
    """Return the keys of an answer: values change between queries."""
    if isinstance(value, dict):
        return sorted(value)
    return [] if value in (None, [], "") else type(value).__name__


@pytest.mark.slow
def test_each_query_in_each_format(place: OperatedCluster) -> None:
    """Each format parses, has the content of the JSON, and the same exit code."""

    def one(question: tuple[tuple[str, ...], list[str]]) -> list[str]:
        path, words = question
        problems, answers, codes = [], {}, {}
        for form in FORMS:
            code, text, errors = place.run(*words, "-o", form)
            codes[form] = code
            if code not in CODES.get(" ".join(path), (0,)) or "Traceback" in errors + text:
                problems.append(f"{' '.join(words)} -o {form}: exit code {code}: {errors.strip() or text}")
                continue
            try:
                answers[form] = read(form, text)
            except (AssertionError, ValueError, yaml.YAMLError, csv.Error) as error:
                problems.append(f"{' '.join(words)} -o {form}: {error}")
        if not problems and shape(answers["yaml"]) != shape(answers["json"]):
            problems.append(f"{' '.join(words)}: yaml {shape(answers['yaml'])} is not json {shape(answers['json'])}")
        if not problems and answers["json"] and not (answers["table"] and answers["jsonl"] and answers["csv"]):
            problems.append(f"{' '.join(words)}: a form is empty")
        return problems

    with ThreadPoolExecutor(min(4, 2 * (os.cpu_count() or 1))) as beside:
        found = [problem for problems in beside.map(one, asked()) for problem in problems]
    assert not found, "\n".join(found)
