"""Handlers of the paths of verbs, generated from the verbs' arguments, with their OpenAPI description."""

import inspect
import re
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, get_args, get_origin

import msgspec
from litestar import Request, Response, delete, get, patch, post, put
from litestar.handlers import HTTPRouteHandler
from litestar.params import Body, Parameter

from access.operators.commands import VERBS
from admin.http.changes import CommandRequest
from admin.http.command_paths import BODIES, PATHS, VerbPath, at_node, own_fields
from admin.http.problems import Problem
from wire.messages.ranges import NodeName

__all__ = ["Carry", "verb_handlers"]

METHODS = {"GET": get, "POST": post, "PUT": put, "PATCH": patch, "DELETE": delete}
OWN = ("token create",)  # has its own handler
NONE = inspect.Parameter.empty
CONSTRAINTS = ("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length")

Carry = Callable[[CommandRequest], Awaitable[Response[Any]]]


def verb_handlers(run: Carry) -> list[HTTPRouteHandler]:
    """Return one handler for each row of the table without its own handler."""
    return [_handler(row, run) for row in PATHS if row.verb not in OWN]


def _handler(row: VerbPath, run: Carry) -> HTTPRouteHandler:
    verb = VERBS[row.verb]
    in_path = re.findall(r"\{(\w+)\}", row.path)
    fields = own_fields(row)
    body = _body_type(row) if row.method in BODIES and fields else None

    async def handle(request: Request[Any, Any, Any], **values: Any) -> Response[Any]:
        data = values.pop("data", None)
        dry_run, if_match = bool(values.pop("dry_run", False)), values.pop("if_match", None) or ""
        values = {name: value for name, value in values.items() if value is not None}
        if data is not None:
            values |= msgspec.structs.asdict(data)
        node = str(values.pop("node")) if at_node(row) else ""
        arguments = _checked(row, values)
        return await run(CommandRequest.of(request, row.verb, arguments, dry_run, if_match, node=node))

    parameters: dict[str, tuple[Any, Any]] = {"request": (Request[Any, Any, Any], NONE)}
    types = {field.name: field.type for field in msgspec.structs.fields(verb.arguments)}
    parameters |= {name: (_parameter(types.get(name, NodeName)), NONE) for name in in_path}
    if body is not None and any(field.required for field in fields):
        parameters["data"] = (Annotated[body, Body()], NONE)
    elif body is not None:  # every argument has a default: an empty body means the defaults
        parameters["data"] = (Annotated[body | None, Body()], None)
    else:
        parameters |= {field.name: _query(field) for field in fields}
    if verb.changes:
        text = "Dry run: only report the changes."
        parameters["dry_run"] = (Annotated[bool, Parameter(query="dry_run", description=text)], False)
        text = "The map_epoch on which the change is based; refused with 412 if the map has another one."
        parameters["if_match"] = (Annotated[str | None, Parameter(header="If-Match", description=text)], None)
    _sign(handle, parameters)
    make: Any = METHODS[row.method]
    path = re.sub(r"\{(\w+)\}", r"{\1:str}", row.path)
    operation = re.sub(r"\W+", "_", f"{row.verb}_{row.method.lower()}")
    role = verb.role.name.lower()
    text = f"The command `{row.verb}` of the CLI; needs the role {role}."
    options: dict[str, Any] = {"summary": row.summary, "description": text, "operation_id": operation, "opt": {}}
    options["opt"] |= {"role": verb.role, "verb": row.verb}
    if row.method != "GET":
        options["status_code"] = 200
    handler: HTTPRouteHandler = make(path, **options)(handle)
    return handler


def _sign(handle: Any, parameters: dict[str, tuple[Any, Any]]) -> None:
    """Set a handler's signature, from which Litestar parses requests and writes the description."""
    kind = inspect.Parameter.KEYWORD_ONLY
    listed = [
        inspect.Parameter(name, kind, default=default, annotation=of) for name, (of, default) in parameters.items()
    ]
    handle.__signature__ = inspect.Signature(listed, return_annotation=Response[dict[str, Any]])
    handle.__annotations__ = {name: of for name, (of, _) in parameters.items()} | {"return": Response[dict[str, Any]]}


def _query(field: msgspec.structs.FieldInfo) -> tuple[Any, Any]:
    if field.required:
        return _parameter(field.type), NONE
    default = None if field.default is msgspec.NODEFAULT else field.default
    of = field.type if default is not None else field.type | None
    return _parameter(of), default


def _parameter(of: Any) -> Any:
    """Return a type with its bounds in Litestar's form."""
    if get_origin(of) is not Annotated:
        return of
    plain, *metas = get_args(of)
    bounds = {
        name: value
        for meta in metas
        if isinstance(meta, msgspec.Meta)
        for name in CONSTRAINTS
        if (value := getattr(meta, name)) is not None
    }
    return Annotated[plain, Parameter(**bounds)]


def _body_type(row: VerbPath) -> type[msgspec.Struct]:
    fields: list[Any] = []
    for field in own_fields(row):
        if field.required:
            fields.append((field.name, field.type))
        elif field.default is not msgspec.NODEFAULT:
            fields.append((field.name, field.type, field.default))
        else:
            fields.append((field.name, field.type, msgspec.field(default_factory=field.default_factory)))
    name = "".join(word.capitalize() for word in row.verb.split())
    return msgspec.defstruct(name, fields, forbid_unknown_fields=True)


def _checked(row: VerbPath, values: dict[str, Any]) -> dict[str, Any]:
    """Return the validated arguments of the verb; ranges are checked before a node is contacted."""
    try:
        arguments = msgspec.convert(values, VERBS[row.verb].arguments, strict=False)
    except msgspec.ValidationError as error:
        raise Problem(400, "bad_request", str(error)) from None
    return {name: getattr(arguments, name) for name in arguments.__struct_fields__ if name != "dry_run"}
