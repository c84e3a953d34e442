"""Sign-in by an OpenID Connect provider: the code flow with PKCE, state and nonce (OpenID Connect
Core 1.0, RFC 7636, RFC 9700). It knows the provider and who came back from it, no rows."""

from __future__ import annotations

import hmac
import secrets
import time
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx2
import msgspec
import structlog
from authlib.integrations.base_client import OAuthError
from authlib.integrations.httpx_client import AsyncOAuth2Client
from authlib.oidc.core import CodeIDToken
from cryptography.fernet import Fernet, InvalidToken
from joserfc import jwt
from joserfc.errors import BadSignatureError, InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet
from joserfc.jws import JWSRegistry

from tenora_platform.errors import ApiError, BadRequestError, UnauthorizedError, UnavailableError
from tenora_platform.plain_text import without_hidden
from tenora_platform.secret import ServerSecret
from tenora_platform.settings import Settings

FLOW_S = 600
"""For so long somebody may stay at the provider."""
_SKEW_S = 60  # between the provider's clock and ours
_METADATA_S = 3600.0
_TIMEOUT_S = 10.0
_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA")
"""Asymmetric only: whoever verifies cannot sign."""
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who signed in, by the provider's word."""

    issuer: str
    subject: str
    email: str | None
    email_verified: bool
    name: str | None


class _Flow(msgspec.Struct, frozen=True):
    """What a browser keeps, sealed, while it is at the provider."""

    state: str
    nonce: str
    verifier: str
    next: str


class Provider:
    """Its metadata are read when first needed and again every hour, its keys whenever a token is
    signed by one that is not known. No redirect of the provider's own endpoints is followed."""

    def __init__(
        self,
        *,
        issuer: str,
        client_id: str,
        client_secret: str | None,
        scopes: str,
        redirect_uri: str,
        secret: ServerSecret,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._issuer = issuer
        self._client_id = client_id
        self._client_secret = client_secret
        self._scopes = scopes
        self._redirect_uri = redirect_uri
        self._transport = transport
        self._seal = Fernet(urlsafe_b64encode(secret.key("sign-in")))
        self._metadata: dict[str, Any] = {}
        self._metadata_at_s = float("-inf")
        self._keys: KeySet | None = None

    async def begin(self, next_path: str) -> tuple[str, str]:
        """The provider's address to send a browser to, and what it is to keep until it is back.
        Raises UnavailableError."""
        async with self._client() as client:
            metadata = await self._read_metadata(client)
            flow = _Flow(
                state=secrets.token_urlsafe(24),
                nonce=secrets.token_urlsafe(24),
                verifier=secrets.token_urlsafe(48),
                next=next_path,
            )
            url, _ = client.create_authorization_url(
                metadata["authorization_endpoint"],
                state=flow.state,
                nonce=flow.nonce,
                code_verifier=flow.verifier,
            )
        return str(url), self._seal.encrypt(msgspec.json.encode(flow)).decode()

    async def finish(self, answer: Mapping[str, str], kept: str | None) -> tuple[Identity, str]:
        """Who came back with this `answer` of the provider's, and where they wanted to go. Raises
        BadRequestError for an answer to nothing we asked, UnauthorizedError for one that proves
        nothing, UnavailableError while the provider does not answer."""
        flow = self._opened(kept)
        if not hmac.compare_digest(answer.get("state", "").encode(), flow.state.encode()):
            raise _not_ours()
        if "error" in answer:
            raise _refused(f"the provider said {answer['error'][:100]!r}")
        async with self._client() as client:
            metadata = await self._read_metadata(client)
            if answer.get("iss", metadata["issuer"]) != metadata["issuer"]:
                raise _refused("the answer came from another provider")  # RFC 9207
            token = await self._redeem(client, metadata, answer.get("code", ""), flow)
            claims = await self._verified(client, metadata, token, flow.nonce)
            said = await self._userinfo(client, metadata, claims)
        return _identity(metadata["issuer"], claims, said), flow.next

    async def sign_out_url(self, back_to: str) -> str | None:
        """Where the provider ends its own session, if it says so."""
        async with self._client() as client:
            metadata = await self._read_metadata(client)
        endpoint = metadata.get("end_session_endpoint")
        if endpoint is None:
            return None
        asked = {"client_id": self._client_id, "post_logout_redirect_uri": back_to}
        return str(httpx2.URL(str(endpoint)).copy_merge_params(asked))

    def _client(self) -> Any:
        return AsyncOAuth2Client(
            client_id=self._client_id,
            client_secret=self._client_secret,
            token_endpoint_auth_method="client_secret_basic" if self._client_secret else "none",
            scope=self._scopes,
            redirect_uri=self._redirect_uri,
            code_challenge_method="S256",
            timeout=_TIMEOUT_S,
            follow_redirects=False,
            transport=self._transport,
        )

    def _opened(self, kept: str | None) -> _Flow:
        if kept is None:
            raise _not_ours()
        try:
            return msgspec.json.decode(self._seal.decrypt(kept, ttl=FLOW_S), type=_Flow)
        except InvalidToken:
            raise _not_ours() from None

    async def _read_metadata(self, client: Any) -> dict[str, Any]:
        if time.monotonic() - self._metadata_at_s > _METADATA_S:
            url = f"{self._issuer.rstrip('/')}/.well-known/openid-configuration"
            found = await _get(client, url)
            if found.get("issuer") != self._issuer:
                raise _unavailable(f"its issuer is {found.get('issuer')!r}, not {self._issuer!r}")
            self._metadata, self._metadata_at_s = found, time.monotonic()
        return self._metadata

    async def _redeem(
        self, client: Any, metadata: Mapping[str, Any], code: str, flow: _Flow
    ) -> Mapping[str, Any]:
        try:
            token: Mapping[str, Any] = await client.fetch_token(
                metadata["token_endpoint"], code=code, code_verifier=flow.verifier
            )
        except OAuthError as error:
            raise _refused(f"the provider said {str(error.error)[:100]!r}") from None
        except (httpx2.HTTPError, ValueError) as error:
            raise _unavailable(type(error).__name__) from None
        return token

    async def _verified(
        self, client: Any, metadata: Mapping[str, Any], token: Mapping[str, Any], nonce: str
    ) -> CodeIDToken:
        """The claims of the ID token. Raises UnauthorizedError."""
        text = str(token.get("id_token", ""))
        said = metadata.get("id_token_signing_alg_values_supported") or ["RS256"]
        rules = JWSRegistry(
            algorithms=[name for name in _ALGORITHMS if name in said], strict_check_header=False
        )
        try:
            try:
                keys = self._keys or await self._read_keys(client, metadata)
                decoded = jwt.decode(text, keys, registry=rules)
            except (InvalidKeyIdError, BadSignatureError):  # the provider has changed its keys
                decoded = jwt.decode(text, await self._read_keys(client, metadata), registry=rules)
            claims = CodeIDToken(
                decoded.claims,
                decoded.header,
                {
                    "iss": {"essential": True, "value": self._issuer},
                    "aud": {"essential": True, "value": self._client_id},
                    "nonce": {"essential": True, "value": nonce},
                },
                {
                    "nonce": nonce,
                    "client_id": self._client_id,
                    "access_token": token.get("access_token"),
                },
            )
            claims.validate(leeway=_SKEW_S)
        except (JoseError, ValueError, KeyError, TypeError) as error:
            raise _refused(f"the ID token is not valid ({type(error).__name__}: {error})") from None
        return claims

    async def _read_keys(self, client: Any, metadata: Mapping[str, Any]) -> KeySet:
        found: Any = await _get(client, metadata["jwks_uri"])
        self._keys = KeySet.import_key_set(found)
        return self._keys

    async def _userinfo(
        self, client: Any, metadata: Mapping[str, Any], claims: CodeIDToken
    ) -> Mapping[str, Any]:
        """What the provider says beyond the token; providers differ in where they put an email."""
        if "email" in claims or "userinfo_endpoint" not in metadata:
            return {}
        said = await _get(client, metadata["userinfo_endpoint"], withhold_token=False)
        if said.get("sub") != claims["sub"]:
            raise _refused("the provider's userinfo belongs to another person")
        return said


def provider_of(settings: Settings, secret: ServerSecret) -> Provider | None:
    if settings.oidc_issuer is None or settings.oidc_client_id is None:
        return None
    hidden = settings.oidc_client_secret
    return Provider(
        issuer=settings.oidc_issuer,
        client_id=settings.oidc_client_id,
        client_secret=hidden.get_secret_value() if hidden else None,
        scopes=settings.oidc_scopes,
        redirect_uri=f"{settings.base_url}/auth/callback",
        secret=secret,
    )


async def _get(client: Any, url: str, *, withhold_token: bool = True) -> dict[str, Any]:
    """Raises UnavailableError."""
    try:
        answer = await client.request("GET", url, withhold_token=withhold_token)
        answer.raise_for_status()
        found = answer.json()
    except (httpx2.HTTPError, ValueError) as error:
        raise _unavailable(type(error).__name__) from None
    if not isinstance(found, dict):
        raise _unavailable("its answer is not a JSON object")
    return found


def _identity(issuer: str, claims: Mapping[str, Any], said: Mapping[str, Any]) -> Identity:
    both = {**said, **claims}
    email = str(both.get("email") or "")
    name = without_hidden(str(both.get("name") or ""))
    return Identity(
        issuer=issuer,
        subject=str(claims["sub"]),
        # One with hidden characters is nobody's: without them it could be somebody else's.
        email=email[:320] if email and without_hidden(email) == email else None,
        email_verified=both.get("email_verified") is True,
        name=name[:200] or None,
    )


def _not_ours() -> ApiError:
    return BadRequestError(
        "This does not belong to a sign-in started in this browser within the last ten minutes. "
        "Start again.",
        code="sign_in_not_begun",
    )


def _refused(why: str) -> ApiError:
    _log.warning("sign-in refused", reason=why)
    return UnauthorizedError(f"Sign-in failed: {why}.", code="sign_in_refused")


def _unavailable(why: str) -> ApiError:
    _log.error("sign-in provider not available", reason=why)
    return UnavailableError(
        f"The sign-in provider is not available: {why}.", code="sign_in_unavailable"
    )
