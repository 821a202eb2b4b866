"""Admin: queries of operators to the nodes of a running cluster, and the merged results.

Owns: the order in which nodes are queried and the merge of their results into one page (``scatter_gather``), cursors,
the links of an operator, one function for each query (``queries``), and explanations (``explain``).

Entry points: ``queries`` runs a query, ``links.NodeLinks`` sends it to the nodes; ``explain`` turns rows into steps.

Invariant: No node waits for this package, and this package decides nothing for a node. If it is killed, no message and
no placement is lost. A node that did not answer is named. No row of one incarnation of a node is listed twice.

May import: access, wire, mqtt and conf; only ``stratamq`` imports it.
"""
