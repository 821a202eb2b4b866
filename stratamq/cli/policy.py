"""``stratamq user | role | group | ban | revoke | policy``: authentication and authorization of clients.

Passwords come from a prompt, a file or a descriptor, never from the command line, which other processes can read.
Only their argon2id record leaves this process, and the SCRAM verifier if requested. A verb that revokes permissions
returns when every node has applied it. Exit code 3: it is committed, and the named nodes are pending.
"""

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from conf.limit_names import LIMIT_BELOW, LIMIT_NAMES
from stratamq.cli.commands import asks, group, verb_about
from stratamq.cli.durations import seconds_of
from stratamq.cli.node_requests import Options, answer, show
from stratamq.cli.output import print_result
from stratamq.cli.router_lists import list_pages

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

__all__ = ["register"]

CLOCKS_DIFFER_S = 300  # clock difference, and 30 s of leeway after a token's exp
DIGEST = re.compile(r"[0-9a-f]{64}")
LIMIT_DIGITS_MAX = 30  # with leading zeros; Python limits the digits of int()
PASSWORD_BYTES_MAX = 65_535  # of a password in CONNECT

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only print the changes, and the affected clients.")]
UserArgument = Annotated[str, typer.Argument(metavar="USER")]
RolesOption = Annotated[list[str] | None, typer.Option("--role", help="Role of the user; repeatable.")]
GroupsOption = Annotated[list[str] | None, typer.Option("--group", help="Group of the user; repeatable.")]
LimitsOption = Annotated[
    list[str] | None,
    typer.Option("--limit", help=f"name=number; {', '.join(LIMIT_NAMES)}; repeatable."),
]
FileOption = Annotated[
    Path | None, typer.Option("--password-file", help="Read the password from the first line of this file, mode 0600.")
]
ScramOption = Annotated[bool, typer.Option("--scram", help="Also create a SCRAM-SHA-256 verifier.")]
DescriptorOption = Annotated[
    int | None, typer.Option("--password-fd", help="Read the password from the first line of this open descriptor.")
]
FiltersOption = list[str] | None
KindOption = Annotated[
    str, typer.Argument(metavar="KIND", help="user, client_id, address, network or certificate (its fingerprint).")
]


def register(app: typer.Typer) -> None:
    """Add the groups."""
    users = group(app, "user", "Users of the cluster.")
    for command in (add_user, change_user, password_of_user):
        users.command(command.__name__.partition("_")[0])(command)
    verb_about(users, "user show", "user", "Show roles, groups and state of one user.")
    for name, text in (
        ("disable", "Disable a user and close its connections."),
        ("enable", "Enable a disabled user."),
        ("delete", "Delete a user; a later user of that name does not own its sessions."),
    ):
        _about(users, "user", name, text)
    roles = group(app, "role", "Roles: permissions of users.")
    roles.command("put")(put_role)
    verb_about(roles, "role show", "role", "Show the rules of one role.")
    _about(roles, "role", "delete", "Delete an unused role.")
    groups = group(app, "group", "Groups: users with common roles.")
    groups.command("put")(put_group)
    verb_about(groups, "group show", "group", "Show the roles of one group.")
    _about(groups, "group", "delete", "Delete an empty group.")
    bans = group(app, "ban", "Bans of users, client identifiers, addresses, networks and certificates.")
    bans.command("add")(add_ban)
    bans.command("del")(del_ban)
    for to, name in ((users, "user"), (roles, "role"), (groups, "group"), (bans, "ban")):
        list_pages(to, name, f"List every {name}, by name.")
    app.command("revoke")(revoke)
    app.command("unrevoke")(unrevoke)
    group(app, "policy", "The policy of the cluster as a whole.").command("status")(status)


def _about(to: typer.Typer, what: str, verb: str, text: str) -> None:
    """Add a verb that changes one record; a deletion first prints the record and requires --yes."""
    loses = verb == "delete"

    @asks
    def command(
        options: Options,
        name: Annotated[str, typer.Argument(metavar=what.upper())],
        yes: Annotated[bool, typer.Option("--yes", help="Confirm.", hidden=not loses)] = False,
        dry_run: DryRunOption = False,
    ) -> None:
        if loses and not (yes or dry_run or options.show_api):
            _say_what_is_lost(what, name, options)
        show(f"{what} {verb}", {what: name, "dry_run": dry_run}, options)

    to.command(verb, help=text)(command)


def _say_what_is_lost(what: str, name: str, options: Options) -> None:
    """Print a record and the clients that its deletion affects.

    Raises:
        UserError: Always: the deletion is refused, or --yes is missing.
    """
    from conf.errors import ExitCode, UserError

    tried = answer(f"{what} delete", {what: name, "dry_run": True}, options)
    lost = answer(f"{what} show", {what: name}, options)
    print_result({**lost, "takes_from": tried.get("takes_from")}, options.output)
    raise UserError(
        f"`{what} delete {name[:64]}` deletes this permanently; repeat the command with --yes", ExitCode.USAGE
    )


# --- users


@asks
def add_user(
    options: Options,
    user: UserArgument,
    role: RolesOption = None,
    group: GroupsOption = None,
    limit: LimitsOption = None,
    password_file: FileOption = None,
    password_fd: DescriptorOption = None,
    no_password: Annotated[
        bool, typer.Option("--no-password", help="Create a user that logs in by certificate or token.")
    ] = False,
    scram: ScramOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Create a user; the password comes from a prompt, a file or a descriptor."""
    from conf.errors import ExitCode, UserError

    if no_password and scram:
        raise UserError(
            "a user without a password has no verifier: use --scram or --no-password, not both", ExitCode.USAGE
        )
    made = {} if no_password else _records(options, user, password_file, password_fd, scram)
    arguments = {"user": user, **made, "roles": role or [], "groups": group or [], "dry_run": dry_run}
    show("user add", {**arguments, "limits": _limits(limit)}, options)


@asks
def change_user(
    options: Options,
    user: UserArgument,
    role: RolesOption = None,
    group: GroupsOption = None,
    limit: LimitsOption = None,
    no_roles: Annotated[bool, typer.Option("--no-roles", help="Remove all roles.")] = False,
    no_groups: Annotated[bool, typer.Option("--no-groups", help="Remove the user from all groups.")] = False,
    no_limits: Annotated[bool, typer.Option("--no-limits", help="Remove all limits.")] = False,
    dry_run: DryRunOption = False,
) -> None:
    """Replace roles, groups or limits of a user; attributes without an option stay unchanged."""
    from conf.errors import ExitCode, UserError

    arguments: dict[str, object] = {"user": user, "dry_run": dry_run}
    for key, named, none in (("roles", role, no_roles), ("groups", group, no_groups)):
        if named or none:
            arguments[key] = named or []
    if limit or no_limits:
        arguments["limits"] = _limits(limit)
    if len(arguments) == 2:
        raise UserError("nothing to change: use --role, --group, --limit, or --no-roles and the like", ExitCode.USAGE)
    show("user change", arguments, options)


@asks
def password_of_user(
    options: Options,
    user: UserArgument,
    password_file: FileOption = None,
    password_fd: DescriptorOption = None,
    scram: ScramOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Change a user's password and close its connections."""
    made = _records(options, user, password_file, password_fd, scram)
    show("user password", {"user": user, **made, "dry_run": dry_run}, options)


def _limits(given: list[str] | None) -> dict[str, int]:
    from conf.errors import ExitCode, UserError

    limits = {}
    for text in given or []:
        name, _, number = text.partition("=")
        is_number = number.isascii() and number.isdigit() and len(number) <= LIMIT_DIGITS_MAX
        if name not in LIMIT_NAMES or not is_number or int(number) >= LIMIT_BELOW:
            known = f"{', '.join(LIMIT_NAMES)}, each followed by = and an integer below 2^62"
            raise UserError(f"--limit {text[:128]!r}: {known}", ExitCode.USAGE)
        limits[name] = int(number)
    return limits


def _records(options: Options, user: str, file: Path | None, descriptor: int | None, scram: bool) -> dict[str, str]:
    """Return the policy's records of a password; with --show-api placeholders, without reading one."""
    import secrets

    from access.identity.passwords import OWN_SALT_BYTES, encode_record, has_argon2, make_record
    from conf.errors import ExitCode, UserError

    if options.show_api:
        return {"record": "$argon2id$...", **({"verifier": "SCRAM-SHA-256$..."} if scram else {})}
    if not has_argon2():
        raise UserError("the installed cryptography has no argon2id: install 44 or newer, built with OpenSSL 3.2")
    if file is not None and descriptor is not None:
        raise UserError("use --password-file or --password-fd, not both", ExitCode.USAGE)
    password = _asked() if file is None and descriptor is None else _read(file, descriptor)
    if not password:
        raise UserError("the password is empty: use --no-password for a user without one", ExitCode.USAGE)
    made = {"record": encode_record(make_record(password, secrets.token_bytes(OWN_SALT_BYTES)))}
    return {**made, "verifier": _verifier(user, password)} if scram else made


def _verifier(user: str, password: bytes) -> str:
    import secrets

    from access.identity.scram import SALT_BYTES, make_verifier
    from conf.errors import ExitCode, UserError

    try:
        return make_verifier(user, password.decode(), secrets.token_bytes(SALT_BYTES))
    except UnicodeDecodeError:
        raise UserError("--scram: SCRAM requires a password in UTF-8", ExitCode.USAGE) from None
    except ValueError as error:
        raise UserError(f"--scram: invalid name or password for SCRAM: {error}", ExitCode.USAGE) from None


def _read(file: Path | None, descriptor: int | None) -> bytes:
    """Return the first line of a private file or of a descriptor."""
    from conf.errors import UserError
    from conf.private_files import check_private

    where = f"descriptor {descriptor}" if file is None else str(file)
    try:
        if file is not None:
            check_private(file, "the password file")
        with open(file if file is not None else descriptor or 0, "rb", closefd=file is not None) as source:
            line = source.readline(PASSWORD_BYTES_MAX + 2)
    except OSError as error:
        raise UserError(f"cannot read a password from {where}: {error.strerror or error}") from None
    password = line.removesuffix(b"\n").removesuffix(b"\r")
    if len(password) > PASSWORD_BYTES_MAX:
        raise UserError(f"{where}: the password exceeds {PASSWORD_BYTES_MAX} bytes, the limit of CONNECT")
    return password


def _asked() -> bytes:
    import getpass

    from conf.errors import ExitCode, UserError

    if not sys.stdin.isatty():
        raise UserError("no terminal for a password prompt: use --password-file or --password-fd 0", ExitCode.USAGE)
    first = getpass.getpass("password: ")
    if getpass.getpass("again: ") != first:
        raise UserError("the passwords differ", ExitCode.USAGE)
    return os.fsencode(first)


# --- roles and groups


@asks
def put_role(
    options: Options,
    role: Annotated[str, typer.Argument(metavar="ROLE")],
    publish: Annotated[
        FiltersOption, typer.Option("--publish", help="Allow publishing to these topic filters.")
    ] = None,
    subscribe: Annotated[
        FiltersOption, typer.Option("--subscribe", help="Allow subscribing to these topic filters.")
    ] = None,
    deny: Annotated[FiltersOption, typer.Option("--deny", help="Deny publishing and subscribing.")] = None,
    deny_publish: Annotated[FiltersOption, typer.Option("--deny-publish", help="Deny publishing.")] = None,
    deny_subscribe: Annotated[FiltersOption, typer.Option("--deny-subscribe", help="Deny subscribing.")] = None,
    share: Annotated[FiltersOption, typer.Option("--share", help="Allow only these share names.")] = None,
    qos_max: Annotated[int, typer.Option("--qos-max", min=0, max=2, help="Highest QoS.")] = 2,
    no_retain: Annotated[bool, typer.Option("--no-retain", help="Deny retained messages.")] = False,
    no_will: Annotated[bool, typer.Option("--no-will", help="Deny wills.")] = False,
    priority: Annotated[
        int, typer.Option("--priority", help="Priority; rules of higher ones are evaluated first.")
    ] = 0,
    listener: Annotated[str, typer.Option("--listener", help="Only for clients of this listener.")] = "",
    network: Annotated[str, typer.Option("--network", help="Only for addresses in this network.")] = "",
    limit: LimitsOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Create a role, or replace its rules and limits. Filters may contain %u and %c as whole levels."""
    rules: list[dict[str, Any]] = _rules(
        publish=publish or [],
        subscribe=subscribe or [],
        deny=deny or [],
        deny_publish=deny_publish or [],
        deny_subscribe=deny_subscribe or [],
        share=share or [],
        qos_max=qos_max,
        retain=not no_retain,
        will=not no_will,
        listener=listener,
        network=network,
    )
    arguments = {"role": role, "rules": rules, "priority": priority, "limits": _limits(limit), "dry_run": dry_run}
    show("role put", arguments, options)


def _rules(**words: Any) -> list[dict[str, Any]]:
    from pydantic import ValidationError

    from access.rules.role_table import RoleEntry, rows_of
    from conf.errors import ExitCode, UserError

    try:
        role = RoleEntry(**words)
    except ValidationError as error:
        raise UserError(str(error.errors()[0]["msg"]), ExitCode.USAGE) from None
    return [
        {
            "allow": allow,
            "actions": int(actions),
            "filter": text,
            "qos_max": qos_max,
            "listener": role.listener,
            "network": role.network,
        }
        for _, filters, allow, actions, qos_max in rows_of(role)
        for text in filters
    ]


@asks
def put_group(
    options: Options,
    group: Annotated[str, typer.Argument(metavar="GROUP")],
    role: Annotated[list[str] | None, typer.Option("--role", help="Role of the group's users; repeatable.")] = None,
    limit: LimitsOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Create a group, or replace its roles and limits."""
    arguments = {"group": group, "roles": role or [], "limits": _limits(limit), "dry_run": dry_run}
    show("group put", arguments, options)


# --- bans and revocations


@asks
def add_ban(
    options: Options,
    kind: KindOption,
    value: Annotated[str, typer.Argument(metavar="VALUE")],
    for_s: Annotated[str, typer.Option("--for", help="Duration: 30s, 10m, 2h or 7d; default: until deleted.")] = "",
    reason: Annotated[str, typer.Option("--reason", help="Reason, shown by `ban list`.")] = "",
    dry_run: DryRunOption = False,
) -> None:
    """Ban clients and close their connections."""
    arguments = {"kind": kind, "value": value, "for_s": seconds_of(for_s), "reason": reason, "dry_run": dry_run}
    show("ban add", arguments, options)


@asks
def del_ban(
    options: Options,
    kind: KindOption,
    value: Annotated[str, typer.Argument(metavar="VALUE")],
    dry_run: DryRunOption = False,
) -> None:
    """Delete a ban."""
    show("ban del", {"kind": kind, "value": value, "dry_run": dry_run}, options)


SerialArgument = Annotated[
    str, typer.Argument(metavar="[SERIAL]", help="Serial number in hexadecimal; requires --issuer.")
]
IssuerOption = Annotated[str, typer.Option("--issuer", help="SHA-256 of the issuer's name in DER, hexadecimal.")]
CertificateOption = Annotated[
    Path | None, typer.Option("--certificate", help="Certificate file in PEM, instead of SERIAL and --issuer.")
]


TokenOption = Annotated[str, typer.Option("--token", help="The jti of a token, instead of a certificate.")]


@asks
def revoke(
    options: Options,
    serial: SerialArgument = "",
    issuer: IssuerOption = "",
    certificate: CertificateOption = None,
    token: TokenOption = "",
    for_s: Annotated[
        str,
        typer.Option(
            "--for", help="Duration of the revocation, as 90d; default with --certificate: its remaining validity."
        ),
    ] = "",
    until: Annotated[int, typer.Option("--until", min=0, help="The exp of the token, instead of --for.")] = 0,
    reason: Annotated[str, typer.Option("--reason", help="Reason, stored with the revocation.")] = "",
    dry_run: DryRunOption = False,
) -> None:
    """Revoke a client's certificate or token and close its connections."""
    from conf.errors import ExitCode, UserError

    named = _revoked(serial, issuer, certificate, token)
    if not DIGEST.fullmatch(
        str(named.get("issuer", "0" * 64))
    ):  # no issuer has it, so the revocation would have no effect
        text = "is not a SHA-256 of 64 hexadecimal digits of an issuer's name in DER; or use --certificate FILE"
        raise UserError(f"--issuer {issuer[:80]!r} {text}", ExitCode.USAGE)
    stands_s = _until(until, for_s) if until else seconds_of(for_s)
    if certificate is not None:
        stands_s = _as_long_as(certificate, stands_s)
    show("revoke", {**named, "for_s": stands_s, "reason": reason, "dry_run": dry_run}, options)


@asks
def unrevoke(
    options: Options,
    serial: SerialArgument = "",
    issuer: IssuerOption = "",
    certificate: CertificateOption = None,
    token: TokenOption = "",
    dry_run: DryRunOption = False,
) -> None:
    """Delete a revocation."""
    show("unrevoke", {**_revoked(serial, issuer, certificate, token), "dry_run": dry_run}, options)


def _revoked(serial: str, issuer: str, file: Path | None, token: str) -> dict[str, object]:
    """Return the identification of a token or a certificate."""
    from conf.errors import ExitCode, UserError

    if not token:
        return _certificate(serial, issuer, file)
    if serial or issuer or file is not None:
        raise UserError("use --token JTI or a certificate, not both", ExitCode.USAGE)
    return {"kind": "token", "value": token}


def _until(exp: int, for_s: str) -> float:
    """Return the duration of a token's revocation; edges accept tokens for a while after exp, by their own clocks."""
    import time

    from conf.errors import ExitCode, UserError

    left = exp + CLOCKS_DIFFER_S - time.time()
    if for_s or left <= 0:
        raise UserError("--until: use a time in the future, and not together with --for", ExitCode.USAGE)
    return left


def _as_long_as(file: Path, for_s: float) -> float:
    """Return the duration of a certificate's revocation; 0 is the remaining validity of the certificate."""
    import time

    from access.operators.arguments import SECONDS_MAX
    from conf.errors import ExitCode, UserError

    good_for_s = _read_certificate(file).not_valid_after_utc.timestamp() - time.time()
    if for_s and for_s < good_for_s:
        raise UserError(f"--for: {file} is valid for longer and would be accepted again: omit --for", ExitCode.USAGE)
    stands_s = for_s or max(good_for_s, 0.0) + CLOCKS_DIFFER_S
    return stands_s if stands_s <= SECONDS_MAX else 0.0


def _certificate(serial: str, issuer: str, file: Path | None) -> dict[str, object]:
    """Return the identification of a certificate, from the arguments or the file."""
    from conf.errors import ExitCode, UserError

    if file is not None and (serial or issuer):
        raise UserError("use --certificate, or SERIAL and --issuer, not both", ExitCode.USAGE)
    if file is not None:
        from access.identity.certificates import issuer_digest

        shown = _read_certificate(file)
        serial, issuer = f"{shown.serial_number:x}", issuer_digest(shown.issuer)
    if not serial or not issuer:
        raise UserError("use --certificate FILE, SERIAL and --issuer, or --token JTI", ExitCode.USAGE)
    value = serial.replace(":", "").lower().lstrip("0")
    return {"kind": "serial", "value": value, "issuer": issuer.replace(":", "").lower()}


def _read_certificate(file: Path) -> "Certificate":
    from cryptography import x509

    from conf.errors import ExitCode, UserError

    try:
        return x509.load_pem_x509_certificate(file.read_bytes())
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror or error}") from None
    except ValueError:
        raise UserError(f"{file} is not a valid PEM certificate", ExitCode.USAGE) from None


@asks
def status(
    options: Options,
    epoch: Annotated[
        int, typer.Option("--epoch", min=0, help="Policy epoch from a command's output; 0: the newest.")
    ] = 0,
) -> None:
    """Wait until a policy epoch is in force on every node; print the pending nodes."""
    show("policy status", {"epoch": epoch}, options)
