"""Code shared by all tiers: messages and codecs, links, the process around each node, and the SSTable format.

Owns: Every byte between nodes, and the rules of permitted senders.

Entry points: ``messages`` are the formats, ``links`` carry them, ``node`` is the code of each process around its core,
``sstable`` is the format that jobs read.

Always holds: A decoder returns a message within its ranges or raises ``Unreadable``. A message is accepted only within
its sender's identity.

May import: mqtt and conf.
"""
