"""Sources of settings: defaults < TOML file < environment < flags, with one line per mistake.

Defines precedence, names in the environment, suggestions for unknown names, and error texts. Sections and keys come
from the given pydantic models. Why not pydantic-settings: docs/adr/0028.
"""

import difflib
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from conf.errors import ExitCode, UserError
from conf.private_files import check_file
from conf.secret_names import shown_value
from conf.toml_lines import TomlLines
from conf.url_settings import Url
from conf.urls import mask_urls, shown_url

__all__ = ["ENVIRONMENT_NAMES", "ENVIRONMENT_PREFIX", "LoadedConfig", "load_rooms"]

ENVIRONMENT_PREFIX = "STRATAMQ_"
# Names with the prefix that are not settings; any other is an error.
ENVIRONMENT_NAMES = {
    "STRATAMQ_PURE": "1: run uncompiled modules (tests, debugging)",
    "STRATAMQ_CLUSTER": "name of the cluster for the command line",
    "STRATAMQ_ROUTER": "host:port of a router for the command line",
}
FILE_BYTES_MAX = 1024 * 1024
NEW_LINE = b"\n"
SUGGESTION_CUTOFF = 0.55  # of difflib's ratio; lower gives wrong suggestions, higher misses omitted words
FOREIGN_KEYS = {  # of Kafka's clients -> ours
    "group_id": "consumer_group",
    "bootstrap_servers": "brokers",
    "auto_offset_reset": "begin",
    "session_timeout_ms": "session_timeout_s",
}

Path_ = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """Validated sections, and the source of each value that is not a default."""

    rooms: dict[str, BaseModel]
    sources: dict[str, str]


class _Collector:
    """Values of all sources merged by path, with the source of each and the mistakes so far."""

    def __init__(self, rooms: Mapping[str, type[BaseModel]]) -> None:
        self.rooms = rooms
        self.values: dict[str, Any] = {}
        self.sources: dict[Path_, str] = {}
        self.mistakes: list[str] = []
        self.file = self.text = ""  # of the file, after it was read
        self._lines: TomlLines | None = None

    def at(self, path: Sequence[str]) -> str:
        """Return the file with the line of a key, for an error."""
        self._lines = self._lines or TomlLines(self.text)
        line = self._lines.of(path)
        return f"{self.file}:{line}" if line else self.file

    def put(self, path: Path_, value: object, source: str) -> None:
        """Set one value; tables are merged by leaf, so that a later source replaces only its own keys."""
        if isinstance(value, Mapping) and value:  # an empty table counts too: its missing keys are reported
            for key, item in value.items():
                self.put((*path, str(key)), item, source)
            return
        table = self.values
        for key in path[:-1]:
            inner = table.setdefault(key, {})
            if not isinstance(inner, dict):
                self.mistakes.append(f"{source}: {'.'.join(path)} is inside {key}, which is not a table")
                return
            table = inner
        if isinstance(value, Mapping):
            table.setdefault(path[-1], {})
        else:
            table[path[-1]] = value
        self.sources[path] = source

    def unknown_room(self, room: str, source: str) -> None:
        """Record an unknown section."""
        self.mistakes.append(f"{source}: unknown room {room}{_suggest(room, self.rooms)}")


def load_rooms(
    rooms: Mapping[str, type[BaseModel]],
    own: Sequence[str],
    *,
    defaults: Mapping[str, Mapping[str, object]],
    file: Path | None,
    environment: Mapping[str, str],
    flags: Sequence[str],
) -> LoadedConfig:
    """Merge the sources and validate the sections of this process.

    Args:
        rooms: All sections, by name.
        own: The sections of this process. A file may only name these; environment and flags may name any, since tiers
            share them, and the others' are checked for their names only.
        defaults: Overridden by every source.

    Raises:
        UserError: All mistakes, one line each; exit code 2.
    """
    collector = _Collector(rooms)
    for room, table in defaults.items():
        collector.put((room,), table, "default")
    if file is not None:
        _read_file(collector, file, {name: rooms[name] for name in own})
    _read_environment(collector, environment)
    _read_flags(collector, flags)
    validated = {}
    for room in rooms:
        if room in own or room in collector.values:
            model = _validate(collector, room, own=room in own)
            if model is not None and room in own:
                validated[room] = model
    if collector.mistakes:
        raise UserError("\n".join(collector.mistakes), ExitCode.USAGE)
    sources = {".".join(path): source for path, source in collector.sources.items() if source != "default"}
    return LoadedConfig(validated, sources)


# -- sources


def _read_file(collector: _Collector, file: Path, own: Mapping[str, type[BaseModel]]) -> None:
    try:
        check_file(file, "settings", FILE_BYTES_MAX)
        raw = file.read_bytes()  # text mode would turn a lone CR into a line end, which TOML does not have
        collector.file, collector.text = str(file), raw.decode()
        content = tomllib.loads(collector.text)
    except UserError as error:
        collector.mistakes.append(error.message)
        return
    except OSError as error:
        collector.mistakes.append(f"{file}: {error.strerror or error}")
        return
    except RecursionError:
        collector.mistakes.append(f"{file}: nested too deeply")
        return
    except UnicodeDecodeError as error:
        collector.mistakes.append(f"{file}:{raw.count(NEW_LINE, 0, error.start) + 1}: not TOML: no UTF-8")
        return
    except tomllib.TOMLDecodeError as error:
        collector.mistakes.append(f"{file}: not TOML: {error}")
        return
    for room, table in content.items():
        if room not in own:
            collector.mistakes.append(f"{collector.at((room,))}: unknown room {room}{_suggest(room, own)}")
        elif not isinstance(table, Mapping):
            collector.mistakes.append(f"{collector.at((room,))}: {room} is a section: write [{room}]")
        else:
            collector.put((room,), _by_name(collector, room, table), str(file))


def _by_name(collector: _Collector, room: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """Convert ``[[section.key]]`` lists of named tables into tables by name, which other sources can address."""
    result = {}
    for key, value in table.items():
        result[key] = value
        if not (isinstance(value, list) and value and all(_is_named(item) for item in value)):
            continue
        result[key] = named = {}
        for place, item in enumerate(value):
            name = item["name"]
            if name in named:  # the first one would be lost silently
                at = collector.at((room, key, str(place)))
                collector.mistakes.append(f"{at}: {room}.{key} has {name!r} twice; give each its own name")
            named[name] = item
    return result


def _is_named(item: object) -> bool:
    return isinstance(item, Mapping) and isinstance(item.get("name"), str)


def _read_environment(collector: _Collector, environment: Mapping[str, str]) -> None:
    for name in sorted(environment):
        if not name.startswith(ENVIRONMENT_PREFIX) or name in ENVIRONMENT_NAMES:
            continue
        path = tuple(part.lower() for part in name.removeprefix(ENVIRONMENT_PREFIX).split("__"))
        if path[0] not in collector.rooms or len(path) < 2 or not all(path):
            known = [*ENVIRONMENT_NAMES, *_environment_names(collector.rooms)]
            collector.mistakes.append(f"environment: unknown {name}{_suggest(name, known)}")
        else:
            collector.put(path, _value(environment[name]), f"environment {name}")


def _environment_names(rooms: Mapping[str, type[BaseModel]]) -> list[str]:
    return [
        f"{ENVIRONMENT_PREFIX}{room.upper()}__{key.upper()}"
        for room, model in rooms.items()
        for key in model.model_fields
    ]


def _read_flags(collector: _Collector, flags: Sequence[str]) -> None:
    for flag in flags:
        name, equals, text = flag.partition("=")
        path = tuple(name.strip().split("."))
        if not equals or len(path) < 2 or not all(path):
            collector.mistakes.append(f"--set {mask_urls(flag)}: expected room.key=value")
        elif path[0] not in collector.rooms:
            collector.unknown_room(path[0], f"--set {flag}")
        else:
            collector.put(path, _value(text), f"--set {name}")


def _value(text: str) -> object:
    """Parse lists and tables as TOML; scalars stay text, which the models convert."""
    if text.startswith(("[", "{")):
        try:
            return tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            return text
    return text


# -- mistakes


def _validate(collector: _Collector, room: str, *, own: bool) -> BaseModel | None:
    values = collector.values.get(room, {})
    try:
        return collector.rooms[room].model_validate(values)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            if own or detail["type"] == "extra_forbidden":
                collector.mistakes.append(_line(collector, room, values, detail))
        return None


def _line(collector: _Collector, room: str, values: Any, detail: Any) -> str:
    """Return one mistake as text: source, key, and reason."""
    path: Path_ = (room, *_named_path(values, detail["loc"]))
    key = ".".join(path)
    source = _source(collector, path)
    if detail["type"] == "extra_forbidden":
        known = _keys(collector.rooms[room], path[1:-1])
        prefix = ".".join(path[:-1])
        return f"{source}unknown key {key}{_suggest(path[-1], known, prefix)}"
    if detail["type"] == "missing":
        return f"{source}{key} is missing"
    message = detail["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    message = message[0].lower() + message[1:]
    given = detail["input"]
    shown = "" if isinstance(given, Mapping | BaseModel) else f" = {_shown(collector, path, given)!r}"
    return f"{source}{key}{shown}: {mask_urls(message)}"


def _shown(collector: _Collector, path: Path_, given: object) -> object:
    """Return an invalid value with secrets masked; the value of a URL setting is always masked."""
    if isinstance(given, str) and _is_url(collector.rooms[path[0]], path[1:]):
        return shown_url(given)
    return shown_value(path[-1], given)


def _is_url(model: type[BaseModel], path: Path_) -> bool:
    for part in path:
        field = model.model_fields.get(part)
        if field is None:
            continue  # the name of a table in a list of named tables
        for candidate in (field.annotation, *get_args(field.annotation)):
            if isinstance(candidate, type) and issubclass(candidate, Url):
                return True
            if isinstance(candidate, type) and issubclass(candidate, BaseModel):
                model = candidate
    return False


def _named_path(values: Any, location: Sequence[str | int]) -> Path_:
    """Replace positions in lists of named tables by the names."""
    path: list[str] = []
    for part in location:
        if isinstance(part, int) and isinstance(values, Mapping):
            part = list(values)[part]
        path.append(str(part))
        if isinstance(values, Mapping):
            values = values.get(part)
        elif isinstance(values, Sequence) and isinstance(part, int):
            values = values[part]
    return tuple(path)


def _source(collector: _Collector, path: Path_) -> str:
    """Return the source of a path, or of the first value below or above it."""
    for length in range(len(path), 0, -1):
        for known, source in collector.sources.items():
            if known[:length] == path[:length] and source != "default":
                return f"{collector.at(path) if source == collector.file else source}: "
    return ""


def _keys(model: type[BaseModel], path: Path_) -> list[str]:
    """Return the keys of the model at a path below a section."""
    for part in path:
        field = model.model_fields.get(part)
        if field is None:
            continue  # the name of a table in a list of named tables
        for candidate in (field.annotation, *get_args(field.annotation)):
            if isinstance(candidate, type) and issubclass(candidate, BaseModel):
                model = candidate
    return list(model.model_fields)


def _suggest(name: str, known: Iterable[str], prefix: str = "") -> str:
    matches = [FOREIGN_KEYS[name]] if FOREIGN_KEYS.get(name) in (known := list(known)) else []
    matches = matches or difflib.get_close_matches(name, known, n=1, cutoff=SUGGESTION_CUTOFF)
    if not matches:
        return ""
    return f" (did you mean {prefix}.{matches[0]}?)" if prefix else f" (did you mean {matches[0]}?)"
