"""Receipts as documents: what was signed verifies, by a second implementation too; whatever is
changed does not, and is named."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import nacl.exceptions
import nacl.signing
import pytest
import rfc8785
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from shell import run
from tenora_platform.receipts.document import (
    ChangedError,
    NotAReceiptError,
    ReceiptError,
    UnknownKeyError,
    WrongSignatureError,
    sign,
    verify,
)
from tenora_platform.receipts.keys import decode, encode, key_id, key_set, read_key_set

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
OTHER = Ed25519PrivateKey.from_private_bytes(bytes(32))
PUBLIC = KEY.public_key().public_bytes_raw()
KID = key_id(PUBLIC)
KEYS = read_key_set(key_set([OTHER.public_key().public_bytes_raw(), PUBLIC]))
CONTENT: dict[str, Any] = {
    "id": "chatcmpl_01k8abcdefghjkmnpqrstvwxyz",
    "asked": {"model": "support@prod", "n": 2, "max_tokens": None},
    "times_ms": {"queue": 0.125, "decode": 31},
    "amount": "0.000012345678",
    "waits": False,
    "sequences": [{"sequence": 0, "output_tokens": 12}, {"sequence": 1, "output_tokens": 9}],
}
SIGNED = sign(CONTENT, KID, KEY)

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(-1e15, 1e15)  # beyond 2^53 a float's canonical form reads as an integer
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("abAB é", max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


def test_canonical_json_is_that_of_the_rfc() -> None:
    """RFC 8785, 3.2.2 and 3.2.3, and numbers of its appendix B."""
    example = json.loads(
        r'{"numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],'
        r'"string": "\u20ac$\u000F\u000aA\u0027\u0042\u0022\u005c\\\"\/",'
        r'"literals": [null, true, false]}'
    )
    assert (
        rfc8785.dumps(example)
        == (
            '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
            r'"string":"€$\u000f\nA' + r"""'B\"\\\\\"/"}"""
        ).encode()
    )
    names = {"\u20ac": 1, "\r": 2, "\ufb33": 3, "1": 4, "\U0001f600": 5, "\u0080": 6, "\u00f6": 7}
    order = [2, 4, 6, 7, 1, 5, 3]
    assert list(json.loads(rfc8785.dumps(names)).values()) == order
    for bits, text in (("4340000000000001", "9007199254740994"), ("0000000000000001", "5e-324")):
        number = __import__("struct").unpack(">d", bytes.fromhex(bits))[0]
        assert rfc8785.dumps(number) == text.encode()


def test_key_ids_are_thumbprints() -> None:
    """The key and the thumbprint of RFC 8037, appendix A.3."""
    assert key_id(decode("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo")) == (
        "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"
    )


@given(VALUES)
def test_what_was_signed_verifies(value: Any) -> None:
    text = sign({"id": "x", "value": value}, KID, KEY)
    found = verify(text, KEYS)
    assert found["signature"]["kid"] == KID
    indented = json.dumps(json.loads(text), indent=2).encode()
    assert verify(indented, KEYS) == found


def test_a_second_implementation_says_the_same() -> None:
    """libsodium, and canonical JSON by the standard library, which is the same for ASCII names,
    texts without control characters and short numbers."""
    document = json.loads(SIGNED)
    value = document["signature"].pop("value")
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    signature = base64.urlsafe_b64decode(value + "==")
    public = nacl.signing.VerifyKey(PUBLIC)
    public.verify(text, signature)
    with pytest.raises(nacl.exceptions.BadSignatureError):
        public.verify(text.replace(b"0.000012345678", b"0.000012345679"), signature)
    seed = nacl.signing.SigningKey(bytes(range(32)))
    assert seed.sign(text).signature == signature  # Ed25519 has one signature for each message


def test_no_character_can_be_changed() -> None:
    """Every byte of a receipt, the signature's last one too, whose low bits mean nothing."""
    for at, byte in enumerate(SIGNED):
        for other in {0x30, 0x31, 0x61, 0x41, 0x20, 0x22, 0x65, byte ^ 1, byte ^ 32} - {byte}:
            changed = bytearray(SIGNED)
            changed[at] = other
            with pytest.raises(ReceiptError):
                verify(bytes(changed), KEYS)


@given(VALUES, st.data())
def test_no_character_of_any_receipt_can_be_changed(value: Any, data: st.DataObject) -> None:
    text = sign({"id": "x", "value": value}, KID, KEY)
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.integers(0, 255).filter(lambda byte: byte != text[at]))
    with pytest.raises(ReceiptError):
        verify(text[:at] + bytes([other]) + text[at + 1 :], KEYS)


@pytest.mark.parametrize("name", [*CONTENT, "digests"])
def test_what_was_changed_is_named(name: str) -> None:
    document = json.loads(SIGNED)
    if name == "digests":
        document["signature"]["digests"]["amount"] = "0" * 16
        name = "amount"
    else:
        document[name] = "something else"
    with pytest.raises(ChangedError, match=name) as changed:
        verify(json.dumps(document).encode(), KEYS)
    assert changed.value.fields == (name,)


def test_what_is_missing_or_added_is_named() -> None:
    document = json.loads(SIGNED)
    del document["waits"]
    document["paid"] = True
    with pytest.raises(ChangedError, match="'paid', 'waits' were changed"):
        verify(json.dumps(document).encode(), KEYS)


def test_ways_to_fail() -> None:
    document = json.loads(SIGNED)
    signature = document["signature"]
    forged = sign(CONTENT, KID, OTHER)
    with pytest.raises(WrongSignatureError):
        verify(forged, KEYS)
    with pytest.raises(UnknownKeyError, match="not among the 2 given keys"):
        verify(sign(CONTENT, "another", KEY), KEYS)
    for wrong, why in (
        (b"", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[1]", "not a JSON object"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"object":"receipt","version":2}', "version 2, which this Tenora does not know"),
        (b'{"object":"receipt","version":true}', "version True, which this Tenora does not know"),
        (json.dumps(document | {"signature": None}).encode(), "signature is missing"),
        (
            json.dumps(document | {"signature": signature | {"more": 1}}).encode(),
            "signature is missing",
        ),
        (json.dumps(document | {"signature": signature | {"alg": "none"}}).encode(), "'none'"),
        (SIGNED.replace(b'"waits":false', b'"amount":"9","waits":false'), "appears twice"),
        (SIGNED.replace(b'"queue":0.125', b'"queue":1e999'), "not valid JSON"),
        (SIGNED.replace(b'"queue":0.125', b'"queue":NaN'), "not valid JSON"),
    ):
        with pytest.raises(NotAReceiptError, match=why):
            verify(wrong, KEYS)


def test_base64url_has_one_form() -> None:
    for text in ("AB", "AB==", "A", "A+", "é", "AA A"):
        if text != encode(b"\0"):
            with pytest.raises(ValueError, match="base64url"):
                decode(text)
    assert decode(encode(b"\xfb\xff")) == b"\xfb\xff"


def test_the_command_verifies_offline(tmp_path: Path) -> None:
    keys, file = tmp_path / "keys.json", tmp_path / "receipt.json"
    keys.write_text(json.dumps(key_set([PUBLIC])))

    def verified(text: bytes, *more: str) -> tuple[int, str]:
        file.write_bytes(text)
        return run("receipt", "verify", str(file), "--keys", str(keys), *more)

    code, said = verified(SIGNED)
    assert (code, KID in said, CONTENT["id"] in said) == (0, True, True), said
    assert json.loads(verified(SIGNED, "--json")[1])["valid"] is True
    code, said = verified(SIGNED.replace(b"0.000012345678", b"0.000012345679"))
    assert code == 1
    assert "'amount' was changed after the receipt was signed" in said
    code, said = verified(sign(CONTENT, KID, OTHER))
    assert code == 1
    assert "signature does not match the key" in said
    code, said = verified(sign(CONTENT, "another", KEY))
    assert code == 3
    assert "'another', which is not among the 1 given keys" in said
    code, said = verified(b"{}")
    assert code == 4
    assert "not a JSON object" in said
    assert run("receipt", "verify", str(tmp_path / "none"), "--keys", str(keys))[0] == 4
    keys.write_text("[]")
    code, said = verified(SIGNED)
    assert code == 5
    assert "not a set of keys" in said
    keys.unlink()
    assert verified(SIGNED)[0] == 5
    assert json.loads(verified(SIGNED, "--json")[1])["valid"] is False
