"""The rooms and their arrows, read from the import statements of every module (docs/architecture.md)."""

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent

# Which rooms a room may import from; a tier never another tier, ``jobs`` of ``wire`` only the SSTable modules.
ARROWS: dict[str, set[str]] = {
    "stratamq": {
        "edge",
        "router",
        "storage",
        "gateways",
        "admin",
        "jobs",
        "membership",
        "access",
        "wire",
        "mqtt",
        "conf",
    },
    "edge": {"membership", "access", "wire", "mqtt", "conf"},
    "router": {"membership", "access", "wire", "mqtt", "conf"},
    "storage": {"membership", "access", "wire", "mqtt", "conf"},
    "gateways": {"membership", "access", "wire", "mqtt", "conf"},
    "admin": {"access", "wire", "mqtt", "conf"},
    "access": {"wire", "mqtt", "conf"},
    "membership": {"wire", "mqtt", "conf"},
    "jobs": {"wire", "conf"},
    "wire": {"mqtt", "conf"},
    "mqtt": set(),
    "conf": set(),
}
JOBS_OF_WIRE = {
    "wire.sstable.schema",
    "wire.sstable.manifest",
    "wire.sstable.run_reader",
    "wire.sstable.writer",
    "wire.sstable.ledger",
}

# Which sub-rooms of its room a sub-room may import from; files beside the sub-rooms join them, and none imports those
# but the floors.
SUB_ROOMS: dict[str, dict[str, set[str]]] = {
    "access": {
        "rules": set(),
        "identity": {"rules"},
        "limits": set(),
        "operators": set(),
        "policy": {"rules", "limits"},
    },
    "edge": {
        "loop": set(),
        "node": {"loop"},
        "rights": {"loop", "node"},
        "listeners": {"loop", "node"},
        "login": {"loop", "node", "listeners"},
        "cluster": {"loop", "node"},
        "routes": {"loop", "node"},
        "clients": {"loop", "node", "rights", "listeners", "login", "cluster"},
        "subscriptions": {"loop", "node", "rights", "clients", "cluster", "routes"},
        "publishing": {"loop", "node", "rights", "clients", "cluster", "routes", "subscriptions"},
        "queries": {"loop", "node", "rights", "clients", "cluster", "routes", "subscriptions"},
    },
    "gateways": {
        "balancer": set(),
        "bridges": set(),
        "datagrams": set(),
        "federation": set(),
    },
    "router": {
        "raft": set(),
        "placement": set(),
        "map": {"placement"},
        "routes": set(),
        "policy": {"raft", "map"},
        "operators": {"raft", "placement", "map", "routes", "policy"},
        "queries": {"raft", "map", "routes"},
    },
    "storage": {
        "state": set(),
        "store": {"state"},
        "rights": {"state"},
        "messages": {"state", "rights"},
        "replication": {"state"},
        "sessions": {"state", "rights", "messages"},
        "hosting": {"state", "rights", "messages", "sessions", "replication"},
        "queries": {"state", "messages", "sessions", "replication", "hosting"},
        "incoming": {"state", "rights", "messages", "sessions", "hosting", "queries"},
        "export": {"state", "store"},
    },
    "wire": {
        "messages": set(),
        "sstable": set(),
        "links": {"messages"},
        "queries": {"messages"},
        "node": {"messages", "links", "queries"},
    },
}
FLOORS = {
    "access.files",
    "gateways.addresses",
    "gateways.client",
    "gateways.presence",
    "gateways.process",
    "gateways.retry_delay",
    "gateways.spool",
    "gateways.spool_rows",
    "gateways.spool_thread",
    "gateways.transport",
    "wire.clock",
    "wire.decoding",
    "wire.cpu_yield",
    "wire.trio_epoll",
}  # files beside sub-rooms that these may import
PARAGRAPHS = ("Owns: ", "Doors: ", "Always holds: ", "May import: ")  # of a package's docstring, after its first line

# Thin shells: everything else is a core, or plain code, and neither waits nor owns sockets.
SHELLS = {
    "admin.http.changes",
    "admin.http.request_admission",
    "admin.http.live_cluster",
    "admin.http.overview_handlers",
    "admin.http.service",
    "admin.http.overview_poller",
    "access.operators.audit_service",
    "admin.doctor.examine",
    "admin.api_links",
    "admin.links",
    "admin.otlp",
    "admin.trace_export",
    "admin.trace_tail",
    "conf.admitted",
    "conf.metrics",
    "conf.http_connections",
    "conf.page_server",
    "conf.settings",  # asks for the host's name
    "edge.loop.descriptors",
    "edge.loop.host",
    "edge.loop.loop",
    "edge.loop.sockets",
    "edge.listeners.socket_handoff",
    "edge.listeners.handoff_socket",
    "edge.listeners.listeners",
    "edge.listeners.proxied_socket",
    "edge.login.hash_worker_service",
    "edge.login.callout_service",
    "edge.login.key_refresh_service",
    "gateways.balancer.arrival",
    "gateways.balancer.balancer_listener",
    "gateways.balancer.forwarding",
    "gateways.balancer.hand_over",
    "gateways.balancer.reading",
    "gateways.balancer.relay",
    "gateways.balancer.status",
    "gateways.balancer.tls_relay",
    "gateways.bridges.batch_sink",
    "gateways.bridges.dead_letter_file",
    "gateways.bridges.endpoint_check",
    "gateways.bridges.exactly_once",
    "gateways.bridges.files_sink",
    "gateways.bridges.kafka_sink",
    "gateways.bridges.kafka_source",
    "gateways.bridges.map_bridge",
    "gateways.bridges.mqtt_bridge",
    "gateways.bridges.redis_streams",
    "gateways.bridges.running",
    "gateways.bridges.standby",
    "gateways.bridges.webhook",
    "gateways.client",
    "gateways.datagrams.dtls",
    "gateways.datagrams.programs",
    "gateways.datagrams.service",
    "gateways.datagrams.sockets",
    "gateways.federation.interest.cluster_list",
    "gateways.federation.links",
    "gateways.federation.leadership_turns",
    "gateways.process",
    "gateways.spool_thread",
    "gateways.transport",
    "membership.admin",
    "membership.discovery",
    "membership.event_queue",
    "membership.exchange_streams",
    "membership.gossip",
    "membership.key_requests",
    "membership.node_gossip",
    "membership.slices",
    "membership.sockets",
    "router.operators.group_commands",
    "router.raft.disk_queue",
    "router.raft.node",
    "router.raft.outcomes",
    "storage.export.exporter",
    "storage.export.export_run",
    "storage.store.group_committer",
    "storage.store.log_syncs",
    "wire.links.connection",
    "wire.links.reactor_hook",
    "wire.links.hub",
    "wire.links.fast_path_run",
    "wire.links.request",
    "wire.links.tls_stream",
    "wire.node.process",
    "wire.node.reloading",
    "wire.node.signals",
    "wire.node.loop_lag",  # an instrument of trio
    "wire.cpu_yield",
    "wire.trio_epoll",
}
SHELL_PATTERN = r"^stratamq\.|\.service$|\.cli$|\.cli\."
NAMES_THAT_SAY_NOTHING = {"utils", "util", "helpers", "helper", "manager", "base", "common", "misc"}

MODULES = sorted(path for room in ARROWS for path in (ROOT / room).rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class Function(NamedTuple):
    """One function or method: its name, its length in lines, and the names that the types of its arguments name."""

    name: str
    lines: int
    takes: set[str]


class Source(NamedTuple):
    """What the checks want of one file: (line, full module name) of every import, functions, the first docstring."""

    imports: list[tuple[int, str]]
    functions: list[Function]
    docstring: str


@cache
def source(path: Path) -> Source:
    """Parse a file, once for all checks; a tree itself would be held in memory for the rest of the run."""
    return parsed(path.read_text(encoding="utf-8"), path)


def parsed(text: str, path: Path) -> Source:
    """Imports inside functions and TYPE_CHECKING are included."""
    tree = ast.parse(text)
    found = Source([], [], ast.get_docstring(tree) or "")
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.imports.extend((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            found.imports.append((node.lineno, node.module or ""))
            found.imports.extend((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            taken = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            names = set[str]().union(*(named_in(argument.annotation) for argument in taken))
            found.functions.append(Function(node.name, (node.end_lineno or 0) - node.lineno + 1, names))
    return found


def named_in(annotation: ast.expr | None) -> set[str]:
    """Return the names that a type names, in a string as well."""
    if annotation is None:
        return set()
    nodes = list(ast.walk(annotation))
    words = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return {node.id for node in nodes if isinstance(node, ast.Name)} | {
        word for text in words for word in re.findall(r"\w+", text)
    }


def test_imports_run_downward_only() -> None:
    """No arrow points up or sideways."""
    wrong = []
    for path in MODULES:
        room = module_name(path).split(".")[0]
        for line, name in source(path).imports:
            target = name.split(".")[0]
            if target in ARROWS and target != room and target not in ARROWS[room]:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
            if target == "tests":
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports tests")
    assert not wrong, "\n".join(wrong)


def test_jobs_read_the_exported_format_and_nothing_else_of_wire() -> None:
    """They run on a Spark cluster that has no broker."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in (ROOT / "jobs").rglob("*.py")
        for line, name in source(path).imports
        if name.startswith("wire") and not any(name == known or name.startswith(f"{known}.") for known in JOBS_OF_WIRE)
    ]
    assert not wrong, "\n".join(wrong)


def is_shell(module: str) -> bool:
    return module in SHELLS or re.search(SHELL_PATTERN, module) is not None


def test_cores_do_not_wait() -> None:
    """Trio is the shells' business; a core that imports it could not run in the simulation."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}: a core, or a shell missing from SHELLS?"
        for path in MODULES
        if not is_shell(module_name(path))
        for line, name in source(path).imports
        if name.split(".")[0] in ("trio", "asyncio", "anyio", "socket", "selectors") and "." not in name
    ]
    assert not wrong, "\n".join(wrong)


def test_files_are_named_for_what_they_define() -> None:
    """utils, helpers, manager and base name nothing."""
    wrong = [
        str(path.relative_to(ROOT))
        for path in MODULES
        if NAMES_THAT_SAY_NOTHING & set(path.stem.split("_")) or path.parent.name in NAMES_THAT_SAY_NOTHING
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_every_file_opens_with_what_it_decides(path: Path) -> None:
    """A docstring first; an empty __init__ says nothing because it holds nothing."""
    silent = not source(path).docstring and path.read_text(encoding="utf-8").strip()
    assert not silent, f"{path.relative_to(ROOT)} has no docstring"


def test_the_check_sees_what_it_should() -> None:
    """An arrow that points sideways, up, or from a function body is found."""
    example = ROOT / "edge" / "example.py"
    text = "def f():\n    from router.placement.ring import Ring\nimport stratamq.cluster\n"
    found = {name for _, name in parsed(text, example).imports}
    assert {"router.placement.ring", "stratamq.cluster"} <= found
    assert "router" not in ARROWS[module_name(example).split(".")[0]]


# --- circles, cores and lengths

CORES = {"EdgeCore", "RouterCore", "StorageCore"}
FUNCTION_LINES_MAX = 80
LONG_FUNCTIONS: dict[str, int] = {
    "edge.loop.encode.walk_properties": 87,
    "edge.loop.parse.parse": 144,
}


def import_graph() -> dict[str, set[str]]:
    """Return module -> modules of ours that it imports, TYPE_CHECKING and function bodies included."""
    names = {module_name(path) for path in MODULES}
    return {
        module: {name for _, name in source(path).imports if name in names and name != module}
        for module, path in ((module_name(path), path) for path in MODULES)
    }


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    """Return the modules that a module imports, directly or not; itself only if it is in a circle."""
    found: set[str] = set()
    ahead = [start]
    while ahead:
        for module in graph.get(ahead.pop(), set()) - found:
            found.add(module)
            ahead.append(module)
    return found


def circles(graph: dict[str, set[str]]) -> set[str]:
    """Return the modules that import themselves through others."""
    return {module for module in graph if module in reachable(graph, module)}


def test_no_circle_of_files() -> None:
    """Two files that import each other are one file; an import for types alone makes a circle for a reader as well."""
    assert circles(import_graph()) == set()


def sub_room(module: str) -> str:
    """Return the sub-room of a module, "" for a file beside the sub-rooms."""
    parts = module.split(".")
    return parts[1] if len(parts) > 2 or (len(parts) == 2 and parts[1] in SUB_ROOMS.get(parts[0], {})) else ""


def test_arrows_between_sub_rooms_run_one_way() -> None:
    """A room reads from below to above: what its table does not name is not imported, and the table has no circle."""
    wrong = []
    for module, imported in import_graph().items():
        room, _, _ = module.partition(".")
        if room not in SUB_ROOMS or not sub_room(module):
            continue
        allowed = SUB_ROOMS[room][sub_room(module)] | {sub_room(module)}
        wrong += [
            f"{module} imports {name}"
            for name in sorted(imported)
            if name.startswith(f"{room}.") and name not in FLOORS and sub_room(name) not in allowed
        ]
    assert not wrong, "\n".join(wrong)
    for table in SUB_ROOMS.values():
        assert circles(table) == set()


@pytest.mark.parametrize("room", SUB_ROOMS)
def test_the_page_names_each_sub_room_above_what_it_imports(room: str) -> None:
    (row,) = re.findall(rf"^\| `{room}/` \| (`.*) \|$", (ROOT / "docs/architecture.md").read_text(), re.MULTILINE)
    names = re.findall(r"`(\w+)`", row)
    assert sorted(names) == sorted(SUB_ROOMS[room])
    assert all(SUB_ROOMS[room][name] <= set(names[:place]) for place, name in enumerate(names))


@pytest.mark.parametrize("folder", sorted({path.parent for path in MODULES}), ids=lambda path: path.name)
def test_every_package_says_what_it_is(folder: Path) -> None:
    """Its docstring names what it owns, its doors, what always holds, and what it may import."""
    text = source(folder / "__init__.py").docstring
    assert text, f"{folder.relative_to(ROOT)} is silent"
    room = folder.relative_to(ROOT).parts[0]
    if room in SUB_ROOMS or room in ("membership", "jobs", "conf"):
        assert [found for found in PARAGRAPHS if f"\n\n{found}" in text] == list(PARAGRAPHS)


def test_a_circle_is_found() -> None:
    """Also one of three files; a file beside it is not in it."""
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": set()}) == {"a", "b", "c"}


def test_nobody_takes_a_whole_core() -> None:
    """A part names what it uses: a view, a Protocol, a function. Only a service makes a core and keeps it."""
    takers = {module_name(path) for path in MODULES for function in source(path).functions if CORES & function.takes}
    assert takers == set()


def test_functions_are_short() -> None:
    """A function of more than 80 lines is named in the table, which may only shrink."""
    found = {
        f"{module_name(path)}.{function.name}": function.lines
        for path in MODULES
        for function in source(path).functions
        if function.lines > FUNCTION_LINES_MAX
    }
    grown = {name: count for name, count in found.items() if count > LONG_FUNCTIONS.get(name, 0)}
    assert not grown, f"longer than LONG_FUNCTIONS allows: {grown}"
    assert found.keys() >= LONG_FUNCTIONS.keys(), f"short now: {sorted(LONG_FUNCTIONS.keys() - found.keys())}"
