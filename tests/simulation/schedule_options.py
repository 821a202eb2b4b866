"""Options of clients that schedules share."""

from dataclasses import replace

from tests.simulation.scene import EPHEMERAL

# A connection with a pending SUBACK is not read, so PINGREQ is not answered
PATIENT = replace(EPHEMERAL, silence_s=60.0)
