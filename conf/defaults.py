"""Copies settings into the parameters of a core."""

from typing import Any

from pydantic import BaseModel

__all__ = ["shared_values"]


def shared_values(settings: BaseModel, limits: type[Any]) -> dict[str, Any]:
    """Return the settings that a core's dataclass has under the same name."""
    names = type(settings).model_fields
    return {name: getattr(settings, name) for name in limits.__dataclass_fields__ if name in names}
