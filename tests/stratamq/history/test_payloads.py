"""Payloads of the recorder carry a check of their own."""

from stratamq.history.payloads import make_payload, read_payload


def test_payloads_show_damage() -> None:
    data = make_payload("p0-1", filler_bytes=20)
    assert read_payload(data) == ("p0-1", True)
    assert read_payload(make_payload("")) == ("", True)
    for position in range(len(data)):
        altered = data[:position] + bytes((data[position] ^ 1,)) + data[position + 1 :]
        assert read_payload(altered)[1] is False, position
    assert read_payload(data[:-1])[1] is False
