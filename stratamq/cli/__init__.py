"""The command line: one file for each group of commands, and the code that they share.

Owns: Commands, options and help texts, tables and progress bars, exit codes.

Entry points: ``main``; ``node_requests`` sends requests to routers, ``output`` prints results.

Invariant: A user error is one line and exit code 2. The output of ``-o json`` is stable between releases.

May import: the files of ``stratamq`` beside this folder, and every package.
"""
