"""``python -m bench``: the table of a whole cluster against Mosquitto (``bench/cluster.py``)."""

import sys

from bench.cluster import main

if __name__ == "__main__":
    sys.exit(min(1, main()))
