"""Bans and revocations for chains: the cluster's policy as this edge has it, and the listener's lists."""

from access.identity.chain import Revocations
from access.identity.principal import Credentials, Principal
from access.policy.view import PolicyView

__all__ = ["BanView", "RevokedView"]


class BanView:
    """Bans of the policy in force at this edge.

    Attributes:
        view: The policy; its follower sets a newer one before any client is checked by it.
    """

    def __init__(self) -> None:
        self.view = PolicyView()

    def is_banned(self, credentials: Credentials, principal: Principal | None, utc: float) -> bool:
        """Return True if the address is banned, or, once it is known, the principal."""
        bans = self.view.bans
        if principal is None:
            return bans.of_address(credentials.address, utc) is not None
        return bans.of_principal(principal.user, principal.client_id, principal.fingerprint, utc) is not None

    def is_revoked(self, issuer: str, serial: str) -> bool:
        """Return whether an operator revoked a certificate."""
        return self.view.is_revoked("serial", issuer, serial)

    def is_token_revoked(self, token_id: str) -> bool:
        """Return whether an operator revoked a token."""
        return self.view.is_revoked("token", "", token_id)


class RevokedView:
    """Revoked certificates of the policy and of a listener's CRL files.

    Attributes:
        lists: Of the files, None for a listener without any; a newer set replaces it.
    """

    def __init__(self, bans: BanView) -> None:
        self._bans = bans
        self.lists: Revocations | None = None

    def refusal(self, issuer: str, serial: str, utc: float) -> str:
        """Return why a certificate is refused, empty if it is not."""
        if self._bans.is_revoked(issuer, serial):
            return "revoked in the policy"
        return self.lists.refusal(issuer, serial, utc) if self.lists is not None else ""
