"""Numbers of settings that want all memory, or that no machine word holds: each is refused where it stands."""

import pytest
from pydantic import BaseModel

from conf.edge_settings import ListenerSettings
from conf.errors import UserError
from conf.settings import ROOMS, TIERS, load
from membership.settings import MembershipSettings

HUGE = ("1" + "0" * 20, "-1" + "0" * 20, "1e300", "inf", "nan")
OWN: dict[str, type[BaseModel]] = {**ROOMS, "membership": MembershipSettings}


def numbers(model: type[BaseModel]) -> list[str]:
    """Return the settings that take a number."""
    fields = model.model_fields.items()
    return [name for name, one in fields if "int" in str(one.annotation) or "float" in str(one.annotation)]


@pytest.mark.parametrize("tier", [*TIERS, "balance", "admin"])
def test_each_number_has_bounds(tier: str) -> None:
    """NIST: protect. A parameter that wants 100 GB starts no node."""
    rooms = (tier, "node", "metrics", "logs", *(["membership"] if tier != "admin" else []))
    settings = [f"{room}.{name}" for room in rooms for name in numbers(OWN[room])]
    if tier == "edge":
        settings += [f"edge.listeners.a.{name}" for name in numbers(ListenerSettings)]
    assert len(settings) > 10
    for setting in settings:
        for huge in HUGE:
            with pytest.raises(UserError, match=setting.rpartition(".")[2]):
                load(tier, environment={}, flags=(f"{setting}={huge}",), membership=MembershipSettings)
