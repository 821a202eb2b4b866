"""The rooms of the house, each a folder at the top, for the tests that read all of its sources."""

__all__ = ["ROOMS"]

ROOMS = (
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
