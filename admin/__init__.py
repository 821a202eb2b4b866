"""Admin: questions of operators to the nodes of a running cluster, and what the answers say together.

Owns: The order in which nodes are asked and how their answers become one page (``gather``), cursors, the links of an
operator, one function for each question (``queries``), and explanations (``explain``).

Doors: ``queries`` asks, ``links.NodeLinks`` carries the questions; ``explain`` turns rows into steps.

Always holds: No node waits for anything here, and nothing here decides what a node does: killed at any moment, no
message and no placement is lost. A node that did not answer is named. No row of one incarnation of a node is shown
twice.

May import: access, wire, mqtt and conf; nothing but ``stratamq`` imports it.
"""
