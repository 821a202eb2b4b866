"""Rules: decide which topics a client may publish, subscribe and receive.

Owns: Tiers of rules, their compiled form, classes of equal rights, and the formats that rules are written in.

Doors: ``rules.Policy`` decides; ``rights`` keeps decisions for the loop of an edge; ``acl_file``, ``role_table`` and
``claims`` read rules.

Always holds: A deny wins within a tier, the first tier that decides decides, and no match is a deny. The name of a user
or client never widens a rule: a placeholder is one literal level. A file with a mistake gives no rule at all.

May import: files of this room, mqtt and conf.
"""
