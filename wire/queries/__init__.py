"""Looks at a node, for all tiers: conditions, pace, and the desk that answers from sources.

Owns: The bounds of a look: rows, time, bytes, share of the loop, and questions that wait.

Doors: ``desk`` takes questions and answers them at the end of turns, ``source`` is the shape of what a tier shows.

Always holds: A look ends after a bounded number of rows. Nothing runs while nobody asks. A desk changes nothing.

May import: wire.messages, wire.decoding.
"""
