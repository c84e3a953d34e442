import { describe, expect, it } from "vitest";
import { HeaderError, previewAdapter, readHeader } from "./safetensors";

function file(header: unknown, dataBytes = 0): Blob {
  const json = new TextEncoder().encode(
    typeof header === "string" ? header : JSON.stringify(header),
  );
  const prefix = new DataView(new ArrayBuffer(8));
  prefix.setBigUint64(0, BigInt(json.length), true);
  return new Blob([prefix.buffer, json, new Uint8Array(dataBytes)]);
}

const NAME = "base_model.model.model.layers";
const ADAPTER = {
  __metadata__: { format: "pt" },
  [`${NAME}.0.self_attn.q_proj.lora_A.weight`]: {
    dtype: "F32",
    shape: [8, 576],
    data_offsets: [0, 18432],
  },
  [`${NAME}.0.self_attn.q_proj.lora_B.weight`]: {
    dtype: "F32",
    shape: [576, 8],
    data_offsets: [18432, 36864],
  },
  [`${NAME}.1.mlp.down_proj.lora_A.weight`]: {
    dtype: "BF16",
    shape: [4, 1536],
    data_offsets: [36864, 49152],
  },
};

describe("readHeader", () => {
  it("finds what the adapter is", async () => {
    const preview = previewAdapter(await readHeader(file(ADAPTER, 49152)));
    expect(preview).toEqual({
      tensors: 3,
      weightBytes: 49152,
      ranks: [4, 8],
      modules: ["down_proj", "q_proj"],
      dtypes: ["BF16", "F32"],
      layers: 2,
    });
  });

  it.each([
    ["a file that is too short", new Blob(["abc"])],
    ["a pickle", new Blob([new Uint8Array(200).fill(0x80)])],
    ["a header that is not JSON", file("{nope")],
    ["a header that is a list", file([])],
    ["a tensor without a shape", file({ a: { dtype: "F32", data_offsets: [0, 4] } })],
    [
      "a tensor with a negative size",
      file({ a: { dtype: "F32", shape: [-1], data_offsets: [0, 4] } }),
    ],
  ])("refuses %s", async (_name, blob) => {
    await expect(readHeader(blob)).rejects.toBeInstanceOf(HeaderError);
  });
});
