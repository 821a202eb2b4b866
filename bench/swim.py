"""Print the results of the SWIM simulation against N: load, dissemination, joining, detection, false positives.

    python -m bench.swim [--seeds 40]

Virtual time: the results depend on the seeds alone, not on this machine. The scenarios are those of the tests
(``tests/membership/scenarios.py``).
"""

import argparse

from tests.membership.simulate import print_figures


def main() -> None:
    """Read the options and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=40)
    print_figures(parser.parse_args().seeds)


if __name__ == "__main__":
    main()
