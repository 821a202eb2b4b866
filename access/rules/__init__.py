"""Rules: authorize publishing, subscribing and receiving by topic.

Owns: Tiers of rules, their compiled form, classes of equal rights, and the formats of rules.

Entry points: ``rules.CompiledRules`` decides; ``rights`` caches decisions for an edge's loop; ``acl_file``,
``role_table`` and ``claims`` parse rules.

Invariant: A deny wins within a tier, the first matching tier decides, and no match is a deny. A user or client name
never widens a rule: a placeholder is one literal level. A file with a mistake gives no rule at all.

May import: files of this package, mqtt and conf.
"""
