"""The version of StrataMQ."""

__all__ = ["VERSION"]

VERSION = "0.1.0"
