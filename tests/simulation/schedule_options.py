"""Options of clients that schedules share."""

from dataclasses import replace

from tests.simulation.scene import EPHEMERAL

PATIENT = replace(EPHEMERAL, silence_s=60.0)  # a connection that waits for SUBACK is not read, PINGREQ neither
