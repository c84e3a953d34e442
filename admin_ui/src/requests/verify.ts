/**
 * Checks a receipt's signature here, as anybody could: Ed25519 over the canonical JSON (RFC 8785) of
 * all of it but the signature's value. The browser's own arithmetic; nothing is sent.
 */

export type Verdict = "holds" | "broken" | "unknown key" | "cannot be checked here";

interface PublicKey {
  kid: string;
  x: string;
}

/** `text` is the receipt as the server sent it. */
export async function verify(text: string, keys: readonly PublicKey[]): Promise<Verdict> {
  if (globalThis.crypto?.subtle === undefined) return "cannot be checked here";
  const document: unknown = JSON.parse(text);
  const signature = isObject(document) ? document.signature : null;
  if (!isObject(document) || !isObject(signature)) return "broken";
  const { value, ...claimed } = signature;
  const key = keys.find(({ kid }) => kid === signature.kid);
  if (key === undefined) return "unknown key";
  if (typeof value !== "string") return "broken";
  const signed = new TextEncoder().encode(canonical({ ...document, signature: claimed }));
  try {
    const jwk = { kty: "OKP", crv: "Ed25519", x: key.x };
    const publicKey = await crypto.subtle.importKey("jwk", jwk, "Ed25519", false, ["verify"]);
    const holds = await crypto.subtle.verify("Ed25519", publicKey, bytes(value), signed);
    return holds ? "holds" : "broken";
  } catch {
    return "cannot be checked here"; // a browser without Ed25519
  }
}

/** RFC 8785: names in order of their UTF-16 units, no spaces, numbers as ECMAScript writes them. */
export function canonical(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (!isObject(value)) return JSON.stringify(value);
  const parts = Object.keys(value)
    .sort()
    .map((name) => `${JSON.stringify(name)}:${canonical(value[name])}`);
  return `{${parts.join(",")}}`;
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function bytes(base64url: string): Uint8Array<ArrayBuffer> {
  const text = atob(base64url.replaceAll("-", "+").replaceAll("_", "/"));
  return Uint8Array.from(text, (char) => char.charCodeAt(0));
}
