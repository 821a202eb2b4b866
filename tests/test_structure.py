"""Layers of the packages, read from the import statements of every module (docs/architecture.md)."""

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent

# The packages that a package may import. No tier imports another tier. Of ``wire``, ``jobs`` imports JOBS_OF_WIRE only.
ALLOWED_IMPORTS: dict[str, set[str]] = {
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

# The subpackages that a subpackage may import. Modules beside the subpackages connect them; only SHARED_MODULES of
# those are imported by a subpackage.
SUBPACKAGES: dict[str, dict[str, set[str]]] = {
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
SHARED_MODULES = {
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
}

# Modules that wait or own sockets. All others are cores or pure code.
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
UNSPECIFIC_NAMES = {"utils", "util", "helpers", "helper", "manager", "base", "common", "misc"}

MODULES = sorted(path for package in ALLOWED_IMPORTS for path in (ROOT / package).rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class Function(NamedTuple):
    """One function or method: its name, its length in lines, and the names that the types of its arguments name."""

    name: str
    lines: int
    takes: set[str]


class Source(NamedTuple):
    """The parts of one file that the checks read: imports as (line, module name), functions, docstring."""

    imports: list[tuple[int, str]]
    functions: list[Function]
    docstring: str


@cache
def source(path: Path) -> Source:
    """Parse a file once for all checks. The syntax tree is not kept: it would stay in memory for the whole run."""
    return parsed(path.read_text(encoding="utf-8"), path)


def parsed(text: str, path: Path) -> Source:
    """Return the parts of a source text. Imports inside functions and TYPE_CHECKING are included."""
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
    """Return the names in a type annotation, quoted ones included."""
    if annotation is None:
        return set()
    nodes = list(ast.walk(annotation))
    words = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return {node.id for node in nodes if isinstance(node, ast.Name)} | {
        word for text in words for word in re.findall(r"\w+", text)
    }


def test_packages_import_only_lower_packages() -> None:
    wrong = []
    for path in MODULES:
        package = module_name(path).split(".")[0]
        for line, name in source(path).imports:
            target = name.split(".")[0]
            if target in ALLOWED_IMPORTS and target != package and target not in ALLOWED_IMPORTS[package]:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
            if target == "tests":
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports tests")
    assert not wrong, "\n".join(wrong)


def test_jobs_import_only_sstable_modules_of_wire() -> None:
    """Jobs run on a Spark cluster without a broker."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in (ROOT / "jobs").rglob("*.py")
        for line, name in source(path).imports
        if name.startswith("wire") and not any(name == known or name.startswith(f"{known}.") for known in JOBS_OF_WIRE)
    ]
    assert not wrong, "\n".join(wrong)


def is_shell(module: str) -> bool:
    return module in SHELLS or re.search(SHELL_PATTERN, module) is not None


def test_cores_import_no_event_loop() -> None:
    """A core that imports Trio could not run in the simulation."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}: a core, or a shell missing from SHELLS?"
        for path in MODULES
        if not is_shell(module_name(path))
        for line, name in source(path).imports
        if name.split(".")[0] in ("trio", "asyncio", "anyio", "socket", "selectors") and "." not in name
    ]
    assert not wrong, "\n".join(wrong)


def test_module_names_are_specific() -> None:
    wrong = [
        str(path.relative_to(ROOT))
        for path in MODULES
        if UNSPECIFIC_NAMES & set(path.stem.split("_")) or path.parent.name in UNSPECIFIC_NAMES
    ]
    assert not wrong, "\n".join(wrong)


def test_parser_finds_imports_in_function_bodies() -> None:
    example = ROOT / "edge" / "example.py"
    text = "def f():\n    from router.placement.ring import Ring\nimport stratamq.cluster\n"
    found = {name for _, name in parsed(text, example).imports}
    assert {"router.placement.ring", "stratamq.cluster"} <= found
    assert "router" not in ALLOWED_IMPORTS[module_name(example).split(".")[0]]


# --- cycles, cores and lengths

CORES = {"EdgeCore", "RouterCore", "StorageCore"}
FUNCTION_LINES_MAX = 80
LONG_FUNCTIONS: dict[str, int] = {
    "edge.core.__init__": 85,
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
    """Return the modules that a module imports, directly or not; itself only if it is in a cycle."""
    found: set[str] = set()
    ahead = [start]
    while ahead:
        for module in graph.get(ahead.pop(), set()) - found:
            found.add(module)
            ahead.append(module)
    return found


def cycles(graph: dict[str, set[str]]) -> set[str]:
    """Return the modules that import themselves through others."""
    return {module for module in graph if module in reachable(graph, module)}


def test_modules_have_no_import_cycle() -> None:
    """Imports for type annotations count: they make a cycle for a reader as well."""
    assert cycles(import_graph()) == set()


def subpackage(module: str) -> str:
    """Return the subpackage of a module, "" for a module beside the subpackages."""
    parts = module.split(".")
    return parts[1] if len(parts) > 2 or (len(parts) == 2 and parts[1] in SUBPACKAGES.get(parts[0], {})) else ""


def test_subpackages_import_only_lower_subpackages() -> None:
    wrong = []
    for module, imported in import_graph().items():
        package, _, _ = module.partition(".")
        if package not in SUBPACKAGES or not subpackage(module):
            continue
        allowed = SUBPACKAGES[package][subpackage(module)] | {subpackage(module)}
        wrong += [
            f"{module} imports {name}"
            for name in sorted(imported)
            if name.startswith(f"{package}.") and name not in SHARED_MODULES and subpackage(name) not in allowed
        ]
    assert not wrong, "\n".join(wrong)
    for table in SUBPACKAGES.values():
        assert cycles(table) == set()


@pytest.mark.parametrize("package", SUBPACKAGES)
def test_architecture_page_lists_subpackages_in_import_order(package: str) -> None:
    (row,) = re.findall(rf"^\| `{package}/` \| (`.*) \|$", (ROOT / "docs/architecture.md").read_text(), re.MULTILINE)
    names = re.findall(r"`(\w+)`", row)
    assert sorted(names) == sorted(SUBPACKAGES[package])
    assert all(SUBPACKAGES[package][name] <= set(names[:place]) for place, name in enumerate(names))


def test_cycles_of_three_modules_is_found() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": set()}) == {"a", "b", "c"}


def test_functions_take_no_whole_core() -> None:
    """A component takes a view, a Protocol or a function. Only a service creates and owns a core."""
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


# --- predicates

PREDICATES = ("is_", "has_", "may_")
MUTATING_CALLS = {
    "add", "append", "appendleft", "clear", "discard", "extend", "insert", "move_to_end", "pop", "popitem", "popleft",
    "remove", "setdefault", "update",
}  # fmt: skip


def changes(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return True if a function assigns to an attribute or an item, or mutates a collection in an attribute."""
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            return True
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr in MUTATING_CALLS and isinstance(node.func.value, ast.Attribute):
            return True
    return False


def test_predicates_have_no_side_effect() -> None:
    """A function named ``is_``, ``has_`` or ``may_`` only returns a bool."""
    found = {
        (path.relative_to(ROOT).as_posix(), node.name)
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.lstrip("_").startswith(PREDICATES)
        and changes(node)
    }
    wrong = sorted(f"{file}: {name}" for file, name in found)
    assert not wrong, "predicates with a side effect:\n" + "\n".join(wrong)
