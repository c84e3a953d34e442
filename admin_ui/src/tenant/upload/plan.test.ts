import { describe, expect, it } from "vitest";
import {
  isMine,
  isSame,
  markOf,
  partBytesFor,
  partsOf,
  type Remembered,
  readRemembered,
  receivedBytes,
} from "./plan";

const MIB = 1024 * 1024;

describe("parts", () => {
  it("cover the file without gap or overlap, whatever its size", () => {
    for (const bytes of [1, MIB - 1, MIB, MIB + 1, 20 * MIB + 3, 1024 * MIB]) {
      const size = partBytesFor(bytes, 64 * MIB);
      const parts = partsOf(bytes, size);
      expect(parts[0]?.begin).toBe(0);
      expect(parts.at(-1)?.end).toBe(bytes);
      parts.forEach(({ begin, end, index }, at) => {
        expect(index).toBe(at);
        expect(end - begin).toBeLessThanOrEqual(size);
        if (at > 0) expect(begin).toBe(parts[at - 1]?.end);
      });
    }
  });

  it("are never larger than the server takes", () => {
    expect(partBytesFor(1024 * MIB, 4 * MIB)).toBe(4 * MIB);
    expect(partBytesFor(1024 * MIB, 64 * MIB)).toBe(16 * MIB);
    expect(partBytesFor(10, 64 * MIB)).toBe(MIB);
  });
});

const KEPT: Remembered = {
  id: "1",
  place: "ten_1",
  tab: "t",
  seenAt: 1000,
  name: "support",
  folder: "run",
  identity: { bytes: 2 * MIB + 5, headerBytes: 100, mark: "00" },
  partBytes: MIB,
  uploadId: "upload_1",
  parts: { 0: "part_a", 2: "part_c" },
  version: null,
};

describe("what is remembered", () => {
  it("survives storage, and what is not of its form does not", () => {
    expect(readRemembered(JSON.stringify([KEPT, { id: 1 }, null]))).toEqual([KEPT]);
    expect(readRemembered("{broken")).toEqual([]);
    expect(readRemembered(null)).toEqual([]);
  });

  it("says how much the server has", () => {
    expect(receivedBytes(KEPT)).toBe(MIB + 5);
  });

  it("is this tab's, or nobody's after a while, and of one place", () => {
    expect(isMine(KEPT, "ten_1", "t", 10 ** 9)).toBe(true);
    expect(isMine(KEPT, "ten_1", "other", 2000)).toBe(false);
    expect(isMine(KEPT, "ten_1", "other", 20_000)).toBe(true);
    expect(isMine(KEPT, "ten_2", "t", 1000)).toBe(false);
  });

  it("tells files apart", () => {
    const mark = markOf(new TextEncoder().encode("a"));
    expect(mark).toBe("e40c292c"); // FNV-1a's published value
    expect(isSame(KEPT.identity, { ...KEPT.identity, mark })).toBe(false);
    expect(isSame(KEPT.identity, { ...KEPT.identity })).toBe(true);
  });
});
