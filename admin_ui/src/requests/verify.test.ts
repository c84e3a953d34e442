import { describe, expect, it } from "vitest";
import { canonical, verify } from "./verify";

const base64url = (bytes: ArrayBuffer) =>
  btoa(String.fromCharCode(...new Uint8Array(bytes)))
    .replaceAll("+", "-")
    .replaceAll("/", "_")
    .replaceAll("=", "");

async function signed() {
  const pair = await crypto.subtle.generateKey("Ed25519", true, ["sign", "verify"]);
  const { x = "" } = await crypto.subtle.exportKey("jwk", pair.publicKey);
  const document = {
    object: "receipt",
    amount: "0.000000000001",
    times: [1.5, 0, 1e21],
    signature: { alg: "EdDSA", kid: "k1", digests: {} },
  };
  const text = new TextEncoder().encode(canonical(document));
  const value = base64url(await crypto.subtle.sign("Ed25519", pair.privateKey, text));
  const whole = { ...document, signature: { ...document.signature, value } };
  return { whole, keys: [{ kid: "k1", x }] };
}

describe("canonical JSON", () => {
  it("is as RFC 8785 has it", () => {
    // From the RFC's own examples of order and numbers.
    const value = { "\u20ac": 1, "\r": 2, "\ufb33": 3, "1": 4, "\ud83d\ude00": 5, "\u0080": 6 };
    expect(canonical(value)).toBe(
      '{"\\r":2,"1":4,"\u0080":6,"\u20ac":1,"\ud83d\ude00":5,"\ufb33":3}',
    );
    expect(canonical([333333333.3333333, 1e30, 4.5, 2e-3, 1e-27, null, true, {}])).toBe(
      "[333333333.3333333,1e+30,4.5,0.002,1e-27,null,true,{}]",
    );
  });
});

describe("a receipt", () => {
  it("holds as it was signed, however it is indented", async () => {
    const { whole, keys } = await signed();
    expect(await verify(JSON.stringify(whole, null, 2), keys)).toBe("holds");
  });

  it("is broken by any change", async () => {
    const { whole, keys } = await signed();
    expect(await verify(JSON.stringify({ ...whole, amount: "0" }), keys)).toBe("broken");
    const other = { ...whole, signature: { ...whole.signature, digests: { a: "b" } } };
    expect(await verify(JSON.stringify(other), keys)).toBe("broken");
    expect(await verify("{}", keys)).toBe("broken");
  });

  it("needs the key that it names", async () => {
    const { whole } = await signed();
    expect(await verify(JSON.stringify(whole), [{ kid: "k2", x: "" }])).toBe("unknown key");
  });
});
