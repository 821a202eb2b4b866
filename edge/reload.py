"""Reload parts of the edge: certificates, limits and rules of its listeners, and their authentication chains.

A reload may add authorities of clients. Removal of one requires a restart: the connections of its clients would stay.
"""

import ssl
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from conf import limit_settings
from conf.errors import UserError
from conf.limit_names import LIMIT_NAMES
from conf.settings import ListenerSettings
from edge.listeners.listeners import EdgeListener, certified_hosts, listener_context, policy_of
from edge.login.chains import Chains
from edge.login.gateway_certificates import GatewayCertificates, Signers, gateway_signers
from edge.login.listener_chain import ListenerChain
from edge.login.logins import ConnectingClient
from edge.node.limits import ListenerPolicy
from edge.rights.rule_files import RULE_SETTINGS, read_rules, rule_paths
from edge.rights.sources import RuleBook
from wire.links.tls import loses_authority
from wire.node.reload_parts import changed_files, file_marks

__all__ = ["ListenerCertificates", "ListenerLimitsReload", "ListenerLogins", "ListenerRuleFiles"]

LIMITS = tuple(key for key in limit_settings.ListenerLimits.model_fields if key != "proxy_identity")

Loaded = tuple[ssl.SSLContext | None, dict[str, str], Signers | None, frozenset[str]]
Rules = tuple[RuleBook, dict[str, str], object]  # in force, marks of files, settings


class ListenerCertificates:
    """Certificate, key and client authority of one listener; later handshakes use the reloaded files.

    Args:
        listener: The listener.
        gateways: Reads clients' certificates; its authority of the nodes changes together with the contexts.
    """

    def __init__(self, listener: EdgeListener, gateways: GatewayCertificates) -> None:
        self._listener = listener
        self._gateways = gateways
        name = listener.settings.name
        self.settings: Sequence[str] = tuple(
            f"edge.listeners.{name}.{key}" for key in ("certificate", "key", "client_ca")
        )
        signers = gateways.signers
        self._held: Loaded = (listener.context, _marks(listener.settings, signers), signers, listener.hosts.certified)

    def load(self, config: Any) -> Loaded:
        """Read the listener's files.

        Raises:
            UserError: One is unusable, or an authority was removed.
        """
        name = self._listener.settings.name
        signers = gateway_signers(config)
        for settings in config.edge.listeners:
            if settings.name == name:
                marks = _marks(settings, signers)
                context = listener_context(settings, signers.path if signers is not None else None)
                old = self._held[0]
                if old is not None and context is not None and loses_authority(old, context):
                    raise UserError(
                        f"listener {name}: an authority was removed from client_ca {settings.client_ca}: restart "
                        "the node, because its connected clients would stay"
                    )
                return context, marks, signers, certified_hosts(settings)
        raise UserError(f"listener {name} was removed from the settings: restart the node")

    def current(self) -> Loaded:
        """Return the context in force."""
        return self._held

    def difference(self, loaded: Loaded) -> list[str]:
        """Return the files with changed content."""
        return changed_files(self._held[1], loaded[1])

    def put(self, loaded: Loaded) -> None:
        """Use this context for later handshakes."""
        self._listener.context, self._gateways.signers = loaded[0], loaded[2]
        self._listener.hosts.set_certified(loaded[3])
        self._held = loaded


class ListenerLimitsReload:
    """Limits of one listener; connections stay, with the new limits.

    Args:
        listener: The listener.
        replace: Applies other limits to its live clients.
    """

    def __init__(self, listener: EdgeListener, replace: Callable[[ListenerPolicy], None]) -> None:
        self._listener = listener
        self._replace = replace
        self._held = listener.settings
        self.settings: Sequence[str] = tuple(f"edge.listeners.{listener.settings.name}.{key}" for key in LIMITS)

    def load(self, config: Any) -> ListenerSettings:
        """Return the listener's settings; their ranges are validated already.

        Raises:
            UserError: It was removed.
        """
        name = self._listener.settings.name
        for settings in config.edge.listeners:
            if settings.name == name:
                return settings  # type: ignore[no-any-return]
        raise UserError(f"listener {name} was removed from the settings: restart the node")

    def current(self) -> ListenerSettings:
        """Return the settings in force."""
        return self._held

    def difference(self, loaded: ListenerSettings) -> list[str]:
        """Return no further differences: the settings contain all of them."""
        del loaded
        return []

    def put(self, loaded: ListenerSettings) -> None:
        """Apply these limits."""
        former, self._held = self._held, loaded
        if all(getattr(loaded, key) == getattr(former, key) for key in LIMITS):
            return
        self._listener.admission.limit(loaded)
        now = policy_of(loaded)
        self._listener.policy = replace(self._listener.policy, **{key: getattr(now, key) for key in LIMIT_NAMES})
        self._replace(self._listener.policy)


class ListenerLogins:
    """Files of users of one listener's chain; later logins use the reloaded files.

    A client is closed if its user was removed from the file, or has another secret there.

    Args:
        name: Of the listener.
        config: Of the start.
        chains: Of this edge; receives the listener's chain.
        end_those: Closes live clients.

    Raises:
        UserError: A file is unusable.
    """

    def __init__(
        self, name: str, config: Any, chains: Chains, end_those: Callable[[Callable[[ConnectingClient], bool]], None]
    ) -> None:
        self._name = name
        self._chains = chains
        self._end_those = end_those
        own = ("password_file", "token_keys", "token_secret")
        self.settings: Sequence[str] = (
            *(f"edge.listeners.{name}.{key}" for key in own),
            "edge.scram_users_file",
            "edge.scram_secret_file",
        )
        self._held = self.load(config)
        chains.put(name, self._held[0].chain)

    def load(self, config: Any) -> tuple[ListenerChain, dict[str, str]]:
        """Read the listener's files.

        Raises:
            UserError: One is unusable.
        """
        for listener in config.edge.listeners:
            if listener.name == self._name:
                loaded = ListenerChain(listener, config.edge, self._chains)
                return loaded, loaded.marks
        raise UserError(f"listener {self._name} was removed from the settings: restart the node")

    def current(self) -> tuple[ListenerChain, dict[str, str]]:
        """Return the chain in force."""
        return self._held

    def difference(self, loaded: tuple[ListenerChain, dict[str, str]]) -> list[str]:
        """Return the files with changed content."""
        return changed_files(self._held[1], loaded[1])

    def put(self, loaded: tuple[ListenerChain, dict[str, str]]) -> None:
        """Apply these files."""
        former, new = self._held[0], loaded[0]
        if loaded[1] == self._held[1]:
            return
        self._chains.put(self._name, new.chain)
        self._held = loaded

        def is_gone(client: ConnectingClient) -> bool:
            principal = client.principal
            return (
                principal is not None
                and client.policy.name == self._name
                and new.is_gone(principal.method, principal.user, former)
            )

        self._end_those(is_gone)


class ListenerRuleFiles:
    """Rules of all listeners of an edge; live clients are authorized by them in slices.

    Args:
        config: Of the start.
        replace: Applies other rules.

    Raises:
        UserError: A file is unusable.
    """

    def __init__(self, config: Any, replace: Callable[[RuleBook], None]) -> None:
        self._replace = replace
        self.settings: Sequence[str] = tuple(
            f"edge.listeners.{listener.name}.{key}" for listener in config.edge.listeners for key in RULE_SETTINGS
        )
        self._held = _read_rules(config.edge.listeners)

    @property
    def book(self) -> RuleBook:
        """The rules in force."""
        return self._held[0]

    def load(self, config: Any) -> Rules:
        """Read the files of all listeners.

        Raises:
            UserError: One is unusable, or a listener has no rules any more.
        """
        return _read_rules(config.edge.listeners)

    def current(self) -> Rules:
        """Return the rules in force."""
        return self._held

    def difference(self, loaded: Rules) -> list[str]:
        """Return the files with changed content."""
        return changed_files(self._held[1], loaded[1])

    def put(self, loaded: Rules) -> None:
        """Apply these rules."""
        if loaded[1:] != self._held[1:]:
            self._replace(loaded[0])
        self._held = loaded


def _read_rules(listeners: Any) -> Rules:
    marks = file_marks(rule_paths(listeners))
    return read_rules(listeners), marks, _rule_settings(listeners)


def _rule_settings(listeners: Any) -> list[tuple[object, ...]]:
    return [(listener.name, *(getattr(listener, key) for key in RULE_SETTINGS)) for listener in listeners]


def _marks(settings: Any, signers: Signers | None) -> dict[str, str]:
    if not settings.tls:
        return {}
    return file_marks(
        [
            path
            for path in (settings.certificate, settings.client_ca, signers.path if signers is not None else None)
            if path is not None
        ]
    )
