import react from "@vitejs/plugin-react";
import { defineConfig } from "vitest/config";
import { mantineStyles } from "./mantine-styles.mjs";

/** Where `npm run dev` finds a running platform. */
const PLATFORM = "http://127.0.0.1:8000";

export default defineConfig({
  plugins: [react(), mantineStyles()],
  // The platform puts a fresh nonce into its place with each answer (portal.py).
  html: { cspNonce: "__TENORA_CSP_NONCE__" },
  build: {
    rolldownOptions: { input: ["index.html", "docs.html"] },
    // Everything is a file of its own: the policy allows no data: addresses but in pictures.
    assetsInlineLimit: 0,
    // Which chunks a page loads, for the test of the first screen (tests/repo/test_portal_size.py).
    manifest: "chunks.json",
    license: { fileName: "licenses/packages.md" },
    // All of these know light-dark(), so it stays as written instead of being rewritten.
    target: ["chrome123", "firefox120", "safari17.5"],
    chunkSizeWarningLimit: 1800,
  },
  server: {
    proxy: {
      "/auth": PLATFORM,
      "/v1": PLATFORM,
      "/admin/v1": PLATFORM,
      "/readyz": PLATFORM,
      "/openapi.json": PLATFORM,
    },
  },
  test: { environment: "node", include: ["src/**/*.test.ts"] },
});
