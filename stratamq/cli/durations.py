"""Durations on the command line: ``--for 10m``."""

__all__ = ["seconds_of"]

UNITS = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


def seconds_of(text: str, option: str = "--for") -> float:
    """Return a duration in seconds from a whole number with a unit; 0 for "".

    Raises:
        UserError: The text is invalid; exit code 2.
    """
    from conf.errors import ExitCode, UserError

    if not text:
        return 0.0
    number = text[:-1]
    if text[-1] not in UNITS or not number.isascii() or not number.isdigit() or int(number) == 0:
        raise UserError(
            f"{option} {text!r} is not a duration: use a number with s, m, h or d, for example 10m", ExitCode.USAGE
        )
    return int(number) * UNITS[text[-1]]
