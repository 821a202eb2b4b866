"""Every target on its own corpus and for a moment on damaged input; and the inputs that once broke something."""

import msgspec
import pytest

from tests.fuzz.__main__ import run_target
from tests.fuzz.targets import TARGETS, Target
from wire import messages
from wire.manifest import ManifestDamaged, decode_manifest

FAST = [target for target in TARGETS if target.name != "decoder"]  # that one has tests of its own


@pytest.mark.parametrize("target", FAST, ids=lambda target: target.name)
def test_target_for_a_moment(target: Target) -> None:
    for good in target.corpus:
        target.check(good)
    cases, culprit = run_target(target, seed=5, seconds=0.5)
    assert culprit is None
    assert cases


def test_tag_of_a_control_message_that_is_no_utf_8() -> None:
    """Found by the target "control": UnicodeDecodeError came out instead of the documented error."""
    found = bytes.fromhex("84a474797065a5ba646d696ea77265717565737401a476657261")
    with pytest.raises(msgspec.ValidationError):
        messages.decode_control(found + bytes(20))


def test_manifest_that_is_no_utf_8() -> None:
    """Found by the target "manifest"."""
    with pytest.raises(ManifestDamaged):
        decode_manifest(b'{"\xec\x28": 1}')
