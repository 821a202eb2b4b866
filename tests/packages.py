"""The top-level packages of the product, for the tests that read all sources."""

__all__ = ["PACKAGES"]

PACKAGES = (
    "edge",
    "router",
    "storage",
    "gateways",
    "admin",
    "membership",
    "access",
    "wire",
    "mqtt",
    "conf",
    "jobs",
    "stratamq",
)
