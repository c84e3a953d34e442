"""ID tokens that a certified provider would never make: each is refused, and the good one beside
them is not. The provider here is a few functions of this file, with keys of its own."""

from __future__ import annotations

import base64
import hmac
import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from joserfc import jwt
from joserfc.jwk import RSAKey

from tenora_platform.errors import ApiError
from tenora_platform.people.oidc import Identity, Provider
from tenora_platform.secret import ServerSecret

ISSUER = "https://issuer.example"
CLIENT = "tenora"
KEY = RSAKey.generate_key(2048, {"kid": "one", "use": "sig"})
OTHER = RSAKey.generate_key(2048, {"kid": "one", "use": "sig"})
Claims = dict[str, Any]


def public(key: RSAKey) -> dict[str, Any]:
    return dict(key.as_dict(private=False))


class Forger:
    """A provider that says whatever it is told to."""

    def __init__(self) -> None:
        self.keys = [public(KEY)]
        self.token: Callable[[Claims], str] = lambda claims: signed(claims)
        self.userinfo: Claims = {"sub": "kim", "email": "kim@example.com", "email_verified": True}
        self.nonce = ""
        self.metadata: dict[str, Any] = {}
        self.asked: list[str] = []

    def claims(self) -> Claims:
        now = int(time.time())
        return {
            "iss": ISSUER,
            "sub": "kim",
            "aud": CLIENT,
            "iat": now,
            "exp": now + 600,
            "nonce": self.nonce,
        }

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path
        self.asked.append(path)
        if path.endswith("openid-configuration"):
            return httpx2.Response(
                200,
                json={
                    "issuer": ISSUER,
                    "authorization_endpoint": f"{ISSUER}/auth",
                    "token_endpoint": f"{ISSUER}/token",
                    "jwks_uri": f"{ISSUER}/jwks",
                    "userinfo_endpoint": f"{ISSUER}/me",
                    "id_token_signing_alg_values_supported": ["RS256", "HS256", "none"],
                    **self.metadata,
                },
            )
        if path == "/jwks":
            return httpx2.Response(200, json={"keys": self.keys})
        if path == "/me":
            return httpx2.Response(200, json=self.userinfo)
        token = self.token(self.claims())
        body = {"access_token": "a", "token_type": "bearer", "id_token": token}
        return httpx2.Response(200, json=body)


def signed(claims: Claims, key: Any = KEY, **header: Any) -> str:
    head = {"alg": "RS256", "kid": "one", **header}
    return jwt.encode(head, claims, key)


def unsigned(claims: Claims) -> str:
    return ".".join(map(base64url, ({"alg": "none"}, claims))) + "."


def by_the_public_key(claims: Claims) -> str:
    """As if the public key were a shared secret: the confusion of RS256 with HS256."""
    text = ".".join(map(base64url, ({"alg": "HS256", "kid": "one"}, claims)))
    mac = hmac.digest(KEY.as_pem(private=False), text.encode(), "sha256")
    return f"{text}.{base64.urlsafe_b64encode(mac).decode().rstrip('=')}"


def base64url(part: Claims) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")


def but(**changes: Any) -> Callable[[Claims], str]:
    """Signed well, with other claims; None takes one away."""

    def made(claims: Claims) -> str:
        changed = {name: value for name, value in (claims | changes).items() if value is not None}
        return signed(changed)

    return made


@pytest.fixture
def forger() -> Forger:
    return Forger()


@pytest.fixture
def provider(forger: Forger) -> Provider:
    return Provider(
        issuer=ISSUER,
        client_id=CLIENT,
        client_secret="secret",
        scopes="openid email",
        redirect_uri="https://tenora.example/auth/callback",
        secret=ServerSecret(b"of the tests"),
        transport=httpx2.MockTransport(forger.answer),
    )


async def sign_in(provider: Provider, forger: Forger) -> Identity:
    url, kept = await provider.begin("/usage")
    asked = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
    forger.nonce = asked["nonce"]
    identity, next_path = await provider.finish({"state": asked["state"], "code": "c"}, kept)
    assert next_path == "/usage"
    return identity


async def test_a_good_one(provider: Provider, forger: Forger) -> None:
    identity = await sign_in(provider, forger)
    assert identity == Identity(ISSUER, "kim", "kim@example.com", True, None)


@pytest.mark.parametrize("seconds", [-50, 50])
async def test_clocks_may_differ_by_a_minute(
    provider: Provider, forger: Forger, seconds: int
) -> None:
    now = int(time.time()) + seconds
    forger.token = but(iat=now, exp=now + 5, nbf=now)
    assert (await sign_in(provider, forger)).subject == "kim"


NOW = int(time.time())


@pytest.mark.parametrize(
    "token",
    [
        but(aud="somebody-else"),
        but(aud=["somebody-else"]),
        but(aud=[CLIENT, "somebody-else"]),  # without azp: for whom is it?
        but(aud=[CLIENT, "somebody-else"], azp="somebody-else"),
        but(aud=None),
        but(iss="https://other.example"),
        but(iss=None),
        but(sub=None),
        but(exp=NOW - 3600),
        but(exp=None),
        but(iat=NOW + 3600, exp=NOW + 7200),
        but(nbf=NOW + 3600),
        but(nonce="another"),
        but(nonce=None),
        but(at_hash="AAAAAAAAAAAAAAAAAAAAAA"),
        lambda claims: signed(claims, OTHER),
        lambda claims: signed(claims, OTHER, kid="two"),
        lambda claims: signed(claims)[:-4] + "AAAA",
        unsigned,
        by_the_public_key,
        lambda claims: "no.token.atall",
        lambda claims: "",
    ],
)
async def test_others_are_refused(
    provider: Provider, forger: Forger, token: Callable[[Claims], str]
) -> None:
    forger.token = token
    with pytest.raises(ApiError) as refused:
        await sign_in(provider, forger)
    assert (refused.value.status, refused.value.code) == (401, "sign_in_refused")


async def test_keys_that_were_changed_are_fetched_again(provider: Provider, forger: Forger) -> None:
    await sign_in(provider, forger)
    new = RSAKey.generate_key(2048, {"kid": "two", "use": "sig"})
    forger.keys = [public(new)]
    forger.token = lambda claims: signed(claims, new, kid="two")
    await sign_in(provider, forger)
    await sign_in(provider, forger)
    assert forger.asked.count("/jwks") == 2
    forger.token = signed  # by the key that was taken away
    with pytest.raises(ApiError):
        await sign_in(provider, forger)


async def test_userinfo_of_somebody_else(provider: Provider, forger: Forger) -> None:
    forger.userinfo = {"sub": "boss", "email": "boss@example.com", "email_verified": True}
    with pytest.raises(ApiError, match="another person"):
        await sign_in(provider, forger)


@pytest.mark.parametrize("verified", [False, None, "true", 1])
async def test_an_address_is_verified_only_if_so_said(
    provider: Provider, forger: Forger, verified: object
) -> None:
    forger.userinfo["email_verified"] = verified
    assert not (await sign_in(provider, forger)).email_verified
