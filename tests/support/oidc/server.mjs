// A certified OpenID Connect provider whose accounts are whatever name one signs in by. The last
// line of what it prints is "ready"; POST /__rotate gives it other keys, as providers do.

import { generateKeyPairSync, randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { Provider } from "oidc-provider";

const { port, publicUrl } = JSON.parse(process.argv[2]);
const issuer = `http://127.0.0.1:${port}`;

function signingKey() {
  const { privateKey } = generateKeyPairSync("rsa", { modulusLength: 2048 });
  return { ...privateKey.export({ format: "jwk" }), kid: randomUUID(), use: "sig", alg: "RS256" };
}

// "kim" is kim@example.com; "kim-unverified" has an address that nobody has checked.
function claimsOf(id) {
  return {
    sub: id,
    name: `The ${id}`,
    email: `${id.replace("-unverified", "")}@example.com`,
    email_verified: !id.endsWith("-unverified"),
  };
}

function provider() {
  return new Provider(issuer, {
    clients: [
      {
        client_id: "tenora",
        client_secret: "secret-of-the-client",
        redirect_uris: [`${publicUrl}/auth/callback`],
        post_logout_redirect_uris: [`${publicUrl}/`],
        grant_types: ["authorization_code"],
        response_types: ["code"],
      },
    ],
    jwks: { keys: [signingKey()] },
    cookies: { keys: ["of the tests"] },
    claims: { email: ["email", "email_verified"], profile: ["name"] },
    pkce: { required: () => true },
    findAccount: (_context, id) => ({ accountId: id, claims: async () => claimsOf(id) }),
    features: { devInteractions: { enabled: true }, rpInitiatedLogout: { enabled: true } },
  }).callback();
}

let answer = provider();
createServer((request, response) => {
  if (request.url === "/__rotate") {
    answer = provider();
    response.end();
  } else {
    answer(request, response);
  }
}).listen(port, "127.0.0.1", () => console.log("ready"));
