import { describe, expect, it } from "vitest";
import { HeaderError, headerBytes, weightsOf } from "./safetensors";

/** A file by the format's own words: 8 bytes of length, JSON, data. */
function file(name: string, header: unknown, data: string): File {
  const json = new TextEncoder().encode(
    typeof header === "string" ? header : JSON.stringify(header),
  );
  const prefix = new DataView(new ArrayBuffer(8));
  prefix.setBigUint64(0, BigInt(json.length), true);
  return new File([prefix.buffer, json, data], name);
}

function tensor(begin: number, end: number) {
  return { dtype: "F32", shape: [(end - begin) / 4], data_offsets: [begin, end] };
}

/** Each tensor's bytes, found by a reader of the whole file. */
async function contents(whole: Blob): Promise<Record<string, string>> {
  const bytes = new Uint8Array(await whole.arrayBuffer());
  const length = Number(new DataView(bytes.buffer).getBigUint64(0, true));
  expect(length % 8).toBe(0);
  const header: Record<string, { data_offsets: [number, number] }> = JSON.parse(
    new TextDecoder().decode(bytes.slice(8, 8 + length)),
  );
  return Object.fromEntries(
    Object.entries(header).map(([name, { data_offsets: at }]) => [
      name,
      new TextDecoder().decode(bytes.slice(8 + length + at[0], 8 + length + at[1])),
    ]),
  );
}

describe("weightsOf", () => {
  it("leaves one file as it is and tells its header apart", async () => {
    const one = file("a.safetensors", { a: tensor(0, 4) }, "aaaa");
    const { header, whole } = await weightsOf([one]);
    expect(whole).toBe(one);
    expect(header.size).toBe(one.size - 4);
  });

  it("makes one file of shards, in which each tensor has its bytes", async () => {
    const shards = [
      file(
        "1",
        { __metadata__: { format: "pt" }, a: tensor(0, 4), b: tensor(4, 12) },
        "aaaabbbbbbbb",
      ),
      file("2", { c: tensor(0, 8) }, "cccccccc"),
    ];
    const { header, whole } = await weightsOf(shards);
    expect(await contents(whole)).toEqual({ a: "aaaa", b: "bbbbbbbb", c: "cccccccc" });
    expect(await whole.slice(0, header.size).text()).toBe(await header.text());
    expect(whole.size).toBe(header.size + 20);
  });

  it("refuses a tensor that two shards have", async () => {
    const shards = [file("1", { a: tensor(0, 4) }, "aaaa"), file("2", { a: tensor(0, 4) }, "AAAA")];
    await expect(weightsOf(shards)).rejects.toThrow('Tensor "a" is in 2');
  });

  it.each([
    ["a header that is not JSON", file("x", "{nope", "")],
    ["a header that is a list", file("x", [], "")],
    ["a tensor without a shape", file("x", { a: { dtype: "F32", data_offsets: [0, 4] } }, "")],
    [
      "a tensor with a negative size",
      file("x", { a: { dtype: "F32", shape: [-1], data_offsets: [0, 4] } }, ""),
    ],
  ])("refuses shards with %s", async (_name, bad) => {
    await expect(weightsOf([bad, bad])).rejects.toBeInstanceOf(HeaderError);
  });
});

describe("headerBytes", () => {
  it.each([
    ["a file that is too short", new Blob(["abc"])],
    ["a pickle", new Blob([new Uint8Array(200).fill(0x80)])],
  ])("refuses %s", async (_name, blob) => {
    await expect(headerBytes(blob, "x")).rejects.toBeInstanceOf(HeaderError);
  });
});
