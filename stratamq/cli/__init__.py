"""The command line: one file for each group of verbs, and what they share.

Owns: Verbs, their options and texts, tables and progress on a terminal, exit codes.

Doors: ``main`` is the entry point; ``asking`` asks a router, ``output`` shows what came back.

Always holds: An error of the user is one line and exit code 2. What ``-o json`` prints stays the same.

May import: the files of ``stratamq`` beside this folder, and every room.
"""
