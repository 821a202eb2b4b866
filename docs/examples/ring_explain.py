"""Where a client identifier and a topic live, from `stratamq ring export -o json`: python ring_explain.py FILE NAME."""

import json
import sys
import zlib
from pathlib import Path

ring, name = json.loads(Path(sys.argv[1]).read_text()), sys.argv[2]
levels, crc = name.split("/"), lambda text: zlib.crc32(text.encode())
partition = ring["partitions"][crc(name) % len(ring["partitions"])]
rules = [rule for rule in ring["delegations"] if levels[: len(prefix := rule["prefix"].split("/"))] == prefix]
rule = max(rules, key=lambda rule: rule["prefix"].count("/"), default={"depth": 1, "pin": "", "shard": -1})
key = "/".join(levels[: rule["depth"]])
shard = ring["shards"][rule["shard"] if rule["pin"] else crc(key) % ring["base_shards"]]
print(partition["partition"], partition["primary"], shard["shard"], shard["owner"])
