// Puts a .gz and a .br beside each file of dist that gets smaller by it, for the platform to send
// (portal.py). Pages are not among them: each answer has a nonce of its own.

import { readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { extname, join } from "node:path";
import { brotliCompressSync, constants, gzipSync } from "node:zlib";

const dist = new URL("dist/", import.meta.url).pathname;
const KINDS = new Set([".js", ".css", ".svg", ".json", ".map", ".md"]);
const SMALLER_BY = 0.95;
const FORMS = {
  ".gz": (bytes) => gzipSync(bytes, { level: 9 }),
  ".br": (bytes) =>
    brotliCompressSync(bytes, {
      params: { [constants.BROTLI_PARAM_QUALITY]: constants.BROTLI_MAX_QUALITY },
    }),
};

for (const entry of readdirSync(dist, { recursive: true, withFileTypes: true })) {
  if (!entry.isFile()) continue;
  const file = join(entry.parentPath, entry.name);
  if (!KINDS.has(extname(entry.name))) continue;
  const bytes = readFileSync(file);
  for (const [ending, smaller] of Object.entries(FORMS)) {
    const made = smaller(bytes);
    if (made.length < bytes.length * SMALLER_BY) writeFileSync(file + ending, made);
    else rmSync(file + ending, { force: true });
  }
}
