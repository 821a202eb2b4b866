"""Ground that all tiers share: messages and their codecs, links, the frame of a node, and the SSTable format.

Owns: Every byte between nodes, and who may say it.

Doors: ``messages`` are the formats, ``links`` carry them, ``node`` is what each process does around its core,
``sstable`` is what jobs read.

Always holds: A decoder returns a message within its ranges or raises ``Unreadable``. A message is believed only within
its sender's identity.

May import: mqtt and conf.
"""
